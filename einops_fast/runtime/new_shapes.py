"""Calls whose shapes change on and on: operands of a new shape go to the framework's own einsum at once.

A plan takes longer to make than a small einsum takes to run, and pays where its shapes come back. So the first two
shapes of an equation are planned when they come; of later ones each goes to the framework first, and is planned when it
comes for the second time. Large operands are planned at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from einops_fast.backends import Backend
from einops_fast.observing.observers import observed
from einops_fast.patching.small_calls import read_alike
from einops_fast.planning.notation import Subscripts
from einops_fast.runtime.plan_cache import LIMIT, emptied_with_plans, keep

__all__ = ["NewShapes", "by_question", "watch"]


class NewShapes:
    """The shapes that an equation was called with, for each type of operands whose shapes have changed."""

    def __init__(self) -> None:
        self._first: dict[type, Hashable] = {}
        self._seen: dict[type, tuple[Backend, set[Hashable]]] = {}

    def native_for(self, operands: Sequence[Any]) -> Callable[..., Any] | None:
        """Return the framework's einsum where these have a shape that hasn't come before, and are small."""
        first = operands[0]
        known = self._seen.get(type(first))
        if known is None:
            return None
        backend, seen = known
        shapes = _shapes(operands)
        if shapes in seen:
            return None
        if len(seen) >= LIMIT:
            seen.clear()
        seen.add(shapes)
        return backend.at_once(operands)

    def watch(self, backend: Backend, operands: Sequence[Any]) -> None:
        """Take notice of a shape that is planned: from the second one on, new shapes go to the framework first."""
        kind, shapes = type(operands[0]), _shapes(operands)
        first = self._first.setdefault(kind, shapes)
        # Other strides of the first shape are planned too, but no other shape.
        if shapes != first and kind not in self._seen and backend.at_once(operands) is not None:
            self._seen[kind] = backend, {first, shapes}


def _shapes(operands: Sequence[Any]) -> Hashable:
    if len(operands) == 2:  # in less time than any number of them
        return operands[0].shape, operands[1].shape
    return tuple([each.shape for each in operands])


by_question: dict[Hashable, NewShapes] = emptied_with_plans({})
"""By all of a call but its operands."""


def watch(question: tuple[Hashable, ...], subscripts: Subscripts, backend: Backend, operands: Sequence[Any]) -> None:
    """Take notice of a shape that is planned.

    Args:
        question: all of the call but its operands, of which the first is the equation as it was given.
        subscripts: the equation. One that the framework can't read, such as one of words, is planned for each shape.
        backend: that of the operands.
        operands: arrays of it.
    """
    # An observer sees plans.
    if subscripts.in_letters and not observed():
        shapes = by_question.get(question)
        if shapes is None:
            shapes = NewShapes()
            keep(by_question, question, shapes)
        shapes.watch(backend, operands)
        if backend.loops is not None and isinstance(question[0], str):
            keep(read_alike, question[0], (type(operands[0]), backend.loops))
