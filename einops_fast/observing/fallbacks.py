"""Why a plan isn't all fast calls on operands as they lie: copies and native steps, each with a category.

The categories are a fixed list, so that they can be counted; the reason beside one is for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from sys import maxsize
from typing import Any

from einops_fast.planning.cost import ITEM_SIZES, copy_seconds
from einops_fast.planning.plan import Plan
from einops_fast.planning.steps import Arrange, Fused, Gemm, Native, Step, View

CATEGORIES = {
    "copy": "an operand is copied into another layout",
    "result": "the result is copied into another layout",
    "intermediate": "an intermediate is copied into another layout",
    "dtype": "the dtype has no fast matrix product",
    "mixed": "the operands are of two dtypes",
    "autocast": "autocast converts the operands",
    "array": "an operand is of a type, or a layout, that is left to its framework",
    "loops": "the framework's own loops are predicted to be fastest",
    "native": "a patched call is left to the framework's own einsum",
}
"""What can be the matter."""

_BY_WORDS = {"two dtypes": "mixed", "no GEMM": "dtype", "autocast": "autocast", "its loops": "loops"}
"""Categories by words in the reason of a native step."""

_INSIDE = maxsize
"""The slot of an array that only the calls of one step see."""


@dataclass(frozen=True)
class Copy:
    """An array that a plan copies."""

    category: str  # whose it is
    slot: int  # the array's; operands are slots 0, 1, …
    labels: str  # its axes as they are
    wanted: str  # its axes in the order in which they would have to lie
    bytes: int  # that are written
    seconds: float  # that this takes, as predicted
    why: str  # in words


def copies(plan: Plan, runs: Sequence[Callable[..., Any]] = ()) -> Iterator[Copy]:
    """Every array that the plan copies, in the order of its steps.

    Args:
        plan: what is run.
        runs: what each step became. Where a step may be run by a kernel or by library calls, they tell which it was;
            without them, it is taken to be the kernel, which copies nothing.
    """
    labels = list(plan.subscripts.inputs)
    for at, step in enumerate(plan.steps):
        if isinstance(step, Fused) and at < len(runs) and _by_library(runs[at]):
            yield from _of_library(plan, step, labels)
        result = at == len(plan.steps) - 1 and isinstance(step, View)
        for slot, how in _arranged(step):
            if how.moves:
                yield _copy(plan, slot, labels[slot], how, result=result)
        labels.append(step.labels)


def _of_library(plan: Plan, step: Fused, labels: Sequence[str]) -> Iterator[Copy]:
    """The copies of the calls that run a step: they count slots of their own, the arrays that the step reads first."""
    slots = dict(enumerate(step.reads))
    own = [labels[slot] for slot in step.reads]
    for call in step.library:
        for read, how in _arranged(call):
            if how.moves:
                yield _copy(plan, slots.get(read, _INSIDE), own[read], how)
        own.append(call.labels)


def _arranged(step: Step) -> list[tuple[int, Arrange]]:
    """The slots that a step may have to copy, and how it reads them."""
    if isinstance(step, Gemm):
        return list(zip(step.reads, (step.left, step.right), strict=True))
    return [(step.reads[0], step.how)] if isinstance(step, View) else []


def _by_library(run: Callable[..., Any]) -> bool:
    """Whether library calls run a step for which there are kernels too."""
    if not hasattr(run, "chosen"):
        return True  # too small for a choice
    return run.chosen is not None and str(run.chosen.name).startswith("library")


def native_steps(plan: Plan) -> Iterator[tuple[str, str]]:
    """For every step that is the framework's own einsum, the category and the reason."""
    for step in plan.steps:
        if isinstance(step, Native):
            yield category(step.reason), step.reason


def category(reason: str) -> str:
    """The category of the reason of a :class:`~einops_fast.planning.steps.Native` step."""
    return next((found for words, found in _BY_WORDS.items() if words in reason), "array")


def _copy(plan: Plan, slot: int, labels: str, how: Arrange, *, result: bool = False) -> Copy:
    operand = slot < len(plan.operands)
    whose = "copy" if operand else "result" if result else "intermediate"
    wanted = labels if how.perm is None else "".join(labels[axis] for axis in how.perm)
    elements = prod(plan.sizes[label] for label in labels)
    dtype, on = plan.numerics.compute, plan.target.ceilings
    seconds = copy_seconds(elements, False, dtype, on)
    return Copy(whose, slot, labels, wanted, ITEM_SIZES.get(dtype, 8) * elements, seconds, how.moves)
