"""A loop nest: labels for its axes, and what indexes each dimension of a tensor that is read in it.

A dimension is indexed by a tuple of labels, the slowest first, as ``(b h)`` is in einops. It is empty where the
dimension has one element. A label is split in two where a view separates what it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from einops_fast.compiler.nodes import expression


class Label:
    """An axis of a nest."""

    __slots__ = ("at", "parts", "size", "whole")

    def __init__(self, size: Any, whole: bool = False) -> None:
        self.size = size  # its extent, an expression of sympy
        self.parts: tuple[Label, ...] = ()  # what it was split into, the slower part first; empty if it wasn't
        self.at: int | None = None  # the one index that it has, if it stands still
        self.whole = whole  # it can't be split, as a view of one dimension must stay one

    def split(self, outer: Any) -> None:
        """Split it in two, the slower one of ``outer`` elements."""
        self.parts = Label(outer), Label(sympy.cancel(self.size / outer))


Dim = tuple[Label, ...]
Dims = tuple[Dim, ...]


def fresh(shape: Sequence[Any]) -> Dims:
    """Return dimensions with a label each, none where there is one element."""
    sizes = [expression(size) for size in shape]
    return tuple([() if size == 1 else (Label(size),) for size in sizes])


def expanded(dim: Dim) -> Dim:
    """Return the labels of a dimension with those that were split replaced by their parts."""
    if not any(label.parts for label in dim):
        return dim
    return tuple([part for label in dim for part in (expanded(label.parts) if label.parts else (label,))])


def regrouped(dims: Dims, shape: Sequence[Any]) -> Dims | None:
    """Return what indexes a tensor of a shape that holds the same elements in the same order as one of ``dims``.

    Labels are split where that is what it takes, none of those that are :attr:`Label.whole`; ``None`` if that isn't
    enough.
    """
    rest = [label for dim in dims for label in expanded(dim)]
    found: list[Dim] = []
    for size in map(expression, shape):
        group: list[Label] = []
        left = size
        while left != 1:
            if not rest:
                return None
            label = rest.pop(0)
            if not _divides(label.size, left):
                if label.whole or not _divides(left, label.size):
                    return None
                label.split(left)
                label, inner = label.parts
                rest.insert(0, inner)
            group.append(label)
            left = sympy.cancel(left / label.size)
        found.append(tuple(group))
    return None if rest else tuple(found)


def _divides(one: Any, other: Any) -> bool:
    """Return whether an extent divides another one, whatever symbols stand for."""
    ratio = sympy.cancel(other / one)
    return bool(ratio.is_integer) and sympy.fraction(ratio)[1] == 1
