"""Operands that aren't contiguous: turned, expanded, or slices of a larger array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.profiles.cases import Case, Shape
from einops_fast.profiles.frameworks import Framework

__all__ = ["SLICED", "laid_out", "stored_shapes"]

SLICED = "_"
"""Stands for an axis of two in a layout: the operand is the second of both, so it starts inside its array."""


def stored_shapes(case: Case) -> list[Shape]:
    """For each operand the shape of the array in memory: its axes from the outermost to the innermost."""
    return [
        tuple(extent for _, extent in _stored(term, shape, order))
        for term, shape, order in zip(case.inputs, case.shapes, case.orders, strict=True)
    ]


def laid_out(case: Case, framework: Framework, stored: Sequence[Any]) -> list[Any]:
    """The operands as views of arrays of :func:`stored_shapes`."""
    return [
        array if order == term else _view(framework, array, term, shape, order)
        for array, term, shape, order in zip(stored, case.inputs, case.shapes, case.orders, strict=True)
    ]


def _stored(term: str, shape: Shape, order: str) -> list[tuple[str, int]]:
    """The axes of the array in memory by letter; one that is to be expanded has one element, and comes last."""
    extents = {**dict(zip(term, shape, strict=True)), SLICED: 2}
    return [(letter, extents[letter]) for letter in order] + [(letter, 1) for letter in term if letter not in order]


def _view(framework: Framework, array: Any, term: str, shape: Shape, order: str) -> Any:
    letters = [letter for letter, _ in _stored(term, shape, order)]
    picked = array[tuple(1 if letter == SLICED else slice(None) for letter in letters)]
    left = [letter for letter in letters if letter != SLICED]
    return framework.view(picked, tuple(map(left.index, term)), shape)
