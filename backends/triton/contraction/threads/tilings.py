"""Which tiles to try for a contraction in float32 without tensor cores, best prediction first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, product
from math import inf

from einops_fast.backends.triton.contraction.pointers.tilings import contracted_role
from einops_fast.backends.triton.contraction.problems import Contraction
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.contraction.tiling import (
    LEFT,
    RIGHT,
    SCATTERED,
    even_parts,
    free_role,
    idle,
    listed,
    padded,
    run_length,
)
from einops_fast.backends.triton.device.tiling import NOTHING, Role, power_of_two
from einops_fast.planning.cost import Ceilings

_ITEM = 4

_FEW, _LARGE, _WARPS = 4, 0.05, 16
"""With so few steps, large tiles take longer than small ones, by this power of their size, and so many warps of a
multiprocessor wait for each other's loads and stores less than fewer do."""

_CACHE = 1.5
"""How much faster what others have read before comes from the cache than from memory."""

_SHORT = 8
"""Steps of which the first one's loads take a part of the time that counts."""

_ONE_STEP, _UNHIDDEN = 2, 1.1
"""With so few steps, a tile takes so much longer, as little hides how it begins and ends."""

_TURNED, _SHORT_RUNS = 1.01, 1.15
"""How much longer a tile takes of which each element is copied by itself, and one whose runs are of eight."""

_FLAT = 8
"""The contracted extent of tiles that have little room for more."""

_BUSY = 12 * 64
"""Sums of a lane of all warps of a multiprocessor that keep it busy."""

# Rows, columns and contracted extent of a tile, warps and stages.
_SHAPES = (
    (128, 128, 16, 4, 3),
    (128, 64, 16, 2, 4),
    (128, 64, 16, 4, 3),
    (128, 64, 16, 4, 2),
    (64, 64, 16, 2, 4),
    (64, 64, 16, 4, 4),
    (32, 64, 16, 2, 4),
    (128, 32, 16, 2, 4),
    (64, 32, 16, 2, 4),
    (32, 32, 16, 1, 4),
)

_BESIDE = ((256,), (128,), (64, 32, 8), (64, 32), (64,))
"""Rows, or columns, that go with columns, or rows, in parts."""

_FULLER = 0.93
"""How much less may be left empty for a tile's rows or columns to be taken in parts."""

_PARTS, _WIDTHS = (128, 64, 32, 16, 8), (48, 160)
"""What parts there are, and of how many rows or columns a tile in parts is, if there are as many."""

_SUMS = (40, 144)
"""The least and the most sums of a thread in such tiles."""

_MANY = 112
"""Sums of a thread that leave few registers for what is multiplied."""


def tilings(problem: Contraction, on: Ceilings) -> list[tuple[float, FmaTiling]]:
    """Return tilings with predicted seconds, fastest first; none for what the kernel can't do."""
    slowdown: float = problem.slowdown(_ITEM) ** 0.5
    return listed(_all(problem, on), lambda tiling: _seconds(problem, tiling, slowdown, on))


def tiling_of(
    problem: Contraction,
    rows: Sequence[int],
    columns: Sequence[int],
    depth: int,
    warps: int,
    stages: int,
    *,
    split: int = 1,
) -> FmaTiling | None:
    """The tiling for a problem, if its rows and columns can be taken in these parts."""
    run = run_length(_ITEM)
    down = _parts_of(free_role(problem.rows, LEFT, rows[0], run), rows)
    across = _parts_of(free_role(problem.columns, RIGHT, columns[0], run), columns)
    if len(down) < len(rows) or len(across) < len(columns):
        return None
    return FmaTiling(
        problem.batch,
        down[0],
        across[0],
        contracted_role(problem.contracted, depth),
        split=split,
        warps=warps,
        stages=stages,
        below=tuple(down[1:]),
        further=tuple(across[1:]),
    )


def _parts_of(role: Role, parts: Sequence[int]) -> list[Role]:
    """One after the other, where a tile's rows, or columns, are neighbours in one group."""
    first, second = role.groups
    if len(parts) == 1 or role.outer or first.block > 1:
        return [role]
    starts = [sum(parts[:at]) for at in range(len(parts))]
    return [
        Role((), (NOTHING, replace(second, block=part, period=sum(parts), start=start)))
        for part, start in zip(parts, starts, strict=True)
    ]


def _all(problem: Contraction, on: Ceilings) -> Iterator[FmaTiling]:
    if problem.factored or problem.epilogue is not None or problem.wide or problem.along_two:
        return
    for rows, columns, depth, warps, stages in dict.fromkeys(_shapes(problem)):
        tiling = tiling_of(problem, rows, columns, depth, warps, stages)
        if tiling is None or not tiling.each_its_own:
            continue
        steps = tiling.contracted.tiles
        tiling = replace(tiling, stages=min(tiling.stages, max(2, power_of_two(steps))))
        if tiling.tiles <= on.units * tiling.resident and steps <= _SHORT:
            # All begin at once: what is loaded further ahead is in the way of what is needed first.
            tiling = replace(tiling, stages=2)
        runs = tuple([operand for operand in (LEFT, RIGHT) if tiling.in_runs(operand, 0)])
        if len(runs) == 1:
            yield from _in_splits(replace(tiling, one_by_one=runs), on)
        yield from _in_splits(tiling, on)


def _shapes(problem: Contraction) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int, int, int]]:
    _, m, n, k = problem.extents
    shallow = padded(k, _FLAT) < _FULLER * padded(k, 16)
    for high, wide, depth, warps, stages in _SHAPES:
        # A tile of twice the extent does the work of none.
        if high <= max(32, power_of_two(m)) and wide <= max(32, power_of_two(n)):
            yield (high,), (wide,), _FLAT if shallow else depth, warps, stages
    across, down = in_parts(n), in_parts(m)
    for rows, columns in (
        *product(down, across),
        *((beside, parts) for beside in _BESIDE for parts in across if beside[0] <= power_of_two(m)),
        *((parts, beside) for beside in _BESIDE for parts in down if beside[0] <= power_of_two(n)),
    ):
        for warps in (1, 2, 4):
            sums = sum(rows) * sum(columns) / (32 * warps)
            if _SUMS[0] <= sums <= _SUMS[1]:
                flat = shallow or sums > _MANY
                yield rows, columns, _FLAT if flat else 16, warps, 4 if flat else 3


def in_parts(extent: int) -> list[tuple[int, ...]]:
    """Powers of two, in decreasing order, that leave less of an extent empty than one of them; the best few.

    >>> in_parts(100), in_parts(288), in_parts(64)
    ([(64, 32, 8)], [(128, 16), (64, 32)], [])
    """
    least, most = min(extent, _WIDTHS[0]), _WIDTHS[1]
    enough = _FULLER * padded(extent, min(64, power_of_two(extent)))
    widths = [parts for count in (2, 3) for parts in combinations(_PARTS, count) if least <= sum(parts) <= most]
    found = sorted((padded(extent, sum(parts)), len(parts), -sum(parts), parts) for parts in widths)
    return [parts for width, *_, parts in found if width <= min(enough, 1.05 * found[0][0])][:2]


def _in_splits(tiling: FmaTiling, on: Ceilings) -> Iterator[FmaTiling]:
    """The tiling, and where its tiles are few, with the contracted range in parts."""
    yield _with_room(tiling, -(-tiling.tiles // on.units))
    side_by_side, steps = on.units * _with_room(tiling).resident, tiling.contracted.tiles
    splits = {min(rounds * side_by_side // tiling.tiles, steps // 4) for rounds in (1, 2)} if steps >= 8 else set()
    for split in sorted({even_parts(steps, split) for split in splits if split > 1}):
        yield _with_room(replace(tiling, split=split), -(-tiling.tiles * split // on.units))


def _with_room(tiling: FmaTiling, programs: float = inf) -> FmaTiling:
    """The tiling with fewer stages where totals take the room of other programs of a multiprocessor."""
    if not tiling.chunk:
        return tiling
    fewer = (replace(tiling, stages=stages) for stages in range(2, tiling.stages + 1))
    return max(fewer, key=lambda each: (min(each.resident, programs), each.stages))


def _seconds(problem: Contraction, tiling: FmaTiling, slowdown: float, on: Ceilings) -> float:
    """Predict the time: arithmetic, or what it reads from shared memory, and traffic from memory."""
    batch, m, n, k = problem.extents
    tiles = tiling.tiles * tiling.split
    waiting = idle(tiles, on)
    if tiling.contracted.tiles <= _ONE_STEP:
        waiting *= _UNHIDDEN
    resident = min(tiling.resident, -(-tiles // on.units)) * tiling.warps
    if tiling.contracted.tiles <= _FEW:
        waiting *= max(1.0, _WARPS / resident) ** 0.3
        waiting *= float((tiling.rows.width * tiling.columns.width / 4096) ** _LARGE)
    products = tiles * tiling.rows.width * tiling.columns.width * tiling.contracted.padded / tiling.split
    # Reading a number takes four times as long as multiplying two.
    high, wide = tiling.sums_of_thread
    reading = 4 * (high + wide) / (high * wide)
    lazy: float = max(1.0, _BUSY / (resident * high * wide)) ** 0.5
    arithmetic = waiting * lazy * 2 * products / on.gemm_rate("float32") * max(0.9 + 0.1 * reading, reading)
    read = products * (1 / tiling.rows.width + 1 / tiling.columns.width)
    memory = _ITEM * max(batch * (m * k + k * n + m * n), read / _CACHE) / on.bandwidth
    written = 8 * batch * m * n * tiling.split / on.bandwidth + on.call if tiling.split > 1 else 0.0
    regrouped = SCATTERED if tiling.regrouped else 1.0
    copied = _TURNED if tiling.one_by_one else 1.0
    if tiling.at_once > 1 and tiling.contracted.block == _FLAT:
        copied = _SHORT_RUNS
    seconds = max(arithmetic, memory) + 0.3 * min(arithmetic, memory)
    return seconds * slowdown * regrouped * copied + written + on.call
