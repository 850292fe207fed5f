"""The sum of parts that lie one after the other: of what is left to do for a gradient that was summed up in parts."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.backends.triton.launching.kernel_call import KernelCall

__all__ = ["parts_kernel", "parts_sum"]

_TILE = 2048
"""Elements that a program has on their way at a time."""

_ROWS = 64
"""Parts that it has, at most."""


@triton.jit(do_not_specialize=["count"])
def parts_kernel(parts, found, count, elements, rows: tl.constexpr, block: tl.constexpr):
    """Write the sums of ``count`` parts with so many ``elements``."""
    column = (tl.program_id(0) * block + tl.arange(0, block))[None, :]
    total = tl.zeros((rows, block), parts.dtype.element_ty)
    zero = tl.full((), 0, tl.int64)
    for start in range(0, count, rows):
        row = start + tl.arange(0, rows)[:, None]
        place = parts + (row + zero) * elements + column
        total += tl.load(place, mask=(row < count) & (column < elements), other=0)
    tl.store(found + column, tl.sum(total, 0)[None, :].to(found.dtype.element_ty), mask=column < elements)


def parts_sum(count: int, elements: int) -> KernelCall:
    """A call that takes an array of parts, and one for their sum."""
    rows = min(_ROWS, power_of_two(count))
    block = _TILE // rows
    return KernelCall(parts_kernel, (-(-elements // block), 1), (count, elements), {"rows": rows, "block": block}, 4, 1)
