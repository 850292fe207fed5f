"""Axes in memory: which of them can be seen as one, and what a GEMM can read where it lies."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from math import prod
from operator import mul

from einops_fast.planning.steps import AS_IS, Arrange

Strides = tuple[int, ...]
"""Of an array, in elements; or its shape."""

VECTOR = 16
"""Bytes that a thread of a GPU loads at once where strides allow it."""

_POSITIONS = range(1 << 16)
"""The positions of axes: a range, unlike a list of them, costs nothing to go through the first of."""

_MOST_EMPTY = 1.5
"""How many times as long as a row its place may be."""


class Term:
    """An array in a plan. It is never changed.

    Attributes:
        slot: the slot that holds it.
        labels: the labels of its axes; an axis of size 1 may carry no label any more.
        shape: the extents of all axes.
        size: number of elements.
        strides: distance between neighbours by label, in elements; 0 where the array was expanded.
        places: the axis of each label.
        unnamed: the axes without a label.
    """

    __slots__ = ("_in_memory", "_strides", "labels", "places", "shape", "size", "slot", "strides", "unnamed")

    strides: dict[str, int]
    places: dict[str, int]

    def __init__(self, slot: int, labels: Sequence[str], shape: Strides, strides: Strides | None = None) -> None:
        """``strides`` are those of all axes; of C order if none are given."""
        self.slot, self.shape, self.size = slot, shape, prod(shape)
        self.unnamed: tuple[int, ...] = ()
        self._in_memory, self._strides = "", strides
        if type(labels) is str:
            self.labels = labels
            return
        self.labels = "".join(labels)
        self.unnamed = tuple([at for at, label in enumerate(labels) if not label])

    def __getattr__(self, name: str) -> dict[str, int]:
        """Make an attribute that is asked for the first time: small terms are asked for neither."""
        if name not in ("places", "strides"):
            raise AttributeError(name)
        values: Sequence[int] = _POSITIONS[: len(self.shape)]
        if name == "strides":
            values = contiguous_strides(self.shape) if self._strides is None else self._strides
        if self.unnamed:
            values = [value for at, value in enumerate(values) if at not in self.unnamed]
        made = dict(zip(self.labels, values, strict=True))
        setattr(self, name, made)
        return made

    @property
    def layout(self) -> Hashable:
        """All that a step depends on but labels: shape, strides unless in C order, and axes without a label."""
        return (self.shape, self._strides, self.unnamed) if self.unnamed or self._strides else self.shape

    @property
    def in_order(self) -> bool:
        """Whether the array is known to lie in C order, each of its axes with a label."""
        return self._strides is None and not self.unnamed

    @property
    def fastest(self) -> str:
        """Label of the axis whose neighbours are next to each other in memory; empty if there is none."""
        if self.in_order and self.shape[-1:] > (1,):
            return self.labels[-1]
        for label, stride in self.strides.items():
            if stride == 1 and self.shape[self.places[label]] > 1:
                return label
        return ""

    def in_memory(self, labels: str) -> str:
        """The labels as their axes lie in memory, outermost first."""
        if len(labels) < 2:
            return labels
        every = self.labels if self.in_order else self._in_memory
        if not every:
            strides, shape, places = self.strides, self.shape, self.places
            every, given = self.labels, [*strides.values()]
            if len(set(given)) < len(given) or given != sorted(given, reverse=True):
                every = "".join(sorted(every, key=lambda label: (-strides[label], -shape[places[label]])))
            self._in_memory = every
        return every if len(labels) == len(every) else "".join([label for label in every if label in labels])

    def seen(self, labels: str, shape: Strides, moves: str = "") -> Arrange:
        """Return how the array is read with its axes in this order, those without a label first, then reshaped."""
        if self.unnamed:
            places = [self.places[label] for label in labels]
            return arranged((*self.unnamed, *places), self.shape, shape, moves)
        perm, permuted = None, self.shape
        if labels != self.labels:
            perm = tuple([self.labels.index(label) for label in labels])
            permuted = tuple([self.shape[at] for at in perm])
        return Arrange(perm, None if shape == permuted else shape, moves)

    def unlabelled(self, labels: Sequence[str]) -> Term:
        """The same array, of which axes of size 1 carry no label any more."""
        every = [""] * len(self.shape)
        strides = [1] * len(self.shape)
        for label, at in self.places.items():
            every[at], strides[at] = "" if label in labels else label, self.strides[label]
        return Term(self.slot, every, self.shape, tuple(strides))


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a C-ordered array.

    >>> contiguous_strides((2, 3, 4))
    (12, 4, 1)
    """
    if 0 in shape:
        return contiguous_in_order(shape, range(len(shape)))
    return tuple([*accumulate(shape[:0:-1], mul, initial=1)][::-1]) if shape else ()


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

    The last ``joined`` axes are a row, of elements of ``item`` bytes.

    >>> padded_strides((4, 31), 1, 2), padded_strides((4, 3), 1, 2)
    ((32, 1), (3, 1))
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
    identity = perm == tuple(range(len(perm)))
    permuted = tuple(sizes) if identity else tuple([sizes[at] for at in perm])
    if identity and shape == permuted and not moves:
        return AS_IS
    return Arrange(None if identity else perm, None if shape == permuted else shape, moves)


def as_one(labels: str, strides: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[int, int | None]:
    """Return extent and stride of the single axis that these axes form in this order; ``None`` if they form none.

    Axes of size 1 merge with anything. No axes at all, or only such, give stride 1.

    >>> as_one("bi", {"b": 12, "i": 4}, {"b": 4, "i": 3})
    (12, 4)
    """
    if len(labels) < 2:
        size = sizes[labels] if labels else 1
        return size, 1 if size == 1 else strides[labels]
    size, stride, reach, merges = 1, None, 0, True
    for label in reversed(labels):
        extent = sizes[label]
        if extent != 1:
            own = strides[label]
            if stride is None:
                stride = own
            elif own != reach:
                merges = False
            size *= extent
            reach = own * extent
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
