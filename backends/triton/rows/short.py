"""Tilings of short rows: a warp has several, each in pieces of a few threads.

These exchange less than all threads of a warp would for each row, and where rows begin at odd places, more of them have
something to load. On an H200, softmax of rows of 33 elements of two bytes took a quarter of the time that it took in
one block of 64, of 49 half of it, and layer norm of 192 took 0.8 times as long.
"""

from __future__ import annotations

from dataclasses import replace

from einops_fast.backends.triton.device.tiling import LANES
from einops_fast.backends.triton.rows.rows import PROCESSORS, Rows, RowTiling
from einops_fast.planning.layout import VECTOR

__all__ = ["leads", "short_tilings", "short_tilings_added_up"]

_PIECES = {True: 6, False: 8}
"""Of a row at most, if a thread loads as much as can be at once, or can't."""

_ELEMENTS = 16
"""Of a row that a thread has where it can't."""

_MOST_KEPT = 64
"""Values that a thread keeps of two rows at most; else it has one at a time."""

_ADDED_UP = 192
"""Columns of rows that are also added up, at most, where a thread loads as much as can be at once."""


def short_tilings(rows: Rows, size: int, live: int) -> list[RowTiling]:
    """Up to two tilings for short rows that are read, reduced and written."""
    single = _of_one_warp(rows, size, 4)
    if not _aligned(rows, size):
        return [_in_warps(each, _warps(each, rows)) for each in single[:2]]
    return [
        _in_warps(each, warps, 2 if 2 * each.pieces * VECTOR // size * live <= _MOST_KEPT else 1)
        for each in single[:1]
        for warps in dict.fromkeys((1, _warps(each, rows)))
    ]


def leads(short: RowTiling, rule: RowTiling, rows: Rows, size: int) -> bool:
    """Whether the first of these tilings is better as a rule than the one for rows of any length.

    It is where a thread can't load as much as can be at once, and where the other one's tile is much longer than a row.
    """
    return not _aligned(rows, size) or 10 * short.pieces * short.block < 9 * rule.pieces * rule.block


def short_tilings_added_up(rows: Rows, size: int) -> list[RowTiling]:
    """Up to two tilings for short rows: threads keep the sums of their rows, and exchange them at the end."""
    single = _of_one_warp(rows, size, 2)
    if not _aligned(rows, size):
        ways = [_in_warps(each, _warps(each, rows)) for each in single[:2]]
        return [replace(each, programs=24 // each.warps * PROCESSORS) for each in ways]
    if rows.columns > _ADDED_UP:
        return []
    ways = [_in_warps(each, warps) for each in single[:1] for warps in dict.fromkeys((_warps(each, rows), 1))]
    return [replace(each, stages=3, programs=12 // each.warps * PROCESSORS) for each in ways]


def _of_one_warp(rows: Rows, size: int, pieces: int) -> list[RowTiling]:
    """Tilings of one warp, the best first: of about so many pieces where a thread loads as much as can be at once.

    >>> [tiling.name for tiling in _of_one_warp(Rows((65536,), ((49, 1),), 49, False), 2, 4)]
    ['4×7·8, 1 warp', '2×4·16, 1 warp', '1×2·32, 1 warp']
    """
    if not rows.contiguous:
        return []
    aligned = _aligned(rows, size)
    vector, found = min(rows.unit([0]), VECTOR // size), []
    for threads in (4, 8, 16, 32):
        needed = -(-rows.columns // (threads * vector))
        if 2 <= needed <= _PIECES[aligned]:
            found.append(RowTiling(LANES // threads, threads * vector, True, 1, 1, pieces=needed))
    wanted = pieces if aligned else _ELEMENTS // vector
    room = {tiling: tiling.pieces * tiling.block for tiling in found}
    enough = 6 * min(room.values(), default=0) // 5
    return sorted(found, key=lambda each: (room[each] > enough, abs(each.pieces - wanted), each.pieces))


def _aligned(rows: Rows, size: int) -> bool:
    """Whether a thread loads as much as can be at once."""
    return rows.unit([0]) * size >= VECTOR


def _in_warps(tiling: RowTiling, warps: int, each: int = 1) -> RowTiling:
    """So many warps with as many rows as the one of this tiling, or several times as many."""
    return replace(tiling, rows=tiling.rows * warps * each, warps=warps)


def _warps(tiling: RowTiling, rows: Rows) -> int:
    """How many warps programs have whose warps have as many rows as the one of this tiling."""
    # Of few rows every processor is to have some.
    return 4 if rows.count >= 8 * tiling.rows * PROCESSORS else 1
