"""Which tiles to try for a contraction in float32 without tensor cores, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einops_fast.backends.triton.contraction_tilings import Contraction, contracted_role
from einops_fast.backends.triton.fma_tiles import FmaTiling
from einops_fast.backends.triton.matrix_tiles import (
    IN_PIECES,
    LEFT,
    RIGHT,
    SCATTERED,
    fastest,
    free_role,
    loaded_bytes,
    run_length,
)
from einops_fast.backends.triton.tiling import NOTHING, Role, power_of_two
from einops_fast.cost import Ceilings

__all__ = ["fma_tilings", "tiling_of"]

_ITEM = 4

_FEW, _UNHIDDEN, _LARGE = 4, 1.15, 0.05
"""With so few steps, a tile takes so much longer where no other one of its program hides how it begins and ends; and
large ones take longer than small ones, by this power of their size."""

_BUSY = 12 * 64
"""Sums of a lane of all warps of a multiprocessor that keep it busy."""

_ONE, _SEVERAL = range(2)
"""Tiles that a program computes."""

_EITHER = (_ONE, _SEVERAL)

# Rows, the parts of the columns and the contracted extent of a tile, warps, and how many tiles a program computes.
_SHAPES: tuple[tuple[int, tuple[int, ...], int, int, tuple[int, ...]], ...] = (
    (128, (128,), 16, 8, _EITHER),
    (128, (128,), 16, 4, _EITHER),
    (64, (128,), 16, 4, _EITHER),
    (64, (64, 32, 8), 8, 4, (_ONE,)),
    # With 96 sums and 16 positions a thread's registers don't suffice, unless addresses are computed again and again.
    (128, (64, 32), 16, 4, (_SEVERAL,)),
    (128, (64, 32), 8, 4, (_ONE,)),
    (64, (64, 32), 8, 4, (_ONE,)),
    (256, (64,), 16, 4, _EITHER),
    (128, (64,), 16, 4, _EITHER),
    (128, (64,), 8, 4, (_ONE,)),
    (64, (64,), 16, 4, (_ONE,)),
    (64, (64,), 16, 2, _EITHER),
    (32, (64,), 16, 4, (_ONE,)),
    (128, (32, 16), 8, 2, (_ONE,)),
    (128, (32,), 16, 2, _EITHER),
    (64, (32,), 16, 4, (_ONE,)),
    (32, (32,), 16, 2, (_ONE,)),
    (256, (16, 8), 8, 4, _EITHER),
    (128, (16, 8), 8, 2, _EITHER),
)

_FULLER = 0.93
"""How much less may be left empty for a tile's columns to be taken in parts."""


def fma_tilings(problem: Contraction, on: Ceilings, turned: bool = False) -> list[tuple[float, FmaTiling]]:
    """Tilings with predicted seconds; none for what the kernel can't do.

    Args:
        problem: the loops.
        on: ceilings of the device.
        turned: whether rows and columns have changed places; these tilings only add to the others.
    """
    left, right = (fastest(problem.contracted, operand) for operand in (LEFT, RIGHT))
    along_two = left is not None and right is not None and left != right
    if problem.factored or problem.epilogue is not None or problem.wide or along_two:
        return []
    found = [(_predicted(problem, tiling, on), tiling) for tiling in _all(problem, on, turned)]
    return sorted(found, key=lambda each: each[0])


def tiling_of(
    problem: Contraction,
    rows: int,
    parts: Sequence[int],
    depth: int,
    warps: int,
    *,
    programs: int = 0,
    split: int = 1,
) -> FmaTiling | None:
    """The tiling for a problem, if its columns can be taken in these parts."""
    run = run_length(_ITEM)
    columns = _in_parts(free_role(problem.columns, RIGHT, parts[0], run), parts)
    if len(columns) < len(parts):
        return None
    contracted, _ = contracted_role(problem.contracted, depth, run, True)
    return FmaTiling(
        problem.batch,
        free_role(problem.rows, LEFT, rows, run),
        columns[0],
        contracted,
        split=split,
        warps=warps,
        further=tuple(columns[1:]),
        programs=programs,
    )


def _in_parts(columns: Role, parts: Sequence[int]) -> list[Role]:
    """One after the other, where a tile's columns are neighbours in one group."""
    first, second = columns.groups
    if len(parts) == 1 or columns.outer or first.block > 1:
        return [columns]
    starts = [sum(parts[:at]) for at in range(len(parts))]
    return [
        Role((), (NOTHING, replace(second, block=part, period=sum(parts), start=start)))
        for part, start in zip(parts, starts, strict=True)
    ]


def _all(problem: Contraction, on: Ceilings, turned: bool) -> Iterator[FmaTiling]:
    _, m, n, _ = problem.extents
    for rows, parts, depth, warps, tiles in _SHAPES:
        # A tile of twice the extent does the work of none.
        if rows > max(32, power_of_two(m)) or parts[0] > max(32, power_of_two(n)):
            continue
        whole = tiling_of(problem, rows, parts[:1], depth, warps)
        tiling = tiling_of(problem, rows, parts, depth, warps)
        if tiling is None or whole is None or (turned and len(parts) == 1):
            continue
        if len(parts) > 1 and tiling.columns.padded > _FULLER * whole.columns.padded:
            continue
        for each in _in_splits(tiling, on) if _ONE in tiles else ():
            most = -(-each.tiles * each.split // on.units)
            if each.resident < most <= each.resident + 1 and most * warps <= 16:
                # All at once, rather than a few in the end.
                each = replace(each, registers=128)
            yield each
        if _SEVERAL in tiles and tiling.tiles > on.units * tiling.resident:
            yield replace(tiling, programs=on.units * tiling.resident)


def _in_splits(tiling: FmaTiling, on: Ceilings) -> Iterator[FmaTiling]:
    """The tiling, and where its tiles are few, with the contracted range in parts; none of them is empty."""
    yield tiling
    side_by_side, steps = on.units * tiling.resident, tiling.contracted.tiles
    splits = {min(rounds * side_by_side // tiling.tiles, steps // 4) for rounds in (1, 2)} if steps >= 8 else set()
    for split in sorted({-(-steps // -(-steps // split)) for split in splits if split > 1}):
        yield replace(tiling, split=split)


def _predicted(problem: Contraction, tiling: FmaTiling, on: Ceilings) -> float:
    """Predicted time: arithmetic, or what it reads from shared memory, and traffic from memory."""
    batch, m, n, k = problem.extents
    tiles = tiling.tiles * tiling.split
    idle = -(-tiles // on.units) * on.units / tiles
    if tiling.persistent:
        idle = (1 + -(-tiles // tiling.programs) * tiling.programs / tiles) / 2
    elif tiling.contracted.tiles <= _FEW:
        idle *= _UNHIDDEN
    if tiling.contracted.tiles <= _FEW:
        idle *= float((tiling.rows.block * tiling.columns.width / 4096) ** _LARGE)
    products = tiles * tiling.rows.block * tiling.columns.width * tiling.contracted.padded / tiling.split
    # Reading a number takes four times as long as multiplying two.
    high, wide = tiling.sums_of_thread
    warps = min(tiling.resident, -(-tiles // on.units)) * tiling.warps
    lazy: float = max(1.0, _BUSY / (warps * high * wide)) ** 0.5
    arithmetic = idle * lazy * 2 * products / on.gemm_rate("float32") * max(1.0, 4 * (high + wide) / (high * wide))
    memory = _ITEM * batch * (m * k + k * n + m * n) / on.bandwidth
    written = 8 * batch * m * n * tiling.split / on.bandwidth + on.call if tiling.split > 1 else 0.0
    pieces: float = max(
        IN_PIECES[loaded_bytes(problem.batch, problem.inner, operand, _ITEM)] ** 0.5 for operand in (LEFT, RIGHT)
    )
    regrouped: float = SCATTERED if tiling.regrouped else 1.0
    return (max(arithmetic, memory) + 0.3 * min(arithmetic, memory)) * pieces * regrouped + written + on.call
