"""Which tiles to try for a chain of matrices: from axes and strides to a short list, best prediction first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling, array_of
from einops_fast.backends.triton.contraction.matrix_tiles import (
    IN_PIECES,
    LEFT,
    OUT,
    RIGHT,
    SCATTERED,
    SHARED,
    free_role,
    loaded_bytes,
    run_length,
    scattered,
)
from einops_fast.backends.triton.contraction.tiling import Product, listed
from einops_fast.backends.triton.device.tiling import Axis, by_stride, linear_role, merge_axes
from einops_fast.planning.chains import padded_extent
from einops_fast.planning.cost import ITEM_SIZES, Ceilings

__all__ = ["ChainProblem", "chain_problem", "tilings"]


@dataclass(frozen=True)
class ChainProblem(Product):
    """A chain of operands and a result as loops by role; for the strides of an axis see :func:`array_of`."""

    links: tuple[tuple[Axis, ...], ...]

    @property
    def summed(self) -> tuple[tuple[Axis, ...], ...]:
        return self.links

    @property
    def depths(self) -> tuple[int, ...]:
        """Extent of each link."""
        return self.extents[3:]


def chain_problem(
    batch: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis], links: Sequence[Sequence[Axis]]
) -> ChainProblem:
    """Loops by role, with whatever can be joined joined."""

    def first_of(link: int) -> int:
        """The array whose order a link follows: a large one, where it is of one."""
        return RIGHT if link == len(links) - 1 else array_of(link, len(links) + 1)

    return ChainProblem(
        merge_axes(by_stride(batch, OUT)),
        merge_axes(by_stride(rows, OUT)),
        merge_axes(by_stride(columns, OUT)),
        tuple(merge_axes(by_stride(link, first_of(at))) for at, link in enumerate(links)),
    )


# Rows and columns of a tile, and warps.
_HALF = (
    (128, 128, 8),
    (128, 128, 4),
    (128, 256, 8),
    (256, 128, 8),
    (64, 256, 4),
    (64, 128, 4),
    (256, 64, 8),
    (128, 64, 4),
    (256, 32, 8),
    (128, 32, 4),
    (64, 64, 4),
    (32, 128, 4),
    (32, 32, 4),
    (16, 128, 4),
    (128, 16, 4),
    (16, 16, 4),
)
_SINGLE = (
    (64, 128, 8),
    (128, 64, 8),
    (64, 64, 8),
    (128, 32, 8),
    (64, 64, 4),
    (64, 32, 4),
    (32, 64, 4),
    (32, 32, 4),
    (16, 64, 4),
    (64, 16, 4),
    (16, 16, 4),
)


_ROUNDS = (1, 2, 4)
"""Programs per multiprocessor that a walk along the columns leaves."""


def tilings(
    problem: ChainProblem, dtype: str, on: Ceilings, precision: str = "ieee", name: str = ""
) -> Iterable[tuple[float, ChainTiling]]:
    """Return tilings with predicted seconds, fastest first; if a name is given, find those of this name."""
    found = _all(problem, ITEM_SIZES[dtype], on, precision)
    return listed(found, lambda tiling: _seconds(problem, tiling, dtype, on), name)


def _all(problem: ChainProblem, item: int, on: Ceilings, precision: str) -> Iterator[ChainTiling]:
    _, m, n, *_ = problem.extents
    for rows, columns, warps in _SINGLE if item >= 4 else _HALF:
        # A tile of twice the extent does the work of none.
        if rows <= padded_extent(m) and columns <= padded_extent(n):
            yield from _walks(
                _of_shape(problem, rows, columns, warps, item, precision if item == 4 else "ieee"), item, on
            )


def _of_shape(problem: ChainProblem, rows: int, columns: int, warps: int, item: int, precision: str) -> ChainTiling:
    row_role = free_role(problem.rows, LEFT, rows, run_length(item))
    column_role = free_role(problem.columns, RIGHT, columns, run_length(item))
    return ChainTiling(
        problem.batch,
        row_role,
        column_role,
        tuple(
            linear_role(link, padded_extent(depth)) for link, depth in zip(problem.links, problem.depths, strict=True)
        ),
        scattered=scattered(row_role, column_role),
        wide=problem.wide,
        precision=precision,
        warps=warps,
    )


def _walks(tiling: ChainTiling, item: int, on: Ceilings) -> Iterator[ChainTiling]:
    """The tiling with programs that walk along one tile of columns or more, as many as keeps the device full."""
    columns = tiling.columns.tiles
    each = tiling.links[-1].block * tiling.columns.block * item
    for rounds in _ROUNDS:
        across = max(1, min(columns, tiling.grid[0] // (rounds * on.units)))
        stages = max(1, min(2, across, SHARED // each))
        yield replace(tiling, across=-(-columns // -(-columns // across)), stages=stages)


def _seconds(problem: ChainProblem, tiling: ChainTiling, dtype: str, on: Ceilings) -> float:
    """Predicted time: arithmetic, traffic from the L2 cache and from memory, whichever takes longest."""
    item = ITEM_SIZES[dtype]
    batch, m, n, *_ = problem.extents
    rows, columns = tiling.rows.block, tiling.across * tiling.columns.block
    blocks, depths = [link.block for link in tiling.links], problem.depths
    programs = tiling.grid[0]
    waves = programs / on.units
    idle = -(-programs // on.units) / waves if waves < 4 else 1.0
    between = sum(a * b for a, b in pairwise(blocks))
    arithmetic = idle * 2 * programs * rows * (between + blocks[-1] * columns) / on.gemm_rate(dtype)
    reads = programs * (rows * blocks[0] + between + blocks[-1] * columns) * item
    cache = idle * reads / (on.bandwidth * 1.5)
    memory = item * batch * (m * depths[0] + depths[-1] * n + m * n) / on.bandwidth
    seconds = max(arithmetic, cache, memory) + 0.2 * min(arithmetic, memory)
    seconds *= max(IN_PIECES[loaded_bytes(problem.batch, problem.roles, operand, item)] for operand in (LEFT, RIGHT))
    # In small tiles, little is loaded at once.
    small: float = (8192 / min(8192, rows * tiling.columns.block)) ** 0.15
    seconds *= small
    return seconds * (SCATTERED if tiling.scattered else 1.0) + on.call
