"""Copies of arrays whose rows lie at odd places, into memory where each begins at 16 bytes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.launches import Launch, Room, renamed
from einops_fast.backends.triton.attention.problem import Layout, merged
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.planning.layout import contiguous_strides

_ROWS = 32
"""Of a tile."""

_COLUMNS = 128
"""Of a tile, at most."""

_WHOLE = 16
"""Rows of a copy begin at multiples of so many elements, which Triton tells from other numbers: at least 16 bytes."""


@dataclass(frozen=True)
class _Tile:
    """What the kernel is specialised for in one array."""

    # columns are written in pieces of so many, with zeros after the last one: memory that is written in whole
    # pieces isn't read before
    whole: int
    width: int  # columns of a tile
    axes: int  # batch axes


@triton.constexpr_function
def _tile(tiles, at):
    return tiles[at]


@triton.jit
def _copy(
    source, target, from_strides, to_strides, sizes, rows, columns, tile: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Copy a tile of rows; nothing where the program's number is beyond the last."""
    tiles = tl.cdiv(rows, block)
    zero = tl.full((), 0, tl.int64)
    element = tl.program_id(0) // tiles + zero
    first = tl.program_id(0) % tiles * block
    for axis in tl.static_range(tile.axes - 1, -1, -1):
        at = element % sizes[axis]
        element = element // sizes[axis]
        source += at * from_strides[axis]
        target += at * to_strides[axis]
    source += first * (from_strides[tile.axes] + zero)
    target += first * (to_strides[tile.axes] + zero)
    row = tl.arange(0, block)[:, None]
    there = (first + row < rows) & (element == 0)
    written = tl.cdiv(columns, tile.whole) * tile.whole
    for start in range(0, written, tile.width):
        column = start + tl.arange(0, tile.width)[None, :]
        place = source + row * from_strides[tile.axes] + column * from_strides[tile.axes + 1]
        values = tl.load(place, mask=there & (column < columns), other=0)
        place = target + row * to_strides[tile.axes] + column * to_strides[tile.axes + 1]
        tl.store(place, values, mask=there & (column < written))


@triton.jit
def rows_kernel(
    sources, targets, from_strides, to_strides, sizes, rows, columns, tiles: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Copy one tile of rows per program; the second axis of the grid selects the array."""
    for which in tl.static_range(len(tiles)):
        if tl.program_id(1) == which:
            _copy(
                sources[which], targets[which], from_strides[which], to_strides[which], sizes[which], rows[which],
                columns[which], _tile(tiles, which), block,
            )  # fmt: skip


class _Copied:
    """What one array and its copy look like: strides of both, with the batch axes merged where possible.

    The copy lacks the batch axes along which the array has the same for all.
    """

    def __init__(self, layout: Layout) -> None:
        shape, strides, self.dtype = layout
        *batch, self.rows, self.columns = shape
        batch = [size if stride else 1 for size, stride in zip(batch, strides, strict=False)]
        stored = (*batch, self.rows, -(-self.columns // _WHOLE) * _WHOLE)
        self.elements = prod(stored)
        *others, of_rows, of_columns = contiguous_strides(stored)
        along = [stride if size > 1 else 0 for size, stride in zip(batch, others, strict=True)]
        self.strides = (*along, of_rows, of_columns)
        own = [at for at, size in enumerate(batch) if size > 1]
        both = {"array": [strides[at] for at in own], "copy": [along[at] for at in own]}
        self.sizes, kept = merged([batch[at] for at in own], both, ())
        self.own, self.other = (*kept["array"], *strides[-2:]), (*kept["copy"], of_rows, of_columns)
        self.programs = prod(self.sizes) * -(-self.rows // _ROWS)

    def tile(self, back: bool) -> _Tile:
        return _Tile(1 if back else _WHOLE, min(_COLUMNS, 1 << (self.columns - 1).bit_length()), len(self.sizes))


class RowCopies:
    """Copies of some arrays and back, of all that go one way in one launch."""

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._copied = {name: _Copied(layout) for name, layout in layouts.items()}

    @property
    def strides(self) -> dict[str, tuple[int, ...]]:
        """Of the copies, which have gaps after their rows; 0 for batch axes that they lack."""
        return {name: copied.strides for name, copied in self._copied.items()}

    @property
    def names(self) -> dict[str, str]:
        """What copies are called, by the arrays' names."""
        return {name: f"{name} copy" for name in self._copied}

    def launch(self, names: Iterable[str], back: bool = False) -> tuple[Launch, ...]:
        """Return the launch that copies those of the arrays, or writes back what the copies hold; none if none."""
        given = tuple([name for name in names if name in self._copied])
        copied = [self._copied[name] for name in given]
        takes = given, tuple([self.names[name] for name in given])
        if not given:
            return ()
        strides = [(each.other, each.own) if back else (each.own, each.other) for each in copied]
        sizes = [(tuple(each.sizes), each.rows, each.columns) for each in copied]
        call = KernelCall(
            rows_kernel,
            (max(each.programs for each in copied), len(copied)),
            (*zip(*strides, strict=True), *zip(*sizes, strict=True)),
            {"tiles": tuple([each.tile(back) for each in copied]), "block": _ROWS},
            4,
            1,
        )
        return (Launch(call, takes[::-1] if back else takes),)

    def around(
        self, launches: Sequence[Launch], written: Collection[str], filled: Collection[str] = ()
    ) -> tuple[Launch, ...]:
        """Return launches that go by the copies, between those that copy in and, of ``written`` arrays, back.

        Arrays that are ``filled`` before are copied in, too.
        """
        into = self.launch([name for name in self._copied if name not in written or name in filled])
        first, *others = (*into, *renamed(launches, self.names))
        rooms = [Room(self.names[name], copied.elements, copied.dtype) for name, copied in self._copied.items()]
        return first._replace(rooms=(*rooms, *first.rooms)), *others, *self.launch(written, back=True)
