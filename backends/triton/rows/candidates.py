"""Tiles that are worth trying for kernels that work along rows: those of the rule in :mod:`rows`, then neighbours."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from math import gcd
from typing import Any, NamedTuple

from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.backends.triton.rows.contest import Call
from einops_fast.backends.triton.rows.rows import (
    PROCESSORS,
    Rows,
    RowTiling,
    column_tiling,
    element_tiling,
    fitting,
    gradient_tiling,
    in_programs,
    loss_tiling,
    pieces_of,
    row_tiling,
    sums_tiling,
)
from einops_fast.backends.triton.rows.short import leads, short_tilings, short_tilings_added_up

__all__ = [
    "column_tilings",
    "cut_tilings",
    "element_tilings",
    "gradient_tilings",
    "loss_tilings",
    "row_call",
    "row_tilings",
    "sums_tilings",
    "typical",
]

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

_LOSS_TILES = {
    (False, True): ((1024, 1, 1), (1024, 2, 1), (2048, 2, 1)),
    (False, False): ((1024, 1, 1), (2048, 8, 1), (4096, 8, 1), (8192, 8, 2), (8192, 16, 3)),
    (True, True): ((1024, 4, 1), (1024, 8, 1), (1024, 4, 3)),
    (True, False): ((2048, 8, 1), (4096, 4, 3), (8192, 8, 3), (8192, 16, 1)),
}
"""Blocks, warps and stages for logits, or for their gradient, of rows that are short, or not."""


def typical(rows: Rows) -> Rows:
    """Rows that stand for all of a class, for which one measurement is enough.

    Their numbers are rounded up to powers of two, but exact up to 16; those of columns aren't.

    >>> typical(Rows((3, 1000), ((8192, 8, 1),), 8, False)).sizes
    (3, 1024)
    """
    return replace(rows, sizes=tuple([size if size <= 16 else power_of_two(size) for size in rows.sizes]))


def row_call(operator: str, rows: Rows, features: Any, mode: str, in_place: bool = False) -> Call:
    """A kind of call for :class:`~einops_fast.backends.triton.rows.contest.Contest`.

    Args:
        operator: its name.
        rows: typical ones.
        features: those of the kernel, a dataclass. Numbers that aren't whole make no difference for time, but for 0.
        mode: of :func:`einops_fast.autotune`.
        in_place: a result is written over what is read.
    """
    values = {each.name: getattr(features, each.name) for each in fields(features)}
    named = [
        name if value is True else value for name, value in values.items() if value is True or isinstance(value, str)
    ]
    values = {name: bool(value) if isinstance(value, float) else value for name, value in values.items()}
    strides = [" ".join(map(_stride, each)) for each in rows.strides]
    apart = [] if rows.strides[0][-1] == 1 else [f"strides {strides[0]}"]
    text = f"{operator}, {'·'.join(map(str, rows.sizes))} rows of {rows.columns}"
    details = {"features": values, "strides": strides}
    return Call(", ".join([text, *named, *apart]), details, mode, in_place, ", ".join([operator, *named]))


def _stride(stride: int) -> str:
    """A stride as far as it matters which addresses are multiples of how much."""
    return str(stride) if stride < 2 else f"{gcd(stride, 16)}n"


def _rivals(rule: RowTiling, others: Iterable[RowTiling], fit: Callable[[RowTiling], RowTiling]) -> list[RowTiling]:
    """The rule's first, and each once; those that a device can't have are left out by whoever compiles them."""
    able = [each for each in (rule, *others) if 1 <= each.warps <= 32 and each.rows >= 1]
    return list(dict.fromkeys(map(fit, able)))[:_MOST]


def in_pieces(tiling: RowTiling, rows: Rows, size: int) -> RowTiling:
    """The tiling with whole rows in several pieces, where these come nearer to a row's length than one block.

    >>> in_pieces(RowTiling(1, 8192, True, warps=8), Rows((7,), ((5000, 1),), 5000, False), 2).name
    '1×5·1024, 8 warps'

    Args:
        tiling: with one piece.
        rows: what it is for.
        size: bytes of an element.
    """
    if not tiling.whole:
        return tiling
    block, pieces = pieces_of(rows.columns, tiling.block, _LEAST_RUN // size if rows.contiguous else 16)
    # Each thread has something of every piece: 8 bytes of neighbours, or 16 where there are as many in all rows.
    warps = min(tiling.warps, max(tiling.rows * block * size // (256 if rows.contiguous else 512), 1))
    return replace(tiling, block=block, pieces=pieces, warps=warps)


def row_tilings(rows: Rows, size: int, live: int, arrays: int, shared: int) -> list[RowTiling]:
    """For rows that are read, reduced and written; see :func:`~einops_fast.backends.triton.rows.rows.row_tiling`.

    Args:
        rows: how they lie.
        size: bytes of an element.
        live: how many values per element are kept.
        arrays: how many are read.
        shared: bytes of shared memory that a program may have.
    """
    rule = row_tiling(rows, size, live)
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
    every = [in_pieces(each, rows, size) for each in (rule, *others)]
    every.insert(2, rule)  # seven pieces of eight may cost more than they save
    short = short_tilings(rows, size, live)
    at = 0 if short and leads(short[0], every[0], rows, size) else 1
    every[at:at] = short
    return _rivals(every[0], every[1:], lambda tiling: fitting(tiling, arrays, size, shared))


def cut_tilings(rows: Rows) -> list[RowTiling]:
    """For rows that are cut: one at a time, in blocks."""
    tiles = ((2048, 4), (4096, 8), (8192, 16)) if rows.columns > 4096 else ((1024, 4), (2048, 4))
    return [RowTiling(1, block, False, 1, warps) for block, warps in tiles if block <= rows.columns]


def sums_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """For sums of rows too long to be kept."""
    rule = sums_tiling(rows)
    others = [replace(rule, block=max(rule.block // 2, 16), whole=False), replace(rule, warps=2 * rule.warps)]
    return _rivals(rule, others, lambda tiling: fitting(tiling, arrays, size, shared))


def gradient_tilings(rows: Rows, size: int, sums: int, arrays: int, shared: int) -> list[RowTiling]:
    """For whole rows that are also added up; none if they are too long."""
    rule = gradient_tiling(rows, size, sums)
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
    every = [*short_tilings_added_up(rows, size), *_in_pieces_added_up(rule, rows, size), rule, *others]
    return _rivals(every[0], every[1:], lambda tiling: fitting(tiling, arrays, size, shared))


def _in_pieces_added_up(tiling: RowTiling, rows: Rows, size: int) -> list[RowTiling]:
    """Those in pieces, of one row, with as many programs as have room for the sums in their registers.

    On an H200 those of few warps, of which there are several on a processor, were the fastest.
    """
    row = in_pieces(replace(tiling, rows=1), rows, size)
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
    """For rows that are only read, or for a gradient of which no sums are needed."""
    rule = loss_tiling(rows, size, gradient)
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
    return _rivals(rule, others, lambda tiling: fitting(tiling, 1, size, shared))


def column_tilings(rows: Rows, size: int, arrays: int, shared: int) -> list[RowTiling]:
    """For sums down the columns."""
    rule = column_tiling(rows)
    half = in_programs(rows, replace(rule, block=max(rule.block // 2, 16)), 4)
    flat = replace(rule, rows=8, block=min(rule.block, 256), warps=8, stages=1)
    others = [half, replace(rule, stages=4), replace(rule, warps=8), in_programs(rows, rule, 2)]
    if rows.contiguous:
        others.insert(1, in_programs(rows, flat, 1))
    return _rivals(rule, others, lambda tiling: fitting(tiling, arrays, size, shared))


def element_tilings(rows: Rows, size: int) -> list[RowTiling]:
    """For work on each element alone, of so many bytes."""
    rule = element_tiling(rows, size)
    others = [replace(rule, rows=2 * rule.rows, warps=8), replace(rule, rows=rule.rows // 2), replace(rule, warps=8)]
    if rule.block >= 256:
        others.append(RowTiling(rule.rows, 256, False, 1, 2))
        if rows.columns >= 1024:
            others.append(RowTiling(1, 1024, False, 1, 4))
    return _rivals(rule, others, lambda tiling: tiling)
