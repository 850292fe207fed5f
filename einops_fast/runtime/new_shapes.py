"""Calls whose shapes haven't come before: small ones go to the framework's own einsum, and no call waits for its plan.

A plan takes longer to make than a small einsum takes to run, and pays where its shapes come back. So small operands go
to the framework when their shapes come for the first time, and are planned when these come for the second time. Large
operands are planned at once, as are all operands where somebody observes or traces the call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

from einops_fast.backends import Backend
from einops_fast.observing.observers import observed
from einops_fast.patching.small_calls import read_alike
from einops_fast.planning.notation import Subscripts, bind_sizes
from einops_fast.runtime.plan_cache import LIMIT, emptied_with_plans, keep

__all__ = ["AT_SECOND_CALL", "USUAL", "NewShapes", "by_question", "came_with", "native_first"]

AT_SECOND_CALL = True
"""Whether the plan of small operands is made at the second call with their shapes. Tests of plans set it to False."""

USUAL = "K", "safe", "auto"
"""Order, casting and optimizer of a call that may go to the framework first."""

_FEW = 1 << 16
"""Multiply-adds, without intermediates, up to which more than two operands go to the framework first."""


class NewShapes:
    """The shapes that an equation was called with, by type of its operands.

    Attributes:
        changing: backend and shapes, where one type came with several shapes: then a call is looked up here first.
    """

    def __init__(self) -> None:
        self.changing: dict[type, tuple[Backend, set[Hashable]]] = {}
        self._seen: dict[type, set[Hashable]] = {}

    def native_for(self, operands: Sequence[Any]) -> Callable[..., Any] | None:
        """Return the framework's einsum for small operands whose type came with several shapes, but not with these."""
        known = self.changing.get(type(operands[0]))
        if known is None:
            return None
        backend, seen = known
        return backend.at_once(operands) if _is_new(_shapes(operands), seen) else None

    def native_first(
        self, backend: Backend, operands: Sequence[Any], subscripts: Subscripts, as_given: bool
    ) -> Callable[..., Any] | None:
        """Return the framework's einsum for small operands whose shapes are new; it takes letters.

        Args:
            backend: that of the operands.
            operands: arrays without a plan.
            subscripts: the equation.
            as_given: as for :func:`native_first`.
        """
        kind, shapes = type(operands[0]), _shapes(operands)
        seen = self._seen.setdefault(kind, set())
        if not _is_new(shapes, seen):
            return None
        if as_given and len(seen) == 2 and backend.at_once(operands) is not None:
            self.changing[kind] = backend, seen
        full = prod(bind_sizes(subscripts, [tuple(operand.shape) for operand in operands]).values())
        if not AT_SECOND_CALL or (len(operands) > 2 and full > _FEW):
            return None
        return backend.at_once(operands, full)


def _is_new(shapes: Hashable, seen: set[Hashable]) -> bool:
    """Add shapes to those that came before, and return whether they hadn't come."""
    if shapes in seen:
        return False
    if len(seen) >= LIMIT:
        seen.clear()
    seen.add(shapes)
    return True


def _shapes(operands: Sequence[Any]) -> Hashable:
    if len(operands) == 2:  # in less time than any number of them
        return operands[0].shape, operands[1].shape
    return tuple([each.shape for each in operands])


by_question: dict[Hashable, NewShapes] = emptied_with_plans({})
"""By all of a call but its operands."""


def came_with(question: Hashable) -> NewShapes:
    """Return the shapes that all of a call but its operands came with, and keep them from the first call on."""
    shapes = by_question.get(question)
    if shapes is None:
        shapes = NewShapes()
        keep(by_question, question, shapes)
    return shapes


def native_first(
    question: tuple[Hashable, ...],
    subscripts: Subscripts,
    backend: Backend,
    operands: Sequence[Any],
    as_given: bool = False,
) -> Callable[..., Any] | None:
    """Return the framework's einsum, which takes letters, for a call that no plan was made for; ``None``: plan it.

    Args:
        question: all of the call but its operands.
        subscripts: the equation.
        backend: that of the operands.
        operands: arrays of it.
        as_given: whether the framework reads the equation as it was given, as the first part of the question.

    Raises:
        ShapeError: an axis has two sizes.
    """
    if observed():  # an observer sees plans
        return None
    shapes = came_with(question)
    if as_given and backend.loops is not None:
        keep(read_alike, str(question[0]), (type(operands[0]), backend.loops))
    if not subscripts.equation.isascii():
        return None
    return shapes.native_first(backend, operands, subscripts, as_given)
