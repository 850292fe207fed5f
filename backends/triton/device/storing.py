"""Storing the tile of a matrix product, whichever axis the result is contiguous along."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import (
    field,
    group_field,
    group_inside,
    group_offsets,
    inside,
    tile_offsets,
)

__all__ = ["store_tile"]


@triton.jit
def store_tile(out, product, row_tile, column_tile, tiling: tl.constexpr, columns: tl.constexpr, numbers=None):
    """A tile of the result, in its own dtype and order of axes."""
    rows: tl.constexpr = field(tiling, "rows")
    wide: tl.constexpr = field(tiling, "wide")
    value = product.to(out.dtype.element_ty)
    if field(tiling, "scattered"):
        value = value.reshape(
            (
                group_field(rows, 0, "block"),
                group_field(rows, 1, "block"),
                group_field(columns, 0, "block"),
                group_field(columns, 1, "block"),
            )
        )
        place = (
            group_offsets(row_tile, rows, 0, 2, wide, numbers)[:, None, None, None]
            + group_offsets(row_tile, rows, 1, 2, wide, numbers)[None, :, None, None]
            + group_offsets(column_tile, columns, 0, 2, wide, numbers)[None, None, :, None]
            + group_offsets(column_tile, columns, 1, 2, wide, numbers)[None, None, None, :]
        )
        exists = (
            group_inside(row_tile, rows, 0, numbers)[:, None, None, None]
            & group_inside(row_tile, rows, 1, numbers)[None, :, None, None]
            & group_inside(column_tile, columns, 0, numbers)[None, None, :, None]
            & group_inside(column_tile, columns, 1, numbers)[None, None, None, :]
        )
        tl.store(out + place, value, mask=exists)
    else:
        place = (
            tile_offsets(row_tile, rows, 2, False, wide, numbers)[:, None]
            + tile_offsets(column_tile, columns, 2, False, wide, numbers)[None, :]
        )
        exists = inside(row_tile, rows, False, numbers)[:, None] & inside(column_tile, columns, False, numbers)[None, :]
        tl.store(out + place, value, mask=exists)
