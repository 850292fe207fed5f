"""Device functions of all kernels: from a number to a tile and an offset, and the type of what is kept meanwhile.

Sizes and strides may be known while compiling or not; for loops that are constants see
:mod:`~einops_fast.backends.triton.device.indexing`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def kept_type(features):
    """What scores and sums are kept in."""
    return tl.float64 if features.double else tl.float32


@triton.jit
def multiple(number, of: tl.constexpr):
    """The same number: the compiler sees what it is a multiple of."""
    if of > 1:
        number = number // of * of
    return number


@triton.jit
def counted(index, sizes, strides, low: tl.constexpr, high: tl.constexpr, run: tl.constexpr = 1):
    """Return the offset of element number ``index`` of the axes from ``low`` to before ``high``; the last is fastest.

    The size of that axis, and the strides of the others, are multiples of ``run``: elements of a run differ along it
    only.
    """
    offset = tl.cast(index, tl.int64) * 0
    for at in tl.static_range(high - 1, low - 1, -1):
        digit = index
        stride = tl.cast(strides[at], tl.int64)
        if at > low:
            size = sizes[at]
            if at == high - 1:
                size = multiple(size, run)
            digit = index % size
            index = index // size
        if at < high - 1:
            stride = multiple(stride, run)
        offset += digit * stride
    return offset


@triton.jit
def in_swaths(number, row_tiles, column_tiles, swath):
    """Row tile and column tile of a tile's number: ``swath`` tiles of rows are worked on together."""
    first = number // (swath * column_tiles) * swath
    height = min(row_tiles - first, swath)
    return first + number % (swath * column_tiles) % height, number % (swath * column_tiles) // height
