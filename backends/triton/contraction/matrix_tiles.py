"""Tiles of matrices in memory: which axes a tile extends along, and how well it is loaded and stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import gcd

from einops_fast.backends.triton.device.tiling import Axis, Group, Role, by_stride, linear_role, power_of_two
from einops_fast.planning.layout import VECTOR

__all__ = [
    "BIAS",
    "FACTOR",
    "IN_PIECES",
    "LEFT",
    "OUT",
    "RIGHT",
    "SCATTERED",
    "SECTOR",
    "SHARED",
    "fastest",
    "free_role",
    "loaded_bytes",
    "run_block",
    "run_length",
    "scattered",
]

LEFT, RIGHT, OUT, FACTOR = range(4)
"""Where an array's strides are in an axis; the last, where the left operand is the product of two arrays."""

BIAS = FACTOR
"""The same of a bias in the epilogue of a product, which has no such factor."""

SHARED = 224 << 10
"""Bytes of shared memory that a program may use."""

# How much longer than its traffic and arithmetic a kernel takes, as measured on an H200:
SCATTERED = 1.6
"""where the result is regrouped before it is stored;"""
IN_PIECES = {16: 1.0, 8: 1.15, 4: 1.6, 2: 3.0, 1: 3.0}
"""where strides let a thread load no more than so many bytes of an operand at once."""

SECTOR = 32
"""Bytes that caches read and write at least; so many neighbours a tile takes along a second contiguous axis."""


def fastest(axes: Sequence[Axis], array: int) -> Axis | None:
    """The axis along which the array is contiguous, if it is one of these."""
    return next((axis for axis in axes if abs(axis.strides[array]) == 1), None)


def free_role(axes: tuple[Axis, ...], operand: int, block: int, run: int) -> Role:
    """Rows or columns: contiguous in the operand along one axis, perhaps in the result along another."""
    read, written = fastest(axes, operand), fastest(axes, OUT)
    if read is None and written is None:
        return linear_role(by_stride(axes, OUT), block)
    if read is None or written is None or read == written:
        last = read or written
        rest = [axis for axis in by_stride(axes, operand if read else OUT) if axis is not last]
        return linear_role([*rest, *([last] if last else [])], block)
    # A run along each; what is left of the block goes to the one that is read.
    along = min(run_block(written.size, run), block)
    rest = [axis for axis in by_stride(axes, operand) if axis is not read and axis is not written]
    inner = linear_role([*rest, read], max(block // along, 1))
    return Role(inner.outer, (Group(along, (written,)), inner.groups[1]))


def run_length(item: int) -> int:
    """Elements of so many bytes that a tile takes along a second contiguous axis."""
    return max(SECTOR // item, 8)


def run_block(size: int, run: int) -> int:
    """Neighbours to take of an axis of this size so that few fall outside."""
    if size <= run:
        return power_of_two(size)
    for block in (2 * run, run, run // 2):
        if block >= 8 and -(-size // block) * block <= size * 1.1:
            return block
    return run


def scattered(rows: Role, columns: Role) -> bool:
    """Whether the result is contiguous along an axis that isn't the fastest of its role in a tile."""
    return any(
        role.groups[0].block > 1 and any(abs(axis.strides[OUT]) == 1 for axis in role.groups[0].axes)
        for role in (rows, columns)
    )


def loaded_bytes(batch: Sequence[Axis], roles: Iterable[Sequence[Axis]], array: int, item: int) -> int:
    """How many bytes a thread can load at once: what all strides of the array but the contiguous one divide by.

    Args:
        batch: axes of which a tile has one index.
        roles: all others, by role: a tile has neighbours along all those of one that the array steps through as one.
        array: whose strides.
        item: bytes of an element.
    """
    axes = [*batch]
    for role in roles:
        own = by_stride([axis for axis in role if axis.strides[array]], array)
        axes += own[0].joined(own[1:], array) if own else ()
    strides = [abs(axis.strides[array]) for axis in axes]
    if 1 not in strides[len(batch) :]:
        return item
    return gcd(VECTOR, *(item * stride for stride in strides if stride > 1))
