"""Copies of arrays with features whose rows lie at odd places, into memory where each begins at 16 bytes."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from math import prod
from typing import Any

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.problem import Layout, merged
from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.launch import ALIGNMENT
from einops_fast.backends.triton.memory import Memory
from einops_fast.cost import ITEM_SIZES
from einops_fast.layout import contiguous_strides

__all__ = ["RowCopies", "rows_kernel"]

_ROWS = 32
"""Of a tile."""

_COLUMNS = 128
"""Of a tile, at most."""


@triton.jit(do_not_specialize=["rows"])
def rows_kernel(
    source, target, from_strides, to_strides, sizes, rows, columns: tl.constexpr, written: tl.constexpr,
    block: tl.constexpr, width: tl.constexpr, axes: tl.constexpr,
):  # fmt: skip
    """Copy a tile of rows.

    Args:
        source, target: arrays with batch axes, rows and columns.
        from_strides, to_strides: of these.
        sizes: of the batch axes.
        rows: of each batch element.
        columns: of a row.
        written: the same, and zeros after them: memory that is written in whole pieces isn't read before.
        block, width: of a tile.
        axes: batch axes.
    """
    tiles = tl.cdiv(rows, block)
    zero = tl.full((), 0, tl.int64)
    element = tl.program_id(0) // tiles + zero
    first = tl.program_id(0) % tiles * block
    for axis in tl.static_range(axes - 1, -1, -1):
        at = element % sizes[axis] if axis else element
        element = element // sizes[axis] if axis else element
        source += at * from_strides[axis]
        target += at * to_strides[axis]
    source += first * (from_strides[axes] + zero)
    target += first * (to_strides[axes] + zero)
    row = tl.arange(0, block)[:, None]
    for start in tl.static_range(0, written, width):
        column = start + tl.arange(0, width)[None, :]
        there = first + row < rows
        place = source + row * from_strides[axes] + column * from_strides[axes + 1]
        values = tl.load(place, mask=there & (column < columns), other=0)
        place = target + row * to_strides[axes] + column * to_strides[axes + 1]
        tl.store(place, values, mask=there & (column < written))


class RowCopies:
    """Copies of an array and back.

    Args:
        layout: shape and strides of the array.
        dtype: of it.

    Attributes:
        strides: of the copy, which has gaps after its rows.
    """

    def __init__(self, layout: Layout, dtype: str) -> None:
        shape, strides = layout
        whole = ALIGNMENT // ITEM_SIZES[dtype]
        stored = (*shape[:-1], -(-shape[-1] // whole) * whole)
        self.strides = contiguous_strides(stored)
        self._dtype, self._elements = dtype, prod(stored)
        *batch, rows, columns = shape
        sizes, kept = merged(batch, {"array": list(strides[:-2]), "copy": list(self.strides[:-2])}, ())
        tails = {"array": strides[-2:], "copy": self.strides[-2:]}
        own, other = ((*kept[name], *tails[name]) for name in ("array", "copy"))
        grid = (prod(sizes) * -(-rows // _ROWS), 1)
        width = min(_COLUMNS, 1 << (columns - 1).bit_length())
        constants = {"columns": columns, "written": stored[-1], "block": _ROWS, "width": width, "axes": len(sizes)}
        self._there = KernelCall(rows_kernel, grid, (own, other, tuple(sizes), rows), constants, 4, 1)
        constants = {**constants, "written": columns}
        self._back = KernelCall(rows_kernel, grid, (other, own, tuple(sizes), rows), constants, 4, 1)

    def room(self, memory: Memory, like: Any) -> Any:
        """Memory for a copy."""
        return memory.workspace(like, self._elements, self._dtype)

    def of(self, memory: Memory, device: int, array: Any) -> Any:
        """A copy of the array."""
        found = self.room(memory, array)
        self._there(memory, device, array, found)
        return found

    def back(self, memory: Memory, device: int, copy: Any, array: Any) -> None:
        """Write what the copy holds to the array."""
        self._back(memory, device, copy, array)
