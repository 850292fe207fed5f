"""Which tiles to try for a chain of matrices: from axes and strides to a short list, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling
from einops_fast.backends.triton.contraction.problems import ChainProblem
from einops_fast.backends.triton.contraction.tiling import (
    LEFT,
    RIGHT,
    SCATTERED,
    SHARED,
    even_parts,
    free_role,
    idle,
    listed,
    run_length,
    scattered,
)
from einops_fast.backends.triton.device.tiling import linear_role
from einops_fast.planning.chains import padded_extent
from einops_fast.planning.cost import ITEM_SIZES, Ceilings

# Rows and columns of a tile, and warps.
_HALF = (
    (128, 128, 8),
    (128, 128, 4),
    (128, 256, 8),
    (64, 256, 4),
    (64, 128, 4),
    (128, 64, 4),
    (64, 64, 4),
    (32, 32, 4),
    (16, 128, 4),
    (128, 16, 4),
    (16, 16, 4),
)
_SINGLE = (
    (64, 128, 8),
    (128, 64, 8),
    (64, 64, 8),
    (32, 32, 4),
    (16, 64, 4),
    (64, 16, 4),
    (16, 16, 4),
)

_ROUNDS = (1, 2, 4)
"""Programs per multiprocessor that a walk along the columns leaves."""


def tilings(
    problem: ChainProblem, dtype: str, on: Ceilings, precision: str = "ieee"
) -> list[tuple[float, ChainTiling]]:
    """Return tilings with predicted seconds, fastest first."""
    slowdown = problem.slowdown(ITEM_SIZES[dtype])
    found = _all(problem, ITEM_SIZES[dtype], on, precision)
    return listed(found, lambda tiling: slowdown * _seconds(problem, tiling, dtype, on) + on.call)


def _all(problem: ChainProblem, item: int, on: Ceilings, precision: str) -> Iterator[ChainTiling]:
    _, m, n, *_ = problem.extents
    links = [linear_role(link, padded_extent(depth)) for link, depth in zip(problem.links, problem.depths, strict=True)]
    for rows, columns, warps in _SINGLE if item >= 4 else _HALF:
        # A tile of twice the extent does the work of none.
        if rows > padded_extent(m) or columns > padded_extent(n):
            continue
        row_role = free_role(problem.rows, LEFT, rows, run_length(item))
        column_role = free_role(problem.columns, RIGHT, columns, run_length(item))
        tiling = ChainTiling(
            problem.batch,
            row_role,
            column_role,
            tuple(links),
            scattered=scattered(row_role, column_role),
            wide=problem.wide,
            precision=precision if item == 4 else "ieee",
            warps=warps,
        )
        yield from _walks(tiling, item, on)


def _walks(tiling: ChainTiling, item: int, on: Ceilings) -> Iterator[ChainTiling]:
    """The tiling with programs that walk along one tile of columns or more, as many as keeps the device full."""
    columns = tiling.columns.tiles
    each = tiling.links[-1].block * tiling.columns.block * item
    for rounds in _ROUNDS:
        across = max(1, min(columns, tiling.grid[0] // (rounds * on.units)))
        stages = max(1, min(2, across, SHARED // each))
        yield replace(tiling, across=even_parts(columns, across), stages=stages)


def _seconds(problem: ChainProblem, tiling: ChainTiling, dtype: str, on: Ceilings) -> float:
    """Predict the time: arithmetic, traffic from the L2 cache and from memory, whichever takes longest."""
    item = ITEM_SIZES[dtype]
    batch, m, n, *_ = problem.extents
    rows, columns = tiling.rows.block, tiling.across * tiling.columns.block
    blocks, depths = [link.block for link in tiling.links], problem.depths
    programs = tiling.grid[0]
    waiting_for_last = idle(programs, on) if programs < 4 * on.units else 1.0
    between = sum(a * b for a, b in pairwise(blocks))
    products = 2 * programs * rows * (between + blocks[-1] * columns)
    arithmetic = waiting_for_last * products / on.gemm_rate(dtype)
    reads = programs * (rows * blocks[0] + between + blocks[-1] * columns) * item
    cache = waiting_for_last * reads / (on.bandwidth * 1.5)
    memory = item * batch * (m * depths[0] + depths[-1] * n + m * n) / on.bandwidth
    # In small tiles, little is loaded at once.
    small: float = (8192 / min(8192, rows * tiling.columns.block)) ** 0.15
    regrouped = SCATTERED if tiling.scattered else 1.0
    return (max(arithmetic, cache, memory) + 0.2 * min(arithmetic, memory)) * small * regrouped
