"""Why a plan isn't all fast calls on operands as they lie: copies and native steps, each with a category.

The categories are a fixed list, so that they can be counted; the reason beside one is for people.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from einops_fast.cost import ITEM_SIZES, copy_seconds
from einops_fast.plan import Plan
from einops_fast.steps import Arrange, Gemm, Native, View

__all__ = ["CATEGORIES", "Copy", "category", "copies", "native_steps"]

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


@dataclass(frozen=True)
class Copy:
    """An array that a plan copies.

    Attributes:
        category: whose it is.
        slot: the array's; operands are slots 0, 1, …
        labels: its axes as they are.
        wanted: its axes in the order in which they would have to lie.
        bytes: that are written.
        seconds: that this takes, as predicted.
        why: in words.
    """

    category: str
    slot: int
    labels: str
    wanted: str
    bytes: int
    seconds: float
    why: str


def copies(plan: Plan) -> Iterator[Copy]:
    """Every array that the plan copies, in the order of its steps."""
    count = len(plan.operands)
    labels = list(plan.subscripts.inputs)
    for at, step in enumerate(plan.steps):
        last = at == len(plan.steps) - 1
        ways: list[tuple[int, Arrange]] = []
        if isinstance(step, Gemm):
            ways = list(zip(step.reads, (step.left, step.right), strict=True))
        elif isinstance(step, View):
            ways = [(step.reads[0], step.how)]
        for slot, how in ways:
            if how.moves:
                whose = "copy" if slot < count else "result" if last and isinstance(step, View) else "intermediate"
                yield _copy(plan, whose, slot, labels[slot], how)
        labels.append(step.labels)


def native_steps(plan: Plan) -> Iterator[tuple[str, str]]:
    """For every step that is the framework's own einsum, the category and the reason."""
    for step in plan.steps:
        if isinstance(step, Native):
            yield category(step.reason), step.reason


def category(reason: str) -> str:
    """The category of the reason of a :class:`~einops_fast.steps.Native` step.

    >>> category('int64 has no GEMM in BLAS')
    'dtype'
    """
    for words, found in (
        ("two dtypes", "mixed"),
        ("no GEMM", "dtype"),
        ("autocast", "autocast"),
        ("its loops", "loops"),
    ):
        if words in reason:
            return found
    return "array"


def _copy(plan: Plan, whose: str, slot: int, labels: str, how: Arrange) -> Copy:
    wanted = labels if how.perm is None else "".join(labels[axis] for axis in how.perm)
    elements = 1
    for label in labels:
        elements *= plan.sizes[label]
    dtype, on = plan.numerics.compute, plan.target.ceilings
    seconds = copy_seconds(elements, False, dtype, on)
    size = ITEM_SIZES.get(dtype, 8) * elements
    return Copy(whose, slot, labels, wanted, size, seconds, how.moves)
