"""The last step of sums down columns: partial sums, one row of them per program, are added in a fixed order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from math import gcd

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import multiple
from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.backends.triton.launching.compiling import ONES
from einops_fast.backends.triton.launching.kernel_call import KernelCall

_ELEMENTS = 4096
"""How many a program adds at a time."""


@triton.jit
def _add(parts, total, count, columns, together: tl.constexpr, block: tl.constexpr, unit: tl.constexpr):
    columns = multiple(columns, unit)
    column = tl.program_id(0) * block + tl.arange(0, block)
    sums = tl.zeros((together, block), parts.dtype.element_ty)
    for start in range(0, count, together):
        row = start + tl.arange(0, together)
        exists = (row < count)[:, None] & (column < columns)[None, :]
        sums += tl.load(parts + row[:, None].to(tl.int64) * columns + column[None, :], mask=exists, other=0)
    tl.store(total + column, tl.sum(sums, 0).to(total.dtype.element_ty), mask=column < columns)


@triton.jit(do_not_specialize=["count"])
def column_sums_kernel(
    first, second, to_first, to_second, count, columns, together: tl.constexpr, block: tl.constexpr, unit: tl.constexpr
):  # fmt: skip
    """Add up one or two arrays of ``(count, columns)``; either may be ``None``."""
    if first is not None and tl.program_id(1) == 0:
        _add(first, to_first, count, columns, together, block, unit)
    if second is not None and tl.program_id(1) == 1:
        _add(second, to_second, count, columns, together, block, unit)


def column_sums(count: int, columns: int, any_size: bool = False) -> KernelCall:
    """Return the kernel that adds up ``count`` partial sums of each column, for two arrays of sums and two results.

    One for ``any_size`` knows of the columns only what loads of float32 can make use of.
    """
    block = 8 if columns <= 4096 else 32 if columns <= 16384 else 128
    together = min(power_of_two(count), _ELEMENTS // block)
    grid = -(-columns // block), 2
    constants = {"together": together, "block": block, "unit": gcd(columns, 4 if any_size else 16)}
    even = ONES if any_size else None
    return KernelCall(column_sums_kernel, grid, (count, columns), constants, 4, 1, even=even)
