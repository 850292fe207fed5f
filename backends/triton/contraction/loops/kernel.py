"""The loop kernel: products of any number of operands, summed over some axes, in one pass over memory.

Sums, dots, outer and elementwise products, traces and permuted copies are all this: bound by memory, so every
operand is read once, along whichever axis it is contiguous. A tile has four dimensions: two groups of the
result's axes and two of the summed ones. Complex numbers lie in memory as pairs, and are multiplied as such:
a tile is a tuple of one tensor, or of two.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from einops_fast.backends.triton.contraction.tiling import Tiling
from einops_fast.backends.triton.device.indexing import (
    block_inside,
    block_offsets,
    field,
    group_field,
    group_inside,
    may_exceed,
    take_turn,
    told,
)
from einops_fast.backends.triton.device.tiling import Role, reach


@dataclass(frozen=True)
class ReductionTiling(Tiling):
    """Everything that the kernel is specialised for. In an axis, the result's stride follows the operands'.

    Operands that are ``passing`` leave the cache first.
    """

    operands: int
    free: Role
    summed: Role
    passing: tuple[int, ...] = ()
    conjugated: tuple[int, ...] = ()  # operands of complex numbers whose conjugates are multiplied

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.free.tiles, self.split, 1

    @property
    def scattered(self) -> bool:
        """Whether the tile has two runs along the result's axes: not all arrays are contiguous along the same one."""
        return self.free.groups[0].block > 1

    @property
    def block(self) -> int:
        """Products that a program forms at a time."""
        return self.free.block * self.summed.block

    @property
    def reach(self) -> int:
        """How many places in memory the result takes, the gaps between its rows included."""
        return reach(self.free.axes, self.operands)

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        tile = "×".join(str(group.block) for role in (self.free, self.summed) for group in role.groups)
        return f"reduction {tile}, {self.warps} warps, split {self.split}"


@triton.constexpr_function
def _policy(tiling, at):
    """What the cache is told about an operand."""
    return "evict_first" if at in tiling.passing else ""


@triton.constexpr_function
def _conjugates(tiling, at):
    return at in tiling.conjugated


@triton.constexpr_function
def _ragged(tiling):
    """Whether a summed position that doesn't exist may be multiplied with an operand that has no such axis."""
    return any(
        not group.even and any(group.missing(at) for at in range(tiling.operands)) for group in tiling.summed.groups
    )


@triton.jit
def _read(array, place, exists, tiling: tl.constexpr, at: tl.constexpr, acc_type: tl.constexpr, parts: tl.constexpr):
    """A tile of an operand: its numbers, or their real and imaginary parts."""
    policy: tl.constexpr = _policy(tiling, at)
    if parts == 1:
        found = (tl.load(array + place, mask=exists, other=0, eviction_policy=policy).to(acc_type),)
    else:
        pairs = array + (2 * tl.expand_dims(place, 4) + tl.arange(0, 2)[None, None, None, None, :])
        found = tl.split(tl.load(pairs, mask=tl.expand_dims(exists, 4), other=0, eviction_policy=policy).to(acc_type))
        if _conjugates(tiling, at):
            found = (found[0], -found[1])
    return found


@triton.jit
def _times(one, other):
    if len(one) == 1:
        found = (one[0] * other[0],)
    else:
        found = (one[0] * other[0] - one[1] * other[1], one[0] * other[1] + one[1] * other[0])
    return found


@triton.jit
def _summed(total, s0: tl.constexpr, s1: tl.constexpr):
    if s1 > 1:
        total = tl.sum(total, 3, keep_dims=True)
    if s0 > 1:
        total = tl.sum(total, 2, keep_dims=True)
    return total


@triton.jit
def reduce_kernel(arrays, out, numbers, tiling: tl.constexpr, acc_type: tl.constexpr, parts: tl.constexpr):
    """Write the tiles of the result, or of ``split`` partial results one after the other.

    Of complex numbers, which have two ``parts``, arrays are those of their parts.
    """
    free: tl.constexpr = tiling.free
    summed: tl.constexpr = tiling.summed
    split = told(numbers, field(tiling, "split"))
    operands: tl.constexpr = tiling.operands
    take_turn(tiling)
    tile = tl.program_id(0)
    part = tl.program_id(1)
    if tiling.wide:
        # Positions that are counted from these may need 64 bits, too.
        tile = tile.to(tl.int64)
        part = part.to(tl.int64)
    f0: tl.constexpr = group_field(free, 0, "block")
    f1: tl.constexpr = group_field(free, 1, "block")
    s0: tl.constexpr = group_field(summed, 0, "block")
    s1: tl.constexpr = group_field(summed, 1, "block")
    all_steps = told(numbers, field(summed, "tiles"))
    steps = (all_steps + split - 1) // split
    begin = part * steps
    end = min(begin + steps, all_steps)
    real = tl.zeros((f0, f1, s0, s1), acc_type)
    imaginary = tl.zeros((f0, f1, s0, s1), acc_type)
    for step in range(begin, end):
        place = block_offsets(tile, free, step, summed, 0, tiling.wide, numbers)
        exists = block_inside(tile, free, step, summed, 0, numbers)
        product = _read(arrays[0], place, exists, tiling, 0, acc_type, parts)
        for at in tl.static_range(1, operands):
            place = block_offsets(tile, free, step, summed, at, tiling.wide, numbers)
            exists = block_inside(tile, free, step, summed, at, numbers)
            product = _times(product, _read(arrays[at], place, exists, tiling, at, acc_type, parts))
        if _ragged(tiling):
            # Infinity times a position that doesn't exist is nothing.
            counts = group_inside(step, summed, 0, numbers)[:, None] & group_inside(step, summed, 1, numbers)[None, :]
            real += tl.where(counts[None, None, :, :], product[0], 0)
            if parts == 2:
                imaginary += tl.where(counts[None, None, :, :], product[1], 0)
        else:
            real += product[0]
            if parts == 2:
                imaginary += product[1]
    total = _summed(real, s0, s1)
    if may_exceed(tiling.split, 1):
        out += parts * part.to(tl.int64) * told(numbers, field(tiling, "reach"))
    place = block_offsets(tile, free, 0, summed, operands, tiling.wide, numbers)
    exists = block_inside(tile, free, 0, summed, operands, numbers)
    if parts == 2:
        total = tl.join(total, _summed(imaginary, s0, s1))
        place = 2 * tl.expand_dims(place, 4) + tl.arange(0, 2)[None, None, None, None, :]
        exists = tl.expand_dims(exists, 4)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=exists)
