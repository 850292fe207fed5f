"""How a nest of loops is cut into tiles: pure data, read by the kernels while they are compiled.

A kernel works on one tile of the result at a time. Along each role (rows, columns, contracted axes, …) a tile
spans one or two *groups*: a group is a list of axes counted through as one (the last is the fastest), of which
a tile takes ``block`` neighbours. Two groups are needed where two arrays are contiguous along different axes of
one role: the tile is then a rectangle with a run along each, as in GETT (Springer and Bientinesi, 2018). All
other axes are *outer*: a tile has one index of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

LANES = 32
"""Threads of a warp."""


@dataclass(frozen=True)
class Axis:
    """One loop: its extent, and its stride in elements in every array that the kernel sees (0: not there)."""

    size: int
    strides: tuple[int, ...]

    def encloses(self, inner: Axis, array: int) -> bool:
        """Whether an array steps through this loop and the one inside it as through one."""
        return self.strides[array] == inner.strides[array] * inner.size

    def joined(self, inner: Sequence[Axis], array: int) -> tuple[Axis, ...]:
        """This loop and those inside it, as few as can be for one array; strides in others are no longer right.

        >>> Axis(4, (12, 5)).joined([Axis(3, (4, 1))], 0)
        (Axis(size=12, strides=(4, 1)),)
        """
        found = [self]
        for axis in inner:
            if found[-1].encloses(axis, array):
                found[-1] = Axis(found[-1].size * axis.size, axis.strides)
            else:
                found.append(axis)
        return tuple(found)


@dataclass(frozen=True)
class Group:
    """Axes counted through as one, the last the fastest; a tile takes ``block`` neighbours (a power of two).

    Where a tile has two parts, tiles begin every ``period`` positions, and this part ``start`` later.
    """

    block: int
    axes: tuple[Axis, ...]
    period: int = 0
    start: int = 0

    @cached_property
    def extent(self) -> int:
        return prod(axis.size for axis in self.axes)

    @cached_property
    def step(self) -> int:
        """From one tile to the next."""
        return self.period or self.block

    @cached_property
    def tiles(self) -> int:
        return -(-self.extent // self.step)

    @cached_property
    def even(self) -> bool:
        """Whether no tile reaches beyond the extent."""
        return self.extent % self.step == 0

    @cached_property
    def counts(self) -> tuple[tuple[Axis, int], ...]:
        """How many of each axis are in a block, the fastest first."""
        found = []
        left = min(self.block, self.extent)
        for axis in reversed(self.axes):
            if axis.size > 1:
                count = min(axis.size, left)
                left = -(-left // count)
                found.append((axis, count))
        return tuple(found)

    def missing(self, array: int) -> bool:
        """Whether the array has none of these axes."""
        return all(axis.size == 1 or axis.strides[array] == 0 for axis in self.axes)


NOTHING = Group(1, ())
"""A group that isn't needed."""


@dataclass(frozen=True)
class Role:
    """All axes of one role: ``outer`` ones, and the groups that a tile spans, the last the fastest."""

    outer: tuple[Axis, ...]
    groups: tuple[Group, ...]

    @cached_property
    def block(self) -> int:
        """Extent of a tile, or of its part, along this role."""
        return prod(group.block for group in self.groups)

    @cached_property
    def width(self) -> int:
        """Extent of a whole tile."""
        return prod(group.step for group in self.groups)

    @cached_property
    def tiles(self) -> int:
        return prod(axis.size for axis in self.outer) * prod(group.tiles for group in self.groups)

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        """All of them."""
        return self.outer + tuple(axis for group in self.groups for axis in group.axes)

    @cached_property
    def extent(self) -> int:
        """Elements along this role."""
        return prod(axis.size for axis in self.outer) * prod(group.extent for group in self.groups)

    @cached_property
    def padded(self) -> int:
        """Extent of all tiles together."""
        return self.tiles * self.width


def merge_axes(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The same loops with neighbours joined where every array steps evenly through both; size 1 goes.

    >>> merge_axes([Axis(4, (12, 0)), Axis(3, (4, 0)), Axis(5, (1, 1))])
    (Axis(size=12, strides=(4, 0)), Axis(size=5, strides=(1, 1)))
    """
    merged: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and all(merged[-1].encloses(axis, array) for array in range(len(axis.strides))):
            merged[-1] = Axis(merged[-1].size * axis.size, axis.strides)
        else:
            merged.append(axis)
    return tuple(merged)


def by_stride(axes: Iterable[Axis], array: int) -> list[Axis]:
    """The axes, slowest first as one array has them; those that it lacks come first."""
    return sorted(axes, key=lambda axis: -abs(axis.strides[array]) if axis.strides[array] else -(1 << 62))


def linear_role(axes: Sequence[Axis], block: int, beyond: float = 1.07) -> Role:
    """All axes counted through as one, but for those that a tile doesn't reach.

    Tiles may reach over the end of those that are left to ``beyond`` times their extent.
    """
    outer: list[Axis] = []
    inner = list(axes)
    while len(inner) > 1:
        rest = prod(axis.size for axis in inner[1:])
        # Beyond a few tiles, what falls outside the last one costs less than counting further.
        if rest < block or -(-rest // block) * block > beyond * rest:
            break
        outer.append(inner.pop(0))
    return Role(tuple(outer), (NOTHING, Group(block, tuple(inner))))


def needs_64_bits(axes: Sequence[Axis], extents: Iterable[int]) -> bool:
    """Whether an offset in one of the arrays, or a position within an extent, may not fit in 32 bits.

    Tiles at the edge reach beyond the extents, so a bit is kept for that.
    """
    arrays = range(len(axes[0].strides) if axes else 0)
    reaches = (sum((axis.size - 1) * abs(axis.strides[array]) for axis in axes) for array in arrays)
    return max(*extents, *reaches) >= 1 << 30


def power_of_two(extent: int) -> int:
    """The least power of two that is not below ``extent``.

    >>> [power_of_two(extent) for extent in (1, 5, 64)]
    [1, 8, 64]
    """
    return 1 << max(extent - 1, 0).bit_length()


def reach(axes: Iterable[Axis], array: int) -> int:
    """How many places in memory an array takes, the gaps between its rows included.

    >>> reach([Axis(3, (8,)), Axis(5, (1,))], 0)
    21
    """
    return 1 + sum((axis.size - 1) * axis.strides[array] for axis in axes)
