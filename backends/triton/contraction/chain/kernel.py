"""The chain kernel: a product of several matrices, of which only the first and the last are large.

One program takes a tile of rows. It multiplies them by the matrices in the middle, each of which is one tile, and
then walks along the columns of the last matrix: what is between the products is never written to memory. It is
rounded as if it were.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from einops_fast.backends.triton.contraction.matrix_product import matrix_product
from einops_fast.backends.triton.contraction.tiling import MatrixTiling
from einops_fast.backends.triton.device.indexing import counted, field, inside, load_tile, store_tile
from einops_fast.backends.triton.device.offsets import in_swaths
from einops_fast.backends.triton.device.tiling import Role


@dataclass(frozen=True)
class ChainTiling(MatrixTiling):
    """Everything that the kernel is specialised for. For where an array's strides are, see :func:`array_of`.

    Each two neighbours share a link, of one tile; a program walks along so many tiles of columns ``across``.
    """

    links: tuple[Role, ...]
    across: int = 1

    @property
    def operands(self) -> int:
        """How many there are."""
        return len(self.links) + 1

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        return (
            f"chain {self.rows.width}×{self.columns.width}, {self.across} across, {self.warps} warps, "
            f"{self.stages} stages"
        )

    @property
    def parts(self) -> int:
        """Programs that share a tile of rows."""
        return -(-self.columns.tiles // self.across)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.batches * self.rows.tiles * self.parts, 1, 1


def array_of(operand: int, operands: int) -> int:
    """Where an operand's strides are in an axis: first, last, the result, then those between."""
    return 0 if operand == 0 else 1 if operand == operands - 1 else 2 + operand


_array = triton.constexpr_function(array_of)


@triton.constexpr_function
def _link(tiling, at):
    return tiling.links[at]


@triton.jit
def chain_kernel(arrays, out, tiling: tl.constexpr, acc_type: tl.constexpr, upcast: tl.constexpr):
    """Write the tiles of the result. ``upcast`` is as in the contraction kernel."""
    rows: tl.constexpr = tiling.rows
    columns: tl.constexpr = tiling.columns
    wide: tl.constexpr = tiling.wide
    operands: tl.constexpr = tiling.operands
    last: tl.constexpr = operands - 1

    row_tiles: tl.constexpr = rows.tiles
    program = tl.program_id(0)
    if wide:
        # Positions that are counted from it may need 64 bits, too.
        program = program.to(tl.int64)
    batch = program // (row_tiles * tiling.parts)
    row_tile, part = in_swaths(program % (row_tiles * tiling.parts), row_tiles, tiling.parts, tiling.swath)
    only = part * 0  # the number of the tile where there is one

    a = load_tile(
        arrays[0] + counted(batch, field(tiling, "batch"), 0, True), row_tile, rows, only, _link(tiling, 0), 0, wide
    )
    for at in tl.static_range(1, last):
        place = arrays[at] + counted(batch, field(tiling, "batch"), _array(at, operands), True)
        middle = load_tile(place, only, _link(tiling, at - 1), only, _link(tiling, at), _array(at, operands), wide)
        product = matrix_product(a, middle, None, field(tiling, "precision"), acc_type, upcast)
        # Infinity times a position that doesn't exist is nothing.
        a = tl.where(inside(only, _link(tiling, at))[None, :], product, 0).to(middle.dtype)

    right = arrays[last] + counted(batch, field(tiling, "batch"), 1, True)
    out += counted(batch, field(tiling, "batch"), 2, True)
    begin = part * tiling.across
    for column_tile in range(begin, min(begin + tiling.across, columns.tiles)):
        b = load_tile(right, only, _link(tiling, last - 1), column_tile, columns, 1, wide)
        tile = matrix_product(a, b, None, field(tiling, "precision"), acc_type, upcast)
        store_tile(out, tile, row_tile, column_tile, tiling, columns)
