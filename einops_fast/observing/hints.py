"""What a user could change so that a call is faster, in words, from the plan and from how it ran."""

from __future__ import annotations

from collections.abc import Iterator

from einops_fast.explanation import scaled
from einops_fast.observing.fallbacks import Copy, copies, native_steps
from einops_fast.observing.recording import PlanRecord
from einops_fast.planning.plan import Plan

_MANY_CALLS, _SHORT = 1000, 3e-5
"""From so many calls on, each shorter than this in seconds, the host's time is what counts."""

_WORTH_SAYING = 0.02
"""The part of a plan's predicted time that a copy has to take to be mentioned."""


def hints(record: PlanRecord) -> Iterator[str]:
    """What to change, the most worthwhile first; nothing where all is well."""
    plan = record.plan
    found = sorted(copies(plan, record.runs), key=lambda copy: -copy.seconds)
    for copy in found:
        if copy.seconds >= _WORTH_SAYING * plan.seconds:
            yield _about_copy(plan, copy)
    for category, reason in native_steps(plan):
        yield _about_native(plan, category, reason)
    middle = record.times.median
    if record.times.calls >= _MANY_CALLS and middle is not None and middle < _SHORT:
        yield f"{record.times.calls} short calls: contract_expression, or one call on a batch, spends less time on each"


def _about_copy(plan: Plan, copy: Copy) -> str:
    cost = f"a copy of {scaled(copy.bytes, 'B')}: {scaled(copy.seconds, 's')}"
    if copy.category == "copy":
        operand = plan.operands[copy.slot]
        lies = _spelled(plan, _order(copy.labels, operand.strides))
        wanted = _spelled(plan, copy.wanted)
        if lies != wanted:
            return f"axis order of operand {copy.slot} ({lies}) forces {cost}; keep it as {wanted}"
        return f"operand {copy.slot} ({lies}) isn't contiguous, which forces {cost}"
    if copy.category == "result":
        return f"axis order of the result forces {cost}; take it as {_spelled(plan, copy.labels)} if you can"
    return f"an intermediate is copied into another order ({copy.why}), {cost}"


def _about_native(plan: Plan, category: str, reason: str) -> str:
    name = plan.target.backend
    advice = {
        "dtype": "; convert the operands to a floating-point dtype that has a matrix product, if their values allow it",
        "mixed": "; convert one of them",
        "array": "; give plain arrays, if you can",
    }.get(category, "")
    return f"goes to the einsum of {name}: {reason}{advice}"


def _order(labels: str, strides: tuple[int, ...]) -> str:
    """The axes as they lie in memory, the outermost first."""
    places = sorted(range(len(labels)), key=lambda at: -abs(strides[at]))
    return "".join(labels[at] for at in places)


def _spelled(plan: Plan, labels: str) -> str:
    return " ".join(plan.subscripts.spelling(label) for label in labels)
