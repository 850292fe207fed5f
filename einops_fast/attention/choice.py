"""Which implementation computes an attention: the first allowed one, or on a GPU the fastest that doesn't refuse it."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from einops_fast.attention.registry import Implementation, allowed_names, candidates, none_left
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

if TYPE_CHECKING:
    from einops_fast.attention.prepare import Plan

_NO_REFUSALS = (
    "out of memory",
    "allocate memory",
    "alloc_failed",
    "cuda error",
    "cuda driver error",
    "triton error",
    "execution_failed",
    "internal_error",
)
"""Parts of messages of errors that come of too little memory, or of something that was launched."""

refusals: dict[Hashable, dict[str, str]] = emptied_with_plans({})
"""By problem, the implementations that refused it when they were called, and their reasons."""


@dataclass(frozen=True)
class Undecided:
    """Implementations of which calls find out, while the first one computes them, which one is the fastest."""

    ways: Sequence[Implementation]  # the implementations; the first one doesn't compile anything
    predicted: Mapping[str, float]  # predicted seconds by name
    key: Mapping[str, Any]  # what the choice is kept by
    kind: Hashable  # what problems have in common that differ in sizes only
    chosen: Implementation | None = None  # the implementation that was chosen earlier


@dataclass(frozen=True)
class Decision:
    """What was chosen, and why."""

    implementation: Implementation  # what was chosen
    why: str  # in a few words
    answers: Sequence[tuple[str, Implementation | str]]  # what each implementation said, itself if it can
    predicted: Mapping[str, float] = field(default_factory=dict)  # predicted seconds by name
    measured: Mapping[str, float] = field(default_factory=dict)  # measured seconds by name, where there are any
    final: bool = True  # whether it holds for all later calls too
    undecided: Undecided | None = None  # what later calls choose from, if they do


def choose(
    plan: Plan, mode: str, arrays: Sequence[Any] | None = None, quiet: bool = False, recorded: bool = False
) -> Decision:
    """Choose an implementation for calls of such arrays; an error lists the reasons of all that can't do them."""
    spec = plan.spec
    if arrays is None or quiet or recorded:
        answers = candidates(spec, recorded=recorded)
    else:
        refused = refusals.get(spec, {})
        answers = [(name, refused.get(name) or answer) for name, answer in candidates(spec, plan.inputs(arrays))]
    able = [answer for _, answer in answers if isinstance(answer, Implementation)]
    if not able:
        raise none_left(answers)
    if allowed_names() is not None:
        return Decision(able[0], "the first that attention_backend allows and that can", answers)
    if recorded:
        return Decision(able[0], "the first that is recorded for all sizes", answers, final=False)
    if not (spec.device.startswith("cuda") and spec.framework == "torch"):
        return Decision(able[0], "the first that can; nothing is measured on a CPU", answers)
    if quiet:
        best = able[0]
        for way in able[1:]:  # not max(), which can't be traced with a key
            if way.efficiency_for(spec) > best.efficiency_for(spec):
                best = way
        return Decision(best, "the one that is the fastest where nothing is in its way", answers, final=False)
    # Imported when it is needed: it reads the disk, and there may be no GPU.
    from einops_fast.attention.measured import choose_by_time
    from einops_fast.backends.torch.attention.implementations.clock import TorchClock

    return choose_by_time(answers, plan, mode, arrays, TorchClock(spec.device))


def is_refusal(error: BaseException) -> bool:
    """Return whether a library says with an error that it can't do a call, and hasn't begun with it."""
    if not isinstance(error, RuntimeError) or isinstance(error, MemoryError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause).lower()
        if any(part in text for part in _NO_REFUSALS):
            return False
        cause = cause.__cause__
    return True


def remember_refusal(problem: Hashable, name: str, error: BaseException) -> None:
    """Leave an implementation out of the choice for a problem."""
    reason = f"it refused when it was called: {str(error).strip().partition(chr(10))[0]}"
    keep(refusals, problem, {**refusals.get(problem, {}), name: reason})


def warn_of_refusals(problem: Hashable, instead: str) -> None:
    """Warn that an implementation computes a problem in place of those that refused it."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refusals.get(problem, {}).items())
    warnings.warn(f"attention by {reasons}. Such calls go to {instead}", RuntimeWarning, stacklevel=5)
