"""Which tiles to try for a memory-bound loop nest: a short list, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf, log2, prod

from einops_fast.backends.triton.contraction.loops.costs import reduction_seconds
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.problems import Reduction
from einops_fast.backends.triton.contraction.tiling import even_parts, listed
from einops_fast.backends.triton.device.tiling import Axis, Group, Role, by_stride, linear_role, power_of_two
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, is_complex

_PASSING = (8 << 20, 192 << 20)
"""Bytes of an operand that is better not kept in the cache, as measured on an H200."""

_RUNS = 32, 64
"""Neighbours that a tile takes along a second contiguous axis."""

_NEAR = 64
"""Elements between neighbours along a role at most: then what lies between them is read with them."""

_WARPS = {1024: 2, 2048: 4, 4096: 4, 8192: 8}
"""Products that a program forms at a time, and its warps."""

_USUAL, _AS_GOOD = 4096, 1.03
"""Products of a tile that mostly does well, and how many times the least time counts as being predicted as good."""

_MOST_EMPTY = 2.1
"""How many times as many positions tiles may have as there are."""

_PRODUCTS = 4
"""Products of real numbers for one of complex numbers."""

_PROGRAMS, _FEW_STEPS = (4, 8), 4
"""For each multiprocessor, if the summed range is cut into parts; it isn't if a program has so few steps anyway."""


@lru_cache(maxsize=1024)
def tilings(
    problem: Reduction, dtype: str, on: Ceilings, precision: str = "ieee"
) -> tuple[tuple[float, ReductionTiling], ...]:
    """Return tilings with predicted seconds, the most promising first."""
    item = ITEM_SIZES[dtype]
    sizes = [problem.size(array) for array in range(problem.operands + 1)]
    free, summed = problem.extents
    # Multiplied one by one, without tensor cores; where operands are broadcast, that may take longer.
    products = (_PRODUCTS if is_complex(dtype) else 1) * free * summed
    least = 4 * products * problem.operands / on.gemm_rate("float32")
    passing = _passing(problem, item)
    found = (
        each
        for tiling in _tiles(problem, _MOST_EMPTY) or _tiles(problem, inf)
        for each in _splits(replace(tiling, wide=problem.wide, passing=passing), on)
    )
    timed = listed(found, lambda tiling: max(reduction_seconds(tiling, sizes, item, on), least))
    best = timed[0][0]
    # What is copied isn't timed: of those that are predicted to be as good, the first one has the usual size.
    good = (tiling for seconds, tiling in timed if seconds <= _AS_GOOD * best)
    usual = min(good, key=lambda tiling: abs(log2(tiling.block / _USUAL)))
    return (best, usual), *(pair for pair in timed if pair[1] != usual)


def _tiles(problem: Reduction, most_empty: float) -> list[ReductionTiling]:
    """Tilings of a few sizes and all shapes, unsplit, with so many times as many positions as there are at most."""
    out = problem.operands
    order = sorted(range(out), key=problem.size, reverse=True)
    # The result first of those of one size: what is written in pieces takes longer than what is read so.
    free = _blocks(problem.free, sorted([out, *order], key=problem.size, reverse=True))
    summed = _blocks(problem.summed, order)
    positions = prod(problem.extents)
    whole = max(role.block for role in free) * max(role.block for role in summed)
    return [
        ReductionTiling(out, rows, sums, warps=_WARPS.get(rows.block * sums.block, 1))
        for rows, sums in product(free, summed)
        if rows.padded * sums.padded <= most_empty * positions
        and (rows.block * sums.block in _WARPS or rows.block * sums.block == whole < min(_WARPS))
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


def _splits(tiling: ReductionTiling, on: Ceilings) -> Iterator[ReductionTiling]:
    """The tiling, and with its summed range cut for the device to be full."""
    yield tiling
    programs, steps = tiling.free.tiles, tiling.summed.tiles
    for each in _PROGRAMS if steps >= _FEW_STEPS else ():
        split = min(-(-each * on.units // programs), steps // 2)
        if split > 1:
            yield replace(tiling, split=even_parts(steps, split))


def _blocks(axes: tuple[Axis, ...], arrays: Sequence[int]) -> list[Role]:
    """Blocks of all sizes, with a run through what the most important arrays have as neighbours, two at most."""
    # By position: two windows that overlap make axes that are equal and yet not the same.
    runs: list[tuple[int, list[int]]] = []
    for array in arrays:
        run = _run(axes, array)
        if run and all(run[-1] != other[-1] for _, other in runs):
            runs.append((array, run))
    main = runs[0][0] if runs else arrays[0]
    extent = prod(axis.size for axis in axes)
    found = [linear_role(by_stride(axes, main), block) for block in _powers(power_of_two(extent))]
    for _, run in runs[1:2]:
        fastest = runs[0][1][-1]
        own = run[run.index(fastest) + 1 :] if fastest in run else run
        second, rest = [axes[at] for at in own], [axis for at, axis in enumerate(axes) if at not in own]
        width = prod(axis.size for axis in second)
        for along in {min(most, power_of_two(width)) for most in _RUNS}:
            for block in _powers(power_of_two(extent // width)):
                role = linear_role(by_stride(rest, main), block)
                found.append(Role(role.outer, (Group(along, tuple(second)), role.groups[1])))
    return found


def _run(axes: tuple[Axis, ...], array: int) -> list[int]:
    """Positions of axes through which an array steps from neighbour to neighbour, the fastest last; none if it doesn't.

    It does, too, where what lies between two neighbours belongs to another role.
    """
    own = sorted(
        (at for at, axis in enumerate(axes) if axis.strides[array]), key=lambda at: abs(axes[at].strides[array])
    )
    run: list[int] = []
    reach = width = 1
    for at in own:
        stride = abs(axes[at].strides[array])
        near = (stride == reach and width < max(_RUNS)) if run else stride <= _NEAR
        if not near:
            break
        run.insert(0, at)
        reach, width = stride * axes[at].size, width * axes[at].size
    return run


def _powers(most: int) -> list[int]:
    """Powers of two that are no more than the largest tile, or ``most``."""
    return [1 << power for power in range(min(most, max(_WARPS)).bit_length())]
