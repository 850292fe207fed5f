"""Which tiles to try for a contraction in float32 without tensor cores, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator

from einops_fast.backends.triton.contraction_tilings import Contraction, contracted_role, predicted, splits
from einops_fast.backends.triton.fma_contraction import FmaTiling
from einops_fast.backends.triton.matrix_tiles import LEFT, RIGHT, fastest, free_role, run_length
from einops_fast.backends.triton.tiling import power_of_two
from einops_fast.cost import Ceilings

__all__ = ["fma_tilings"]

_ITEM = 4

_DEPTH = 16

# Rows and columns of a tile, and warps.
_SHAPES = (
    (128, 128, 8),
    (256, 64, 8),
    (64, 256, 8),
    (128, 64, 4),
    (64, 128, 4),
    (64, 64, 4),
    (32, 64, 4),
    (64, 32, 4),
    (32, 32, 2),
)


def fma_tilings(problem: Contraction, on: Ceilings) -> list[tuple[float, FmaTiling]]:
    """Tilings with predicted seconds; none where the other kernel has no trouble with how the operands lie."""
    along = [operand for operand in (LEFT, RIGHT) if fastest(problem.contracted, operand) is not None]
    if not along or problem.factored or problem.epilogue is not None or problem.wide:
        return []
    found = [(predicted(problem, tiling, "float32", on), tiling) for tiling in _all(problem, on)]
    return sorted(found, key=lambda each: each[0])


def _all(problem: Contraction, on: Ceilings) -> Iterator[FmaTiling]:
    _, m, n, _ = problem.extents
    run = run_length(_ITEM)
    for rows, columns, warps in _SHAPES:
        # A tile of twice the extent does the work of none.
        if rows > max(32, power_of_two(m)) or columns > max(32, power_of_two(n)):
            continue
        contracted, _ = contracted_role(problem.contracted, _DEPTH, run, True)
        tiling = FmaTiling(
            problem.batch,
            free_role(problem.rows, LEFT, rows, run),
            free_role(problem.columns, RIGHT, columns, run),
            contracted,
            warps=warps,
        )
        yield from splits(tiling, on)
