"""Arrays as rows: one axis is worked along, all others count the rows. Strides say where each array has them.

The axes that count rows are put in the memory order of the first array and merged where every array allows it, so that
neighbouring rows are neighbours in memory where the rows themselves aren't contiguous.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from einops_fast.backends.triton.device.tiling import Axis, by_stride, merge_axes, power_of_two
from einops_fast.planning.layout import VECTOR

PROCESSORS = 132
"""Multiprocessors of a large GPU."""

LONGEST_WHOLE = 32768
"""The longest rows that one program keeps in registers."""

_MOST_PIECES = 8


@dataclass(frozen=True)
class RowFeatures:
    """What a kernel along rows is specialised for, apart from the tiles. Each operator adds its own."""

    axes: int  # how many count the rows
    wide: bool = False
    double: bool = False  # compute in float64. Factors, which would be float32 as arguments, are then constants.
    # what the number of columns, and the places of rows in all arrays that tiles are of, are multiples of; 1
    # where rows are cut
    unit: int = 1
    across: int = 1  # rows that go together, where neighbours are in different rows; see `Rows.across`
    group: int = 1  # how many neighbours in a row a thread has at least
    vector: int = 0  # how many neighbours a thread reads at once where rows are cut, see `.tiles`; else 0
    dropout: bool = False
    fours: bool = False  # four columns each are drawn together
    drop: float = 0.0  # probability of dropping an element, for float64 only


@dataclass(frozen=True)
class Rows:
    """How several arrays lie as rows.

    ``sizes`` are of the axes that count rows, merged, at least one; the last is the fastest. ``strides`` are per array
    those of these axes and then of the columns, in elements; 0 where an array lacks an axis.
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

    def cut(self, arrays: Sequence[int], size: int) -> int:
        """Return how many elements of so many bytes are read at once if rows are cut, see :mod:`.tiles`, or else 0.

        They are where they begin at odd places, but in all of these arrays as far from an even address.
        """
        vector = VECTOR // size
        first, *others = (self.strides[at] for at in arrays)
        apart = [a - b for each in others for a, b in zip(first, each, strict=True)]
        even = self.unit(arrays) % vector == 0
        return vector if first[-1] == 1 and not even and all(each % vector == 0 for each in apart) else 0

    def neighbours(self, size: int) -> int:
        """Return how many neighbours of so many bytes in a row a thread loads at once: 1 where they lie apart."""
        return VECTOR // size if self.strides[0][-1] == 1 else 1

    def features(self, of_tiles: Iterable[int], drop: float | None = None, double: bool = False) -> dict[str, Any]:
        """Return what :class:`RowFeatures` say about these rows, and the arrays that tiles are of.

        If there is a probability of dropping an element, be it 0, the last array has the places of elements in C order.
        """
        found: dict[str, Any] = {
            "axes": len(self.sizes),
            "wide": self.wide,
            "double": double,
            "unit": self.unit(of_tiles),
            "across": self.across(range(len(self.strides) - (drop == 0))),
        }
        if drop is not None:
            *outer, along = self.strides[-1]
            fours = self.columns % 4 == 0 and along == 1 and all(each % 4 == 0 for each in outer)
            found |= {"dropout": drop > 0, "fours": fours, "drop": drop if double else 0.0}
        return found


@dataclass(frozen=True)
class RowTiling:
    """How much of the rows a program works on at a time."""

    rows: int
    block: int
    whole: bool  # a whole row is held, in so many pieces, so that it is read once and kept
    parts: int = 1  # how many programs share a row
    warps: int = 4
    stages: int = 1  # how many tiles of rows are on their way to a program that works on several of them
    programs: int = 0  # how many work on the tiles of rows; 0: one for each tile
    pieces: int = 1
    registers: int = 0  # of a thread, at most; 0: as many as the compiler likes

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

    def without_empty_parts(self, columns: int) -> RowTiling:
        """Return the tiling, but with fewer parts where some would have none of so many columns."""
        return replace(self, parts=-(-columns // self.part(columns)))

    def fitting(self, arrays: int, size: int, shared: int) -> RowTiling:
        """Return the tiling, but with one tile of each array at a time if more wouldn't fit in shared memory."""
        needed = (self.stages - 1) * arrays * self.rows * self.pieces * self.block * size
        return self if needed < shared else replace(self, stages=1)


def pieces_of(columns: int, block: int, least: int) -> tuple[int, int]:
    """The columns of tiles that hold so many, side by side, and how many tiles: few of them, and nearly full.

    >>> pieces_of(5000, 8192, 64), pieces_of(8000, 8192, 64)
    ((1024, 5), (8192, 1))
    """
    blocks = [block]
    while blocks[-1] // 2 >= max(least, block // _MOST_PIECES):
        blocks.append(blocks[-1] // 2)
    room = {each: -(-columns // each) * each for each in blocks}
    enough = min(room.values()) + columns // 8
    found = next(each for each in blocks if room[each] <= enough)
    return found, room[found] // found


def rows_of(shape: Sequence[int], axis: int, strides: Sequence[Sequence[int]]) -> Rows:
    """Return arrays of one shape as rows along an axis, by their strides in elements, 0 where they are expanded.

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


def typical(rows: Rows, any_size: bool = False) -> Rows:
    """Return rows that stand for all of a class, for which one measurement is enough.

    Their numbers are rounded up to powers of two, but exact up to 16. Those of columns are where one kernel serves
    ``any_size``, unless a row is in parts.

    >>> typical(Rows((3, 1000), ((8192, 8, 1),), 8, False)).sizes
    (3, 1024)
    """
    columns = power_of_two(rows.columns) if any_size and rows.columns <= LONGEST_WHOLE else rows.columns
    sizes = tuple([size if size <= 16 else power_of_two(size) for size in rows.sizes])
    return replace(rows, sizes=sizes, columns=columns)


def dropping(p: float) -> tuple[int, float]:
    """How a probability is told to a kernel: the largest word, signed, that drops its element, and the others' factor.

    The probability is rounded to a multiple of 2⁻³², but for 0 not to 0.

    >>> dropping(1.0), dropping(0.5)
    ((2147483647, inf), (-1, 2.0))
    """
    return max(round(p * 2**32), 1) - 2**31 - 1, 1 / (1 - p) if p < 1 else float("inf")
