"""Which tiles to try for a memory-bound loop nest: a short list, best prediction first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from einops_fast.backends.triton.reduction import ReductionTiling
from einops_fast.backends.triton.tiling import (
    Axis,
    Group,
    Role,
    by_stride,
    linear_role,
    merge_axes,
    needs_64_bits,
    power_of_two,
)
from einops_fast.cost import Ceilings

__all__ = ["Reduction", "reduction", "sum_of_parts", "tilings"]

_PASSING = (8 << 20, 192 << 20)
"""Bytes of an operand that is better not kept in the cache, as measured on an H200."""

_RUN = 32
"""Neighbours that a tile takes along a second contiguous axis."""


@dataclass(frozen=True)
class Reduction:
    """A product of ``operands`` arrays as loops; in every axis the result's stride follows the operands'."""

    operands: int
    free: tuple[Axis, ...]
    summed: tuple[Axis, ...]

    @property
    def extents(self) -> tuple[int, int]:
        """Elements of the result, and how many products each is the sum of."""
        return prod(axis.size for axis in self.free), prod(axis.size for axis in self.summed)

    @property
    def wide(self) -> bool:
        """Whether an offset, or a position among a role's axes, may not fit in 32 bits."""
        return needs_64_bits(self.free + self.summed, self.extents)

    def size(self, array: int) -> int:
        """Elements of one array."""
        return prod(axis.size for axis in self.free + self.summed if axis.strides[array])


def reduction(operands: int, free: Sequence[Axis], summed: Sequence[Axis]) -> Reduction:
    """Loops by role with whatever can be joined joined."""
    whole = Reduction(operands, tuple(free), tuple(summed))
    largest = _largest(whole)
    return Reduction(operands, merge_axes(by_stride(free, operands)), merge_axes(by_stride(summed, largest)))


def _largest(problem: Reduction) -> int:
    return max(range(problem.operands), key=problem.size)


def tilings(problem: Reduction, item: int, on: Ceilings) -> list[tuple[float, ReductionTiling]]:
    """Tilings with predicted seconds, the most promising first.

    Args:
        problem: the loops.
        item: bytes of an element.
        on: ceilings of the device.
    """
    free, summed = problem.extents
    found: dict[ReductionTiling, None] = {}
    for elements in (4096, 2048, 8192, 1024):
        whole = power_of_two(summed)
        depths = [min(whole, elements)]
        if summed > 1 and free > 1:
            depths += [depth for depth in (elements // 16, elements // 64) if 1 < depth < depths[0]]
        for depth in depths:
            width = min(elements // depth, power_of_two(free))
            tiling = _of_blocks(problem, width, depth)
            positions = tiling.free.block * tiling.summed.block
            warps = 8 if positions >= 8192 else 4 if positions >= 512 else 1
            tiling = replace(tiling, warps=warps, passing=_passing(problem, item))
            found.update(dict.fromkeys(_splits(tiling, on)))
    memory = sum(map(problem.size, range(problem.operands + 1))) * item / on.bandwidth
    # Multiplied one by one, without tensor cores; where operands are broadcast, that may take longer.
    least = max(memory, 4 * free * summed * problem.operands / on.gemm_rate("float32"))
    return [
        # Larger tiles have more loads in flight; the order of the list is what experience says beyond that.
        (least * (1.05 + 0.03 * rank) + on.call * (2 if tiling.split > 1 else 1), tiling)
        for rank, tiling in enumerate(found)
    ]


def _passing(problem: Reduction, item: int) -> tuple[int, ...]:
    """Operands that leave the cache first: large ones, each element of which is read once, where little is written.

    Then what others have written to the cache may stay, and needn't be written to memory just now. Where an operand is
    far larger than the cache, it pushes that out in any case.
    """
    axes = [axis for axis in problem.free + problem.summed if axis.size > 1]
    elements = prod(axis.size for axis in axes)
    if not _PASSING[0] <= item * elements <= _PASSING[1] or 4 * problem.size(problem.operands) > elements:
        return ()
    return tuple(at for at in range(problem.operands) if all(axis.strides[at] for axis in axes))


def sum_of_parts(parts: int, elements: int) -> ReductionTiling:
    """Tiles for adding up partial results that lie one after the other."""
    free = Axis(elements, (1, 1))
    summed = Axis(parts, (elements, 0))
    few = elements < 1 << 12
    many = parts > 8
    width = min(64 if few else 256 if many else 512, power_of_two(elements))
    depth = min(64 if few else 16 if many else 4, power_of_two(parts))
    if elements == 1:
        depth = min(1024, power_of_two(parts))
    return ReductionTiling(1, linear_role([free], width), linear_role([summed], depth))


def _splits(tiling: ReductionTiling, on: Ceilings) -> list[ReductionTiling]:
    """The tiling with its summed range cut so that the device is full; in parts none of which is empty."""
    programs, steps = tiling.free.tiles, tiling.summed.tiles
    if programs >= 2 * on.units or steps < 8:
        return [tiling]
    # Many short programs: few long ones leave processors idle at the end.
    split = min(-(-32 * on.units // programs), steps // 2)
    each = -(-steps // split)
    return [replace(tiling, split=-(-steps // each))] if split > 1 else [tiling]


def _of_blocks(problem: Reduction, width: int, depth: int) -> ReductionTiling:
    out = problem.operands
    order = sorted(range(out), key=problem.size, reverse=True)
    # The result first of those of one size: what is written in pieces takes longer than what is read so.
    free = _role(problem.free, sorted([out, *order], key=problem.size, reverse=True), width)
    summed = _role(problem.summed, order, depth)
    return ReductionTiling(out, free, summed, wide=problem.wide)


def _role(axes: tuple[Axis, ...], arrays: Sequence[int], block: int) -> Role:
    """Axes with a run along those where the most important arrays are contiguous, two at most."""
    runs: list[Axis] = []
    for array in arrays:
        # Two windows that overlap make axes that are equal and yet not the same.
        runs += [axis for axis in axes if abs(axis.strides[array]) == 1 and not any(axis is run for run in runs)][:1]
    runs = runs[:2]
    rest = [axis for axis in by_stride(axes, arrays[0]) if not any(axis is run for run in runs)]
    if len(runs) < 2:
        return linear_role([*rest, *runs], block)
    first, second = runs
    along = min(_RUN, power_of_two(second.size), max(block // 8, 1))
    inner = linear_role([*rest, first], max(block // along, 1))
    return Role(inner.outer, (Group(along, (second,)), inner.groups[1]))
