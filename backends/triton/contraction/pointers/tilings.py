"""Which tiles to try for a contraction: from axes and strides to a short list, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.problems import Contraction
from einops_fast.backends.triton.contraction.tiling import (
    LEFT,
    RIGHT,
    SCATTERED,
    SECTOR,
    SHARED,
    even_parts,
    fastest,
    free_role,
    idle,
    listed,
    padded,
    run_length,
    scattered,
)
from einops_fast.backends.triton.device.tiling import (
    NOTHING,
    Axis,
    Role,
    by_stride,
    linear_role,
    power_of_two,
)
from einops_fast.planning.cost import ITEM_SIZES, Ceilings, is_integer

# Rows, columns and contracted extent of a tile, warps, stages: shapes that keep the tensor cores busy, and
# smaller ones for small results.
_HALF = (
    (128, 256, 64, 8, 3),
    (256, 128, 64, 8, 3),
    (128, 256, 32, 8, 4),
    (128, 128, 64, 8, 3),
    (128, 128, 64, 4, 3),
    (128, 128, 32, 8, 4),
    (256, 64, 32, 8, 4),
    (64, 256, 32, 8, 4),
    (64, 256, 32, 4, 4),
    (256, 64, 64, 8, 3),
    (128, 64, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 64, 64, 4, 4),
    (64, 64, 128, 4, 3),
    (64, 32, 256, 4, 3),
    (64, 32, 64, 4, 4),
    (32, 64, 64, 4, 4),
    (32, 32, 64, 4, 4),
    (16, 16, 64, 1, 2),
    (128, 16, 64, 4, 4),
    (64, 16, 64, 4, 4),
    (16, 64, 64, 4, 4),
    (16, 16, 64, 4, 4),
    (256, 32, 32, 8, 3),
    (32, 256, 32, 8, 3),
    (128, 32, 32, 4, 4),
    (32, 128, 32, 4, 4),
)
_SINGLE = (
    (128, 128, 16, 8, 3),
    (128, 128, 32, 8, 3),
    (128, 64, 16, 4, 3),
    (64, 128, 16, 4, 3),
    (128, 64, 32, 4, 3),
    (64, 128, 32, 4, 3),
    (64, 64, 16, 4, 4),
    (64, 64, 32, 4, 3),
    (64, 32, 32, 4, 3),
    (32, 64, 32, 4, 3),
    (32, 32, 32, 4, 3),
    (256, 32, 16, 8, 3),
    (32, 256, 16, 8, 3),
    (256, 64, 16, 8, 3),
    (64, 256, 16, 8, 3),
    (128, 16, 32, 4, 3),
    (16, 128, 32, 4, 3),
    (16, 16, 64, 4, 3),
)


# Integers are multiplied one by one: all products of a step are in registers at once, and nothing is fetched ahead.
_INTEGER = (
    (64, 64, 8, 8, 1),
    (32, 64, 8, 4, 1),
    (64, 32, 8, 4, 1),
    (32, 32, 16, 4, 1),
    (32, 32, 8, 4, 1),
    (16, 64, 16, 4, 1),
    (64, 16, 16, 4, 1),
    (16, 16, 32, 4, 1),
    (16, 16, 16, 2, 1),
)


def tilings(
    problem: Contraction, dtype: str, on: Ceilings, precision: str = "ieee"
) -> list[tuple[float, ContractionTiling]]:
    """Return tilings with predicted seconds, fastest first."""
    item = ITEM_SIZES[dtype]
    slowdown = problem.slowdown(item) * (_ALONG_TWO[item] if problem.along_two and not is_integer(dtype) else 1.0)
    found = _all(problem, dtype, on, precision)
    return listed(found, lambda tiling: slowdown * _seconds(problem, tiling, dtype, on) + on.call)


def _all(problem: Contraction, dtype: str, on: Ceilings, precision: str) -> Iterator[ContractionTiling]:
    item, one_by_one = ITEM_SIZES[dtype], is_integer(dtype)
    run, (_, m, n, k) = run_length(item), problem.extents
    at_once = min(problem.loaded_bytes(operand, item) for operand in (LEFT, RIGHT)) // item
    for rows, columns, depth, warps, stages in _INTEGER if one_by_one else _SINGLE if item >= 4 else _HALF:
        # A tile of twice the extent does the work of none.
        if rows > max(16, power_of_two(m)) or columns > max(16, power_of_two(n)):
            continue
        if one_by_one and item == 8:
            depth //= 2  # a number takes two registers
        row_role = free_role(problem.rows, LEFT, rows, run)
        column_role = free_role(problem.columns, RIGHT, columns, run)
        contracted = contracted_role(problem.contracted, min(depth, max(16, power_of_two(k))), at_once)
        tiling = ContractionTiling(
            problem.batch,
            row_role,
            column_role,
            contracted,
            factored=problem.factored,
            scattered=scattered(row_role, column_role),
            wide=problem.wide,
            precision=precision if item == 4 else "ieee",
            warps=warps,
            stages=stages,
            epilogue=problem.epilogue,
        )
        for each in (tiling,) if one_by_one else (tiling, *_in_two_parts(tiling)):
            yield from _splits(_fitting(each, item), on)


def _in_two_parts(tiling: ContractionTiling) -> Iterator[ContractionTiling]:
    """Tiles whose columns are a power of two and a smaller one, where that leaves less of them empty."""
    first, second = tiling.columns.groups
    if tiling.scattered or tiling.columns.outer or first.block > 1:
        return
    for part in (second.block // 2, second.block // 4, second.block // 8):
        width = second.block + part
        fuller = padded(second.extent, width) < 0.93 * tiling.columns.padded
        if part >= 16 and fuller and tiling.rows.block * width <= 128 * 320:
            main = replace(second, period=width)
            rest = replace(second, block=part, period=width, start=second.block)
            yield replace(
                tiling, columns=Role((), (NOTHING, main)), rest=Role((), (NOTHING, rest)), warps=max(tiling.warps, 4)
            )


def _fitting(tiling: ContractionTiling, item: int) -> ContractionTiling:
    """The tiling with as many stages as shared memory holds and the loop has use for."""
    each = (tiling.rows.block + tiling.columns.width) * tiling.contracted.block * item
    return replace(tiling, stages=max(1, min(tiling.stages, tiling.contracted.tiles, SHARED // each)))


def _splits(tiling: ContractionTiling, on: Ceilings) -> Iterator[ContractionTiling]:
    """The tiling, and where its tiles are few, with the contracted range in parts."""
    yield tiling
    tiles, steps = tiling.grid[0], tiling.contracted.tiles
    if tiles > on.units or steps < 8 or tiling.epilogue is not None:
        return
    for rounds in (1, 2):
        split = min(rounds * on.units // tiles, steps // 4)
        if split > 1:
            yield replace(tiling, split=even_parts(steps, split))


_BEYOND_PADDED = 1.3
"""How many times the extent of padded rows blocks may take: one that goes on in the next row isn't loaded at once."""


def contracted_role(axes: tuple[Axis, ...], block: int, at_once: int = 1) -> Role:
    """The contracted axes, the last of which an operand is contiguous along; a thread can load elements ``at_once``."""
    left, right = fastest(axes, LEFT), fastest(axes, RIGHT)
    last = left or right
    rest = [axis for axis in by_stride(axes, LEFT if left or not right else RIGHT) if axis is not last]
    if last is not None and last.size % at_once:
        return linear_role([*rest, last], block, _BEYOND_PADDED)
    return linear_role([*rest, *([last] if last else [])], block)


# How much longer a kernel takes:
_ALONG_TWO = {2: 3.5, 4: 10.0, 8: 10.0}
"""where the operands are contiguous along two different contracted axes, by bytes of an element; an estimate;"""
_ALONG_CONTRACTED = (1.0, 1.2, 2.2)
"""where none, one or both of the operands of a product without tensor cores are contiguous along contracted axes;"""
_ONE_BY_ONE = 4.0
"""where integers are multiplied; that one is an estimate."""


_WARPS, _PROGRAMS = 64, 32
"""What a multiprocessor has room for."""

_PROGRAM, _STEP = 1e-6, 0.25e-6
"""Seconds from a program's beginning to its end, without and with a step: with nothing else to do, it only waits."""


def _seconds(problem: Contraction, tiling: ContractionTiling, dtype: str, on: Ceilings) -> float:
    """Predict the time: arithmetic, traffic from the L2 cache and from memory, whichever takes longest."""
    item = ITEM_SIZES[dtype]
    batch, m, n, _ = problem.extents
    rows, columns, contracted = tiling.rows, tiling.columns, tiling.contracted
    programs = tiling.grid[0] * tiling.split
    waiting_for_last = idle(programs, on) if programs < 4 * on.units else 1.0
    products = 2 * batch * rows.padded * columns.padded * contracted.padded
    # Small tiles don't reach the peak.
    reach: float = min(1.0, (rows.block * columns.width / 32768) ** 0.15)
    arithmetic = waiting_for_last * products / (on.gemm_rate(dtype) * reach)
    if is_integer(dtype):
        arithmetic *= _ONE_BY_ONE
    elif item > 2 and tiling.precision == "ieee":
        along = sum(fastest(problem.contracted, operand) is not None for operand in (LEFT, RIGHT))
        arithmetic *= _ALONG_CONTRACTED[along]
    reads = tiling.grid[0] * contracted.padded * (rows.block + columns.width) * item
    cache = waiting_for_last * reads / (on.bandwidth * 1.5)
    memory = item * problem.moved / on.bandwidth
    if problem.along_batch:
        # Neighbours are written by different programs, each of them as a whole sector of the cache.
        memory += SECTOR * batch * m * n * problem.results * tiling.split / (on.bandwidth * 1.5)
    written = 4 * batch * m * n * tiling.split / on.bandwidth + on.call if tiling.split > 1 else 0.0
    side_by_side = on.units * min(_PROGRAMS, _WARPS // tiling.warps)
    waiting = programs / side_by_side * (_PROGRAM + contracted.tiles / tiling.split * _STEP)
    seconds = max(arithmetic, cache, memory, waiting) + 0.2 * min(arithmetic, memory) + written
    return seconds * (SCATTERED if tiling.scattered else 1.0)
