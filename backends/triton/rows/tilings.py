"""Tiles that are worth trying for kernels that work along rows: those of a rule, then neighbours.

The rule's numbers are of the fastest tiles that were measured on an H200 for rows of 1024 to 65,536 elements of two and
four bytes.

Of *short* rows a warp has several, each in pieces of a few threads: these exchange less than all threads of a warp
would for each row, and where rows begin at odd places, more of them have something to load. On an H200, softmax of rows
of 33 elements of two bytes took a quarter of the time that it took in one block of 64, of 49 half of it, and layer norm
of 192 took 0.8 times as long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from einops_fast.backends.triton.device.tiling import LANES, power_of_two
from einops_fast.backends.triton.rows.rows import LONGEST_WHOLE, PROCESSORS, Rows, RowTiling, pieces_of
from einops_fast.planning.layout import VECTOR

_MOST_PARTS = 256

_MOST = 6
"""Tilings that compete: each has to be compiled."""

_LEAST_RUN = 256
"""Bytes of a piece of a row side by side in memory."""

_MOST_ACROSS = 32768
"""Elements of a tile that fit in the registers of a multiprocessor, where neighbours are in different rows."""


class _Room(NamedTuple):
    """How many warps of a multiprocessor fit if a thread adds up so many columns at most, and at least half as many.

    ``registers`` are those of a thread then; 0: as many as the compiler likes.
    """

    columns: int
    warps: int
    registers: int


_ROOMS = _Room(14, 16, 128), _Room(26, 12, 168), _Room(52, 8, 0)

_PIECES = {True: 6, False: 8}
"""Of a row at most, if a thread loads as much as can be at once, or can't."""

_ELEMENTS = 16
"""Of a row that a thread has where it can't."""

_MOST_KEPT = 64
"""Values that a thread keeps of two rows at most; else it has one at a time."""

_ADDED_UP = 192
"""Columns of rows that are also added up, at most, where a thread loads as much as can be at once."""

_LOSS_TILES = {
    (False, True): ((1024, 1, 1), (1024, 2, 1), (2048, 2, 1)),
    (False, False): ((1024, 1, 1), (2048, 8, 1), (4096, 8, 1), (8192, 8, 2), (8192, 16, 3)),
    (True, True): ((1024, 4, 1), (1024, 8, 1), (1024, 4, 3)),
    (True, False): ((2048, 8, 1), (4096, 4, 3), (8192, 8, 3), (8192, 16, 1)),
}
"""Blocks, warps and stages for logits, or for their gradient, of rows that are short, or not."""


def _rivals(tilings: Iterable[RowTiling], arrays: int, size: int, shared: int) -> list[RowTiling]:
    """Return the first few tilings, each once; those that a device can't have are left out by whoever compiles them."""
    able = [each.fitting(arrays, size, shared) for each in tilings if 1 <= each.warps <= 32 and each.rows >= 1]
    return list(dict.fromkeys(able))[:_MOST]


def row_tilings(rows: Rows, size: int, live: int, arrays: int, shared: int) -> list[RowTiling]:
    """Return tilings for rows of elements of so many bytes that are read, reduced and written.

    Of each element ``live`` values are kept, 1 or 2; so many ``arrays`` are read, and a program may have so many bytes
    of ``shared`` memory.
    """
    rule = _row_rule(rows, size, live)
    warps = rule.warps
    others = [replace(rule, warps=warps // 2), replace(rule, warps=2 * warps)]
    if not rows.contiguous and rule.block > 16:
        # Longer runs of neighbours, of fewer columns; or all of them, in as many registers as there are.
        others.insert(0, replace(rule, rows=2 * rule.rows, block=rule.block // 2, whole=False))
        at_once = replace(rule, block=power_of_two(rows.columns), whole=True, parts=1, warps=16)
        if not rule.whole and at_once.rows * at_once.block <= _MOST_ACROSS:
            others.insert(0, at_once)
    if rule.whole and rule.block <= 8192:
        double = replace(rule, rows=2 * rule.rows)
        half = replace(rule, rows=rule.rows // 2) if rule.rows > 1 else replace(rule, warps=warps // 2)
        others += [double, replace(double, warps=2 * warps), replace(half, warps=half.warps // 2)]
    elif rule.whole:
        looped = RowTiling(rule.rows, min(rule.block // 2, 8192), False, 1, min(warps, 16))
        others += [looped, replace(looped, stages=3)]
    elif rule.parts > 1:
        blocks = -(-rows.columns // rule.block)
        more = -(-blocks // -(-blocks // min(2 * rule.parts, blocks)))  # none of them without a block
        others += [replace(rule, parts=more), replace(rule, parts=1)]
    else:
        half = replace(rule, block=rule.block // 2)
        others += [half, replace(half, warps=warps // 2), replace(rule, stages=1 if rule.stages > 1 else 3)]
    every = [_in_pieces(each, rows, size) for each in (rule, *others)]
    every.insert(2, rule)  # seven pieces of eight may cost more than they save
    short = _short_tilings(rows, size, live)
    at = 0 if short and _leads(short[0], every[0], rows, size) else 1
    every[at:at] = short
    return _rivals(every, arrays, size, shared)


def _row_rule(rows: Rows, size: int, live: int = 1) -> RowTiling:
    columns, count = power_of_two(rows.columns), power_of_two(rows.count)
    if not rows.contiguous:
        return _across(rows, live)
    if columns <= LONGEST_WHOLE * 4 // max(size, 4):
        together = max(1, min(count, 4096 // (columns * size)))
        elements = together * columns
        warps = power_of_two(elements * live // 1024 if live > 1 else elements * size // 2048)
        most = 16 if live > 1 and columns < LONGEST_WHOLE else 32
        return RowTiling(together, columns, True, 1, min(max(warps, 4 if elements > 1024 else 1), most))
    block, warps = (8192, 8) if live > 1 and size > 2 else (16384, 16) if live > 1 else (16384, 32)
    stages = 3 if live > 1 else 1
    return _in_parts(rows, RowTiling(1, block, False, 1, warps, stages))


def _across(rows: Rows, live: int) -> RowTiling:
    """Return the rule's tiling for rows of which neighbours in memory are in different ones: wide along these."""
    columns = power_of_two(rows.columns)
    together = min(32, power_of_two(rows.sizes[-1]))
    whole = columns * together * live <= 16384
    block = columns if whole else max(4096 // (together * live), 16)
    elements = together * block * live
    warps = min(16 if live > 1 else 32, max(4 if elements > 1024 else 1, power_of_two(elements // 1024)))
    if whole:
        return RowTiling(together, block, True, 1, warps)
    return _in_parts(rows, RowTiling(together, block, False, 1, max(min(warps, 8), 4)))


def _in_parts(rows: Rows, tiling: RowTiling) -> RowTiling:
    """Have so many programs share a row that all processors have work."""
    programs = -(-rows.count // tiling.rows)
    if programs >= PROCESSORS:
        return tiling
    # Parts are shorter than what one program has at a time.
    block = min(tiling.block, 4096)
    blocks = -(-rows.columns // block)
    parts = max(1, min(_MOST_PARTS, -(-2 * PROCESSORS // programs), -(-blocks // 4)))
    parts = -(-blocks // -(-blocks // parts))  # none of them without a block
    return replace(tiling, block=block, parts=parts, warps=min(tiling.warps, 8))


def _in_pieces(tiling: RowTiling, rows: Rows, size: int) -> RowTiling:
    """Cut whole rows in several pieces, where these come nearer to a row's length than one block.

    >>> _in_pieces(RowTiling(1, 8192, True, warps=8), Rows((7,), ((5000, 1),), 5000, False), 2).name
    '1×5·1024, 8 warps'
    """
    if not tiling.whole:
        return tiling
    block, pieces = pieces_of(rows.columns, tiling.block, _LEAST_RUN // size if rows.contiguous else 16)
    # Each thread has something of every piece: 8 bytes of neighbours, or 16 where there are as many in all rows.
    warps = min(tiling.warps, max(tiling.rows * block * size // (256 if rows.contiguous else 512), 1))
    return replace(tiling, block=block, pieces=pieces, warps=warps)


def cut_tilings(rows: Rows) -> list[RowTiling]:
    """Return tilings for rows that are cut: one at a time, in blocks."""
    tiles = ((2048, 4), (4096, 8), (8192, 16)) if rows.columns > 4096 else ((1024, 4), (2048, 4))
    return [RowTiling(1, block, False, 1, warps) for block, warps in tiles if block <= rows.columns]


def sums_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """Return tilings for sums of rows too long to be kept."""
    rule = _in_parts(rows, RowTiling(1, 8192, False, 1, 8, 3)) if rows.contiguous else _across(rows, 4)
    half = replace(rule, block=max(rule.block // 2, 16), whole=False)
    return _rivals([rule, half, replace(rule, warps=2 * rule.warps)], arrays, size, shared)


def gradient_tilings(rows: Rows, size: int, sums: int, arrays: int, shared: int) -> list[RowTiling]:
    """Return tilings for whole rows that are also added up, by programs that have several; none if they are too long.

    Of each column up to two ``sums`` are made.
    """
    rule = _added_up_rule(rows, size, sums)
    if rule is None:
        return []
    warps, programs = rule.warps, rule.programs
    if rule.rows > 1:
        half = replace(rule, rows=rule.rows // 2, warps=max(warps // 2, 1), programs=2 * programs)
        others = [half, replace(half, stages=1), replace(half, rows=rule.rows), replace(rule, rows=2 * rule.rows)]
    else:
        fewer = replace(rule, programs=max(programs // 2, PROCESSORS))
        double = replace(rule, warps=2 * warps)
        others = [fewer, replace(rule, warps=warps // 2), replace(double, stages=1)]
        others += [replace(double, programs=fewer.programs), replace(rule, stages=1)]
    every = [*_short_tilings_added_up(rows, size), *_in_pieces_added_up(rule, rows, size), rule, *others]
    return _rivals(every, arrays, size, shared)


def _added_up_rule(rows: Rows, size: int, sums: int) -> RowTiling | None:
    columns = power_of_two(rows.columns)
    if not rows.contiguous:
        tiling = _across(rows, 4)
        return replace(tiling, programs=2 * PROCESSORS) if tiling.whole else None
    if columns > (8192 if sums > 1 else 16384) * 4 // max(size, 4):
        return None
    if columns > 8192:
        return RowTiling(1, columns, True, 1, 16 if size == 2 else 32, 1, PROCESSORS)
    # So few warps that all of them are needed along a row, and rows are added up without exchange between them.
    warps = 8 if columns > 2048 else min(max(columns // 256, 1), 4)
    together = max(1, min(warps * 512 // columns, power_of_two(rows.count)))
    each = 1 if columns * size > 8192 else 2 if warps == 8 else 12 // warps
    return RowTiling(together, columns, True, 1, warps, 3, each * PROCESSORS)


def _in_pieces_added_up(tiling: RowTiling, rows: Rows, size: int) -> list[RowTiling]:
    """Return those in pieces, of one row, with as many programs as have room for the sums in their registers.

    On an H200 those of few warps, of which there are several on a processor, were the fastest.
    """
    row = _in_pieces(replace(tiling, rows=1), rows, size)
    if row.pieces == 1 or not rows.contiguous:
        return []
    found = []
    for warps in (4, 2, 1):
        each, vectors = row.pieces * row.block // (32 * warps), row.block * size // (32 * warps)
        if 8 <= vectors <= 32:
            found += [
                replace(row, warps=warps, stages=3, programs=room.warps // warps * PROCESSORS, registers=room.registers)
                for room in _ROOMS
                if room.columns // 2 < each <= room.columns
            ]
    return found


def loss_tilings(rows: Rows, size: int, gradient: bool, shared: int) -> list[RowTiling]:
    """Return tilings for rows that are only read, or for a gradient of which no sums are needed."""
    rule = _loss_rule(rows, size, gradient)
    if rule.whole or not rows.contiguous or rule.parts > 1:
        others = [replace(rule, warps=rule.warps // 2), replace(rule, warps=2 * rule.warps)]
        if rule.whole and not gradient:
            double = replace(rule, rows=2 * rule.rows)
            others += [replace(rule, warps=rule.warps // 4), double, replace(double, warps=rule.warps // 2)]
    else:
        short = rows.columns <= 8192
        tiles = _LOSS_TILES[gradient, short]
        others = [RowTiling(1, block, False, 1, warps, stages) for block, warps, stages in tiles]
        if short and not gradient:
            whole = RowTiling(1, power_of_two(rows.columns), True, 1, 4)
            others += [whole, replace(whole, rows=2, warps=8)]
    return _rivals([rule, *others], 1, size, shared)


def _loss_rule(rows: Rows, size: int, gradient: bool) -> RowTiling:
    if rows.columns <= 2048 or not rows.contiguous:
        return replace(_row_rule(rows, size), parts=1)
    if not gradient:
        # Short rows take so little time that many programs have to be under way.
        return RowTiling(1, 2048 // size, False, 1, 1) if rows.columns <= 8192 else RowTiling(1, 2048, False, 1, 4)
    block, warps = (2048, 4) if rows.columns <= 8192 else (4096, 8)
    return _in_parts(rows, RowTiling(1, block, False, 1, warps))


def column_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """Return tilings for sums down the columns; ``parts`` programs share the rows."""
    rule = _element_rule(rows, 4)
    if rows.contiguous:
        block = min(power_of_two(rows.columns), 1024)
        rule = replace(rule, rows=min(power_of_two(rows.count), 2048 // block), block=block, warps=4)
    rule = _in_programs(rows, replace(rule, stages=3), 4)
    half = _in_programs(rows, replace(rule, block=max(rule.block // 2, 16)), 4)
    flat = replace(rule, rows=8, block=min(rule.block, 256), warps=8, stages=1)
    others = [half, replace(rule, stages=4), replace(rule, warps=8), _in_programs(rows, rule, 2)]
    if rows.contiguous:
        others.insert(1, _in_programs(rows, flat, 1))
    return _rivals([rule, *others], arrays, size, shared)


def _in_programs(rows: Rows, tiling: RowTiling, each: int) -> RowTiling:
    """Share the rows by so many parts that every processor has about so many programs."""
    tiles, steps = -(-rows.columns // tiling.block), -(-rows.count // tiling.rows)
    return replace(tiling, parts=max(1, min(steps, each * PROCESSORS // tiles)))


def element_tilings(rows: Rows, size: int) -> list[RowTiling]:
    """Return tilings for work on each element alone, of so many bytes."""
    rule = _element_rule(rows, size)
    others = [replace(rule, rows=2 * rule.rows, warps=8), replace(rule, rows=rule.rows // 2), replace(rule, warps=8)]
    if rule.block >= 256:
        others.append(RowTiling(rule.rows, 256, False, 1, 2))
        if rows.columns >= 1024:
            others.append(RowTiling(1, 1024, False, 1, 4))
    return _rivals([rule, *others], 1, size, 1)


def _element_rule(rows: Rows, size: int) -> RowTiling:
    """Return the rule's tiling; several rows share what they have in common, such as a bias."""
    if rows.contiguous:
        block = min(power_of_two(rows.columns), 1024 // size)
        return RowTiling(min(power_of_two(rows.count), 8192 // (size * block)), block, False, 1, 4)
    together = min(64, power_of_two(rows.sizes[-1]))
    return RowTiling(together, min(power_of_two(rows.columns), 32), False, 1, 4)


def _short_tilings(rows: Rows, size: int, live: int) -> list[RowTiling]:
    """Up to two tilings for short rows that are read, reduced and written."""
    single = _of_one_warp(rows, size, 4)
    if not _aligned(rows, size):
        return [_in_warps(each, _warps(each, rows)) for each in single[:2]]
    return [
        _in_warps(each, warps, 2 if 2 * each.pieces * VECTOR // size * live <= _MOST_KEPT else 1)
        for each in single[:1]
        for warps in dict.fromkeys((1, _warps(each, rows)))
    ]


def _leads(short: RowTiling, rule: RowTiling, rows: Rows, size: int) -> bool:
    """Whether the first of these tilings is better as a rule than the one for rows of any length.

    It is where a thread can't load as much as can be at once, and where the other one's tile is much longer than a row.
    """
    return not _aligned(rows, size) or 10 * short.pieces * short.block < 9 * rule.pieces * rule.block


def _short_tilings_added_up(rows: Rows, size: int) -> list[RowTiling]:
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
