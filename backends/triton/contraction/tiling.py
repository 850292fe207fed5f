"""What the tilings of a step have in common: records, the roles of a matrix product, and how they are listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from math import gcd, prod
from operator import itemgetter
from typing import TypeVar

from einops_fast.backends.triton.device.tiling import (
    Axis,
    Group,
    Role,
    by_stride,
    linear_role,
    needs_64_bits,
    power_of_two,
)
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.layout import VECTOR

LEFT, RIGHT, OUT, FACTOR = range(4)
"""Where an array's strides are in an axis; the last, where the left operand is the product of two arrays."""

BIAS = FACTOR
"""The same of a bias in the epilogue of a product, which has no such factor."""

SHARED = 224 << 10
"""Bytes of shared memory that a program may use."""

# How much longer than its traffic and arithmetic a kernel takes, as measured on an H200:
SCATTERED = 1.6
"""where the result is regrouped before it is stored;"""
_IN_PIECES = {16: 1.0, 8: 1.15, 4: 1.6, 2: 3.0, 1: 3.0}
"""where strides let a thread load no more than so many bytes of an operand at once."""

SECTOR = 32
"""Bytes that caches read and write at least; so many neighbours a tile takes along a second contiguous axis."""


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """What a kernel is specialised for.

    The summed range is cut into ``split`` parts, each of which writes a result of its own; only a whole sum has an
    ``epilogue``. The next kernel may begin while one that ``leads`` ends; one that ``follows`` may, while that before
    it does.
    """

    split: int = 1
    wide: bool = False
    warps: int = 4
    stages: int = 1
    epilogue: Epilogue | None = None
    leads: bool = False
    follows: bool = False


@dataclass(frozen=True)
class MatrixTiling(Tiling):
    """What a kernel is specialised for whose program computes tiles of rows × columns, for one index of the batch.

    ``swath`` tiles of rows are worked on together, for the L2 cache. Where the result is ``scattered``, its contiguous
    axis is not where the product has it.
    """

    batch: tuple[Axis, ...]
    rows: Role
    columns: Role
    _: KW_ONLY
    swath: int = 8
    scattered: bool = False
    precision: str = "ieee"

    @property
    def batches(self) -> int:
        """Elements of the batch."""
        return prod(axis.size for axis in self.batch)


@dataclass(frozen=True)
class Product:
    """Loops of a product of matrices by role: those of the result, and in ``summed`` the others."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]

    @property
    def summed(self) -> tuple[tuple[Axis, ...], ...]:
        """The axes that two neighbours share, for each two."""
        raise NotImplementedError

    @cached_property
    def roles(self) -> tuple[tuple[Axis, ...], ...]:
        """All axes but those of the batch."""
        return self.rows, self.columns, *self.summed

    @cached_property
    def extents(self) -> tuple[int, ...]:
        """Of batch, rows, columns and each of the summed roles."""
        return tuple([prod([axis.size for axis in role]) for role in (self.batch, *self.roles)])

    @cached_property
    def wide(self) -> bool:
        """Whether an offset, or a position among a role's axes, may not fit in 32 bits."""
        return needs_64_bits(sum(self.roles, ()), self.extents)

    def loaded_bytes(self, array: int, item: int) -> int:
        """How many bytes a thread can load at once: what all strides of the array but the contiguous one divide by.

        A tile has one index of the batch, and neighbours along all axes of a role that the array steps through as one.
        """
        axes = [*self.batch]
        for role in self.roles:
            own = by_stride([axis for axis in role if axis.strides[array]], array)
            axes += own[0].joined(own[1:], array) if own else ()
        strides = [abs(axis.strides[array]) for axis in axes]
        if 1 not in strides[len(self.batch) :]:
            return item
        return gcd(VECTOR, *(item * stride for stride in strides if stride > 1))

    def slowdown(self, item: int) -> float:
        """How many times as long a kernel takes since operands are loaded in pieces."""
        return max(_IN_PIECES[self.loaded_bytes(operand, item)] for operand in (LEFT, RIGHT))


def fastest(axes: Sequence[Axis], array: int) -> Axis | None:
    """The axis along which the array is contiguous, if it is one of these."""
    return next((axis for axis in axes if abs(axis.strides[array]) == 1), None)


def free_role(axes: tuple[Axis, ...], operand: int, block: int, run: int) -> Role:
    """Rows or columns: contiguous in the operand along one axis, perhaps in the result along another."""
    read, written = fastest(axes, operand), fastest(axes, OUT)
    if read is None or written is None or read == written:
        last = read or written
        rest = [axis for axis in by_stride(axes, operand if read else OUT) if axis is not last]
        return linear_role([*rest, *([last] if last else [])], block)
    # A run along each; what is left of the block goes to the one that is read.
    along = min(_run_block(written.size, run), block)
    rest = [axis for axis in by_stride(axes, operand) if axis is not read and axis is not written]
    inner = linear_role([*rest, read], max(block // along, 1))
    return Role(inner.outer, (Group(along, (written,)), inner.groups[1]))


def run_length(item: int) -> int:
    """Elements of so many bytes that a tile takes along a second contiguous axis."""
    return max(SECTOR // item, 8)


def _run_block(size: int, run: int) -> int:
    """Neighbours to take of an axis of this size so that few fall outside."""
    if size <= run:
        return power_of_two(size)
    for block in (2 * run, run, run // 2):
        if block >= 8 and padded(size, block) <= size * 1.1:
            return block
    return run


def scattered(rows: Role, columns: Role) -> bool:
    """Whether the result is contiguous along an axis that isn't the fastest of its role in a tile."""
    return any(
        role.groups[0].block > 1 and any(abs(axis.strides[OUT]) == 1 for axis in role.groups[0].axes)
        for role in (rows, columns)
    )


T = TypeVar("T", bound=Tiling)


def listed(found: Iterable[T], seconds: Callable[[T], float]) -> list[tuple[float, T]]:
    """Return tilings, some maybe given twice, with predicted seconds, fastest first."""
    return sorted([(seconds(tiling), tiling) for tiling in dict.fromkeys(found)], key=itemgetter(0))


def padded(extent: int, width: int) -> int:
    """The extent of as many tiles as are needed."""
    return -(-extent // width) * width


def even_parts(steps: int, most: int) -> int:
    """Return into how many parts, at most, steps are cut so that none is empty."""
    return -(-steps // -(-steps // most))


def idle(programs: int, on: Ceilings) -> float:
    """How many times as long programs take as they would if no multiprocessor were idle during the last round."""
    return padded(programs, on.units) / programs
