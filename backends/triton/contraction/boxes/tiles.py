"""Tiles of the contraction kernel for Hopper: how the hardware sees arrays, and where a tile's boxes lie in them."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.contraction.tiling import Tiling
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import in_swaths
from einops_fast.planning.epilogue import Epilogue

BATCH, ROWS, COLUMNS, CONTRACTED = range(4)

_SHORT = ("none", "relu", "leaky_relu", "squared_relu", "star_relu")
"""Activations of a few instructions, which are applied at once."""


@dataclass(frozen=True)
class Dim:
    """One axis of an array as TMA sees it: the position of a box is ``tile // divisor % count * step``.

    ``role`` says which tile's number that is; ``shift`` is from the rows of one warp group to those of the next.
    """

    size: int
    stride: int
    role: int
    divisor: int
    count: int
    step: int
    box: int
    shift: int = 0


@dataclass(frozen=True)
class View:
    """An array as TMA sees it: up to five axes, the contiguous one last.

    ``turned`` if the axis that a product has first is the contiguous one.
    """

    dims: tuple[Dim, ...]
    turned: bool

    @property
    def block(self) -> list[int]:
        return [dim.box for dim in self.dims]

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class BoxTiling(Tiling):
    """Everything that the kernel is specialised for."""

    # how the arrays are seen; a box of the left operand and of the result has 64 rows
    left: View
    right: View
    out: View
    tiles: tuple[int, int, int, int]  # how many there are of batch, rows and columns, and how many steps in each
    groups: int  # warp groups, each with 64 rows of a tile
    width: int
    depth: int
    swath: int = 8
    # in how many pieces, by columns, a warp group's rows of a tile are activated and leave, through shared memory
    # for two of them; 1 if all leave at once. A second part is one piece more, of the same width.
    pieces: int = 1
    rest: int = 0  # columns of a tile's second part, where their number is no power of two
    # its strides along the axes of `out`; it has at most one of the two that boxes extend along
    bias: tuple[int, ...] = ()
    # where the left operand is a product, the other factor; it lacks one of the axes that boxes extend along
    factor: View | None = None
    # the right operand is copied once, with the first of a program's tiles, and stays in shared memory
    resident: bool = False
    # the result lies as the hardware can't write it, such as in rows that begin at odd places: threads do
    loose: bool = False

    @property
    def factored(self) -> bool:
        """Whether the left operand is the product of two arrays."""
        return self.factor is not None

    @property
    def right_rest(self) -> View:
        """How the right operand is seen for the second part."""
        return _narrowed(self.right, self.rest or self.width)

    @property
    def out_rest(self) -> View:
        """How the result is seen for it."""
        return _narrowed(self.out, self.rest or self.width)

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        apart = any(dim.shift == 1 for dim in self.left.dims)
        rows = f"{self.groups}·64" if apart else f"{64 * self.groups}"
        turns = ", in turns" if self.turns > 1 else ""
        pieces = f", {self.pieces} pieces" if self.pieces > 1 else ""
        parts = f", split {self.split}" if self.split > 1 else ", the right one stays" if self.resident else ""
        tile = f"{rows}×{self.width + self.rest}×{self.depth}"
        loose = ", loose" if self.loose else ""
        return f"contraction of boxes {tile}, {self.stages} stages{pieces}{parts}{turns}{loose}"

    @property
    def by_threads(self) -> bool:
        """Whether threads write what they have multiplied, be it the result or sums of parts."""
        return self.loose or self.split > 1

    @property
    def stored_at_once(self) -> int:
        """Neighbours of the result that a thread may store at once: its rows begin at multiples of so many."""
        return gcd(8, *(dim.stride for dim in self.out.dims[:-1]))

    @property
    def meanwhile(self) -> bool:
        """Whether the activation is applied to the rounded sums, while the next tile is multiplied."""
        return self.pieces == 1 and not self.loose and ends_late(self.epilogue)

    @property
    def out_piece(self) -> View:
        """How the result is seen where it's written."""
        return _narrowed(self.out, self.width // self.pieces)

    @property
    def turns(self) -> int:
        """Warp groups that have whole tiles by turns: while one multiplies, another one ends its own.

        Where the right operand stays, two read no more than one does.
        """
        return 2 if self.resident and self.groups == 1 else 1

    @property
    def repeats(self) -> int:
        """Steps, one after the other, with the same boxes of a left operand that is a product: it lacks their axes."""
        if self.factor is None:
            return 1
        return min(dim.divisor for dim in self.left.dims if dim.role == CONTRACTED)

    @property
    def workers(self) -> int:
        """Warp groups that multiply."""
        return self.groups * self.turns

    @property
    def worker_warps(self) -> tuple[int, ...]:
        """Of the parts of a program beside the first warp group: another one, the copies."""
        return (4,) * (self.workers - 1) + (1,)

    @property
    def worker_registers(self) -> tuple[int, ...]:
        """Of each of their threads."""
        return (240,) * (self.workers - 1) + (24,)

    @property
    def registers(self) -> int | None:
        """Of each thread before they are shared out; the first warp group is left as many as the second one has."""
        return 168 if self.workers > 1 else None

    @property
    def depths(self) -> int:
        """Steps of a whole sum."""
        return self.tiles[CONTRACTED]

    @property
    def places(self) -> int:
        """Tiles of the result."""
        return prod(self.tiles[:3])

    @property
    def total(self) -> int:
        """Tiles to compute, those of all parts."""
        return self.places * self.split

    @property
    def reach(self) -> int:
        """How many places in memory the result takes, the gaps between its rows included."""
        return 1 + sum((dim.size - 1) * dim.stride for dim in self.out.dims)


def ends_late(epilogue: Epilogue | None) -> bool:
    """Whether what is done to sums takes so long that there is more than one way to do it."""
    return epilogue is not None and (epilogue.keeps or epilogue.activation not in _SHORT)


def _narrowed(view: View, columns: int) -> View:
    """The same with boxes of so many columns."""
    extends = [dim.role == COLUMNS and dim.box > 1 for dim in view.dims]
    dims = [replace(dim, box=columns) if wide else dim for dim, wide in zip(view.dims, extends, strict=True)]
    return replace(view, dims=tuple(dims))


@gluon.constexpr_function
def product_layout(width):
    """Which threads of a warp group have which elements of a product of 64 rows."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.constexpr_function
def run_of(view, role):
    """Along which axis of an array a box extends, of those of a role."""
    return next(at for at, dim in enumerate(view.dims) if dim.role == role and dim.box > 1)


@gluon.jit
def _position(view: gl.constexpr, at: gl.constexpr, batch, row, column, step, group, columns_on: gl.constexpr):
    """Where a box begins along one axis."""
    if view.dims[at].role == 0:
        index = batch
    elif view.dims[at].role == 1:
        index = row
    elif view.dims[at].role == 2:
        index = column
    else:
        index = step
    position = index // view.dims[at].divisor % view.dims[at].count * view.dims[at].step
    position += group * view.dims[at].shift
    if view.dims[at].role == 2 and view.dims[at].box > 1:
        position += columns_on
    return position


@gluon.jit
def place_of(view: gl.constexpr, batch, row, column, step, group, columns_on: gl.constexpr):
    """Where a warp group's box begins, so many columns into the tile."""
    place = ()
    for at in gl.static_range(field(view, "rank")):
        place = place + (_position(view, at, batch, row, column, step, group, columns_on),)
    return place


@gluon.constexpr_function
def part_of(tiling, own):
    """Which 64 rows of a tile are those of warp group ``own``."""
    return own if tiling.turns == 1 else 0


@gluon.jit
def is_fresh(step, begin, tiling: gl.constexpr):
    """Whether a step has other boxes of the left operand than the step before."""
    if tiling.repeats > 1:
        fresh = (step == begin) | (step % tiling.repeats == 0)
    else:
        fresh = True
    return fresh


@gluon.jit
def steps_of(number, tiling: gl.constexpr):
    """The first step of a tile, and the first that isn't of it any more."""
    if tiling.split > 1:
        each: gl.constexpr = (tiling.depths + tiling.split - 1) // tiling.split
        begin = number // tiling.places * each
        end = gl.minimum(begin + each, tiling.depths)
    else:
        begin = number * 0
        end = begin + tiling.depths
    return begin, end


@gluon.jit
def tile_of(number, tiling: gl.constexpr):
    """Batch, row tile and column tile of a tile's number: in swaths of rows; one part after the other."""
    if tiling.split > 1:
        number = number % tiling.places
    rows: gl.constexpr = tiling.tiles[1]
    columns: gl.constexpr = tiling.tiles[2]
    row_tile, column_tile = in_swaths(number % (rows * columns), rows, columns, tiling.swath)
    return number // (rows * columns), row_tile, column_tile


@gluon.jit
def flat_box(buffer, rows: gl.constexpr, columns: gl.constexpr, turned: gl.constexpr):
    """A box as a matrix, whichever of its axes is contiguous."""
    if turned:
        return buffer.reshape([columns, rows]).permute((1, 0))
    else:
        return buffer.reshape([rows, columns])
