"""Device functions for kernels that work along rows: where rows and their elements are, and which exist.

A tile has rows along its first axis and columns along its second.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.loading import counted, kept_type
from einops_fast.backends.triton.indexing import field

__all__ = ["element_place", "kept", "load_tile", "row_place", "store_tile"]


@triton.jit
def row_place(row, sizes, strides, f: tl.constexpr):
    """The offset of each row, in 64 bits."""
    return counted(row, sizes, strides, 0, field(f, "axes"))


@triton.jit
def element_place(rows, column, strides, f: tl.constexpr):
    """The offset of each element of a tile, from the offsets of its rows."""
    if field(f, "wide"):
        column = column.to(tl.int64)
    return rows[:, None] + (column * strides[field(f, "axes")])[None, :]


@triton.jit
def load_tile(array, rows, column, strides, exists, other, f: tl.constexpr):
    """A tile in the type that is computed in, with ``other`` where nothing exists."""
    place = element_place(rows, column, strides, f)
    return tl.load(array + place, mask=exists, other=other).to(kept_type(f))


@triton.jit
def store_tile(array, value, rows, column, strides, exists, f: tl.constexpr):
    """Write a tile in the array's own type."""
    place = element_place(rows, column, strides, f)
    tl.store(array + place, value.to(array.dtype.element_ty), mask=exists)


@triton.jit
def kept(place, seed, drop):
    """Which elements dropout keeps: Philox numbered by the elements' places in C order, whatever their strides."""
    return tl.rand(tl.load(seed), place) >= drop
