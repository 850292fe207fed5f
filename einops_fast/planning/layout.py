"""Axes in memory: which of them can be seen as one, and what a GEMM can read where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from math import prod
from typing import NamedTuple

from einops_fast.planning.steps import Arrange

__all__ = [
    "VECTOR",
    "Axis",
    "Strides",
    "Term",
    "arranged",
    "as_one",
    "axes_of",
    "by_stride",
    "compact_strides",
    "contiguous_in_order",
    "contiguous_strides",
    "dense_strides",
    "padded_strides",
    "reach",
    "readable_by_gemm",
]

Strides = tuple[int, ...]
"""Of an array, in elements; or its shape."""

VECTOR = 16
"""Bytes that a thread of a GPU loads at once where strides allow it."""

_MOST_EMPTY = 1.5
"""How many times as long as a row its place may be."""


class Axis(NamedTuple):
    """One axis of an array.

    Attributes:
        label: canonical letter; empty for an axis of size 1 that carries no name any more.
        size: extent.
        stride: distance between neighbours, in elements; 0 where the array was expanded.
        position: index of the axis in the array.
    """

    label: str
    size: int
    stride: int
    position: int


def axes_of(labels: Iterable[str], shape: Iterable[int], strides: Iterable[int]) -> tuple[Axis, ...]:
    """Return the axes of an array, in the order of its shape."""
    return tuple(map(_new_axis, zip(labels, shape, strides, count(), strict=False)))


_new_axis: Callable[[tuple[str, int, int, int]], Axis] = partial(tuple.__new__, Axis)
"""Makes an axis of a tuple in C."""


@dataclass(eq=False)
class Term:
    """An array in a plan. It is never changed.

    Attributes:
        slot: the slot that holds it.
        axes: its axes in the order of the array's shape.
        labels: the labels of the axes.
        shape: the extents of the axes.
        size: number of elements.
        strides: distance between neighbours by label, in elements.
    """

    slot: int
    axes: tuple[Axis, ...]
    labels: str = field(init=False)
    shape: tuple[int, ...] = field(init=False)
    size: int = field(init=False)
    strides: dict[str, int] = field(init=False)
    _by_label: dict[str, Axis] = field(init=False)

    def __post_init__(self) -> None:
        axes = self.axes
        self._by_label = {axis.label: axis for axis in axes}
        self.strides = {axis.label: axis.stride for axis in axes}
        self.labels = "".join([axis.label for axis in axes])
        self.shape = shape = tuple([axis.size for axis in axes])
        self.size = prod(shape)

    @property
    def unnamed(self) -> tuple[int, ...]:
        """Positions of the axes without a label."""
        if "" not in self._by_label:
            return ()
        return tuple([axis.position for axis in self.axes if not axis.label])

    @property
    def fastest(self) -> str:
        """Label of the axis whose neighbours are next to each other in memory; empty if there is none."""
        for axis in self.axes:
            if axis.stride == 1 and axis.size > 1:
                return axis.label
        return ""

    def pick(self, labels: Iterable[str]) -> list[Axis]:
        """The axes with these labels, in the order of ``labels``."""
        by_label = self._by_label
        return [by_label[label] for label in labels]


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-ordered array.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    return contiguous_in_order(shape, range(len(shape)))


def contiguous_in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of an array without gaps, the last axis of ``order`` being the fastest.

    >>> contiguous_in_order((2, 3, 4), (2, 0, 1))
    (3, 1, 6)
    """
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis] or 1
    return tuple(strides)


def dense_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps and in the same order of axes; expanded axes become the slowest.

    >>> dense_strides((2, 3, 4), (0, 1, 8))
    (12, 1, 3)
    """
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if stride != step:
            break
        step *= size
    else:
        return tuple(strides)  # C order, as most are
    return contiguous_in_order(shape, sorted(range(len(shape)), key=lambda at: (strides[at] != 0, -strides[at])))


def padded_strides(shape: Sequence[int], joined: int, item: int) -> tuple[int, ...]:
    """C order, but rows begin where a thread can load at once, unless that makes the array much larger.

    >>> padded_strides((4, 31), 1, 2), padded_strides((4, 3), 1, 2)
    ((32, 1), (3, 1))

    Args:
        shape: of the array.
        joined: how many of the last axes are a row.
        item: bytes of an element.
    """
    whole = VECTOR // item
    row = prod(shape[-joined:])
    padded = -(-row // whole) * whole
    outer = contiguous_strides([*shape[:-joined], padded if padded <= _MOST_EMPTY * row else row])[:-1]
    return *outer, *contiguous_strides(shape[-joined:])


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory an array takes, from its first one to its last; no stride is negative.

    >>> reach((2, 3), (8, 1))
    11
    """
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def compact_strides(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides of a copy that keeps the memory order of the original but has no gaps (NumPy's order ``'K'``).

    >>> compact_strides((2, 3), (1, 4))
    (1, 2)
    """
    return contiguous_in_order(shape, sorted(range(len(shape)), key=lambda at: -abs(strides[at])))


def arranged(perm: tuple[int, ...], sizes: Sequence[int], shape: tuple[int, ...], moves: str = "") -> Arrange:
    """An array of these sizes permuted, then reshaped; what changes nothing is left out.

    >>> arranged((0, 1), (2, 3), (6,))
    Arrange(perm=None, shape=(6,), moves='')
    """
    permuted = tuple([sizes[at] for at in perm])
    identity = perm == tuple(range(len(perm)))
    return Arrange(None if identity else perm, None if shape == permuted else shape, moves)


def by_stride(axes: Sequence[Axis]) -> list[Axis]:
    """The axes as they lie in memory, outermost first."""
    if len(axes) < 2:
        return list(axes)
    return sorted(axes, key=lambda axis: (-axis.stride, -axis.size))


def as_one(axes: Sequence[Axis]) -> tuple[int, int | None]:
    """Return extent and stride of the single axis that these axes form in this order; ``None`` if they form none.

    Axes of size 1 merge with anything. No axes at all, or only such, give stride 1.

    >>> as_one([Axis("b", 4, 12, 0), Axis("i", 3, 4, 1)])
    (12, 4)
    """
    size, stride, reach, merges = 1, None, 0, True
    for axis in reversed(axes):
        if axis.size != 1:
            if stride is None:
                stride = axis.stride
            elif axis.stride != reach:
                merges = False
            size, reach = size * axis.size, axis.stride * axis.size
    if not merges:
        return size, None
    return size, 1 if stride is None else stride


def readable_by_gemm(rows: int, row_stride: int, columns: int, column_stride: int) -> bool:
    """Whether BLAS takes a matrix of these extents and strides as it lies: one stride 1, the other no overlap."""
    if rows == 1 and columns == 1:
        return True
    if rows == 1:
        return column_stride == 1
    if columns == 1:
        return row_stride == 1
    return (column_stride == 1 and row_stride >= columns) or (row_stride == 1 and column_stride >= rows)
