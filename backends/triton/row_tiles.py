"""Device functions for kernels that work along rows: where rows and their elements are, and which exist.

A tile has rows along its first axis and columns along its second.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.loading import counted, kept_type
from einops_fast.backends.triton.indexing import field

__all__ = ["dropped_tile", "element_place", "load_tile", "row_place", "store_tile"]


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
def dropped_tile(value, rows, column, strides, seed, drop, f: tl.constexpr):
    """A tile with some elements 0 and the others made up for it.

    Philox (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405) is numbered by the elements' places in C
    order, which ``rows`` and ``strides`` give: the same ones are dropped again whatever the strides of an array are.
    """
    kept = tl.rand(tl.load(seed), element_place(rows, column, strides, f)) >= drop
    if field(f, "double"):
        rest: tl.constexpr = 1.0 - field(f, "drop")
        value = value / rest
    else:
        value = value / (1.0 - drop)
    return tl.where(kept, value, 0.0)
