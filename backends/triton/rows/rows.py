"""Arrays as rows: one axis is worked along, all others count the rows. Strides say where each array has them.

The axes that count rows are put in the memory order of the first array and merged where every array allows it, so that
neighbouring rows are neighbours in memory where the rows themselves aren't contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from einops_fast.backends.triton.device.tiling import Axis, by_stride, merge_axes, power_of_two
from einops_fast.planning.layout import VECTOR

__all__ = [
    "PROCESSORS",
    "RowTiling",
    "Rows",
    "column_tiling",
    "dropping",
    "element_tiling",
    "fitting",
    "gradient_tiling",
    "in_fours",
    "in_programs",
    "loss_tiling",
    "neighbours",
    "pieces_of",
    "row_tiling",
    "rows_of",
    "sums_tiling",
]

PROCESSORS = 132
"""Multiprocessors of a large GPU."""

_WHOLE = 32768
"""The longest rows that one program keeps in registers."""

_MOST_PARTS = 256

_MOST_PIECES = 8


@dataclass(frozen=True)
class Rows:
    """How several arrays lie as rows.

    Attributes:
        sizes: of the axes that count rows, merged; the last is the fastest. At least one.
        strides: per array, those of these axes and then of the columns, in elements; 0 where an array lacks an axis.
        columns: length of a row.
        wide: offsets inside a row need 64 bits.
    """

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    columns: int
    wide: bool

    @property
    def count(self) -> int:
        return prod(self.sizes)

    @property
    def contiguous(self) -> bool:
        """Whether the first array's neighbours in memory are in the same row, not in the same column of two rows."""
        column, row = self.strides[0][-1], self.strides[0][-2]
        return column == 1 or not 0 < row < column or self.columns == 1

    def unit(self, arrays: Iterable[int]) -> int:
        """The largest of 16, 8, 4, 2 and 1 that the columns and the places of these arrays' rows are multiples of.

        >>> Rows((3,), ((1000, 1), (1008, 1)), 1000, False).unit([0, 1])
        8
        """
        return gcd(16, self.columns, *(stride for at in arrays for stride in self.strides[at][:-1]))

    def across(self, arrays: Iterable[int]) -> int:
        """The largest of 16, 8, 4, 2 and 1 by which rows go together, where neighbours are in different rows.

        So many are side by side in memory: what the axis of neighbours has, and all other strides of these arrays, are
        multiples of it.

        >>> Rows((5, 24), ((24000, 1, 24),), 1000, False).across([0]), Rows((5,), ((24, 1),), 24, False).across([0])
        (8, 1)
        """
        if self.contiguous:
            return 1
        places = (self.strides[at] for at in arrays)
        return gcd(16, self.sizes[-1], *(stride for *outer, _, along in places for stride in (*outer, along)))

    def vector(self, arrays: Sequence[int], size: int) -> int:
        """How many elements of so many bytes are read at once if rows are cut, see :mod:`.cut_rows`; 0: they can't be.

        They can where they may begin anywhere, but in all of these arrays at the same place between two even addresses.
        """
        vector = VECTOR // size
        first, *others = (self.strides[at] for at in arrays)
        apart = [a - b for each in others for a, b in zip(first, each, strict=True)]
        return vector if first[-1] == 1 and all(each % vector == 0 for each in apart) else 0


@dataclass(frozen=True)
class RowTiling:
    """How much of the rows a program works on at a time.

    Attributes:
        rows: how many rows.
        block: how many columns.
        whole: a whole row is held, so that it is read once and kept.
        parts: how many programs share a row.
        warps: of a program.
        stages: how many tiles of rows are on their way to a program that works on several of them.
        programs: how many work on the tiles of rows; 0: one for each tile.
        pieces: how many blocks hold a whole row, see :mod:`.row_pieces`.
        registers: of a thread, at most; 0: as many as the compiler likes.
    """

    rows: int
    block: int
    whole: bool
    parts: int = 1
    warps: int = 4
    stages: int = 1
    programs: int = 0
    pieces: int = 1
    registers: int = 0

    @property
    def name(self) -> str:
        """The tiles in a line, unique to them."""
        block = f"{self.pieces}·{self.block}" if self.pieces > 1 else str(self.block)
        tile = f"{self.rows}×{block}" if self.whole else f"{self.rows}×{block} at a time"
        parts = f", {self.parts} parts" if self.parts > 1 else ""
        stages = f", {self.stages} stages" if self.stages > 1 else ""
        programs = f", {self.programs} programs" if self.programs else ""
        registers = f", {self.registers} registers" if self.registers else ""
        return f"{tile}, {self.warps} warp{'s' if self.warps > 1 else ''}{stages}{parts}{programs}{registers}"

    def part(self, columns: int) -> int:
        """Columns of a part, in whole blocks."""
        blocks = -(-columns // self.block)
        return -(-blocks // self.parts) * self.block


def fitting(tiling: RowTiling, arrays: int, size: int, shared: int) -> RowTiling:
    """The tiling, but with one tile of each array at a time if more on their way wouldn't fit.

    Args:
        tiling: the tiles.
        arrays: how many are read.
        size: bytes of an element.
        shared: bytes of shared memory that a program may have.
    """
    needed = (tiling.stages - 1) * arrays * tiling.rows * tiling.pieces * tiling.block * size
    return tiling if needed < shared else replace(tiling, stages=1)


def pieces_of(columns: int, block: int, least: int) -> tuple[int, int]:
    """The columns of tiles that hold so many, side by side, and how many tiles: few of them, and nearly full.

    >>> pieces_of(5000, 8192, 64), pieces_of(8000, 8192, 64)
    ((1024, 5), (8192, 1))

    Args:
        columns: to hold, not more than ``block``.
        block: columns of the largest tile.
        least: columns of the smallest.
    """
    blocks = [block]
    while blocks[-1] // 2 >= max(least, block // _MOST_PIECES):
        blocks.append(blocks[-1] // 2)
    room = {each: -(-columns // each) * each for each in blocks}
    enough = min(room.values()) + columns // 8
    found = next(each for each in blocks if room[each] <= enough)
    return found, room[found] // found


def rows_of(shape: Sequence[int], axis: int, strides: Sequence[Sequence[int]]) -> Rows:
    """Arrays of one shape as rows along ``axis``.

    Args:
        shape: of all arrays.
        axis: the one along a row, not negative.
        strides: per array, in elements; 0 where it is expanded.

    >>> rows_of((2, 3, 5), 1, [(15, 5, 1), (0, 1, 3)])
    Rows(sizes=(2, 5), strides=((15, 1, 5), (0, 3, 1)), columns=3, wide=False)
    """
    axes = [Axis(size, tuple([each[at] for each in strides])) for at, size in enumerate(shape) if at != axis]
    merged = merge_axes(by_stride(axes, 0)) or (Axis(1, (0,) * len(strides)),)
    columns = shape[axis]
    wide = any(columns * abs(each[axis]) >= 1 << 30 for each in strides)
    sizes = tuple([each.size for each in merged])
    places = tuple([(*[each.strides[at] for each in merged], strides[at][axis]) for at in range(len(strides))])
    return Rows(sizes, places, columns, wide)


def row_tiling(rows: Rows, size: int, live: int = 1) -> RowTiling:
    """The tiles for rows that are read, reduced and written.

    All numbers here and below are of the fastest tiles that were measured on an H200 for rows of 1024 to 65,536
    elements of two and four bytes.

    Args:
        rows: how they lie.
        size: bytes of an element.
        live: how many values per element are kept, 1 or 2.
    """
    columns, count = power_of_two(rows.columns), power_of_two(rows.count)
    if not rows.contiguous:
        return _across(rows, live)
    if columns <= _WHOLE * 4 // max(size, 4):
        together = max(1, min(count, 4096 // (columns * size)))
        elements = together * columns
        warps = power_of_two(elements * live // 1024 if live > 1 else elements * size // 2048)
        most = 16 if live > 1 and columns < _WHOLE else 32
        return RowTiling(together, columns, True, 1, min(max(warps, 4 if elements > 1024 else 1), most))
    block, warps = (8192, 8) if live > 1 and size > 2 else (16384, 16) if live > 1 else (16384, 32)
    stages = 3 if live > 1 else 1
    return _in_parts(rows, RowTiling(1, block, False, 1, warps, stages))


def sums_tiling(rows: Rows) -> RowTiling:
    """The tiles for sums of rows too long to be kept."""
    if not rows.contiguous:
        return _across(rows, 4)
    return _in_parts(rows, RowTiling(1, 8192, False, 1, 8, 3))


def gradient_tiling(rows: Rows, size: int, sums: int) -> RowTiling | None:
    """The tiles for whole rows that are also added up, by programs that have several; ``None`` if they are too long.

    Args:
        rows: how they lie.
        size: bytes of an element.
        sums: how many sums of each column are made, up to 2.
    """
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


def loss_tiling(rows: Rows, size: int, gradient: bool) -> RowTiling:
    """The tiles for rows that are only read, by one program each, or for a gradient of which no sums are needed."""
    if rows.columns <= 2048 or not rows.contiguous:
        return replace(row_tiling(rows, size), parts=1)
    if not gradient:
        # Short rows take so little time that many programs have to be under way.
        return RowTiling(1, 2048 // size, False, 1, 1) if rows.columns <= 8192 else RowTiling(1, 2048, False, 1, 4)
    block, warps = (2048, 4) if rows.columns <= 8192 else (4096, 8)
    return _in_parts(rows, RowTiling(1, block, False, 1, warps))


def column_tiling(rows: Rows) -> RowTiling:
    """The tiles for sums down the columns; ``parts`` programs share the rows."""
    tiling = element_tiling(rows, 4)
    if rows.contiguous:
        block = min(power_of_two(rows.columns), 1024)
        tiling = replace(tiling, rows=min(power_of_two(rows.count), 2048 // block), block=block, warps=4)
    return in_programs(rows, replace(tiling, stages=3), 4)


def element_tiling(rows: Rows, size: int) -> RowTiling:
    """The tiles for work on each element alone. Several rows share what they have in common, such as a bias."""
    if rows.contiguous:
        block = min(power_of_two(rows.columns), 1024 // size)
        return RowTiling(min(power_of_two(rows.count), 8192 // (size * block)), block, False, 1, 4)
    together = min(64, power_of_two(rows.sizes[-1]))
    return RowTiling(together, min(power_of_two(rows.columns), 32), False, 1, 4)


def in_programs(rows: Rows, tiling: RowTiling, each: int) -> RowTiling:
    """The tiling with so many parts of the rows that every processor has about so many programs."""
    tiles, steps = -(-rows.columns // tiling.block), -(-rows.count // tiling.rows)
    return replace(tiling, parts=max(1, min(steps, each * PROCESSORS // tiles)))


def _across(rows: Rows, live: int) -> RowTiling:
    """The tiles for rows of which neighbours in memory are in different ones: wide along these."""
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
    """With so many programs for a row that all processors have work."""
    programs = -(-rows.count // tiling.rows)
    if programs >= PROCESSORS:
        return tiling
    # Parts are shorter than what one program has at a time.
    block = min(tiling.block, 4096)
    blocks = -(-rows.columns // block)
    parts = max(1, min(_MOST_PARTS, -(-2 * PROCESSORS // programs), -(-blocks // 4)))
    parts = -(-blocks // -(-blocks // parts))  # none of them without a block
    return replace(tiling, block=block, parts=parts, warps=min(tiling.warps, 8))


def neighbours(rows: Rows, size: int) -> int:
    """How many neighbours in a row a thread loads at once of elements of so many bytes; 1 where they lie apart."""
    return VECTOR // size if rows.strides[0][-1] == 1 else 1


def dropping(p: float) -> tuple[int, float]:
    """How a probability is told to a kernel: the largest word, signed, that drops its element, and the others' factor.

    The probability is rounded to a multiple of 2⁻³², but for 0 not to 0.

    >>> dropping(1.0), dropping(0.5)
    ((2147483647, inf), (-1, 2.0))
    """
    return max(round(p * 2**32), 1) - 2**31 - 1, 1 / (1 - p) if p < 1 else float("inf")


def in_fours(rows: Rows, place: Sequence[int]) -> bool:
    """Whether each four columns from the first on are numbered one after the other, from a multiple of four on.

    Args:
        rows: of which shape.
        place: the strides of the numbers, as in :class:`Rows`.
    """
    return rows.columns % 4 == 0 and place[-1] == 1 and all(each % 4 == 0 for each in place[:-1])
