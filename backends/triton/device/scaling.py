"""Arrays times a number that only the GPU knows. Where that is 1 and the result is the array, nothing is read."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from functools import lru_cache

import triton
import triton.language as tl

from einops_fast.backends.triton.launching.kernel_call import KernelCall

_BLOCK = 8192
"""Elements of a program."""


@triton.jit(do_not_specialize=["count"])
def scale_kernel(x, factor, out, count, in_place: tl.constexpr, block: tl.constexpr):
    """Write ``count`` elements of ``x``, times a number, to ``out``, which is ``x`` if ``in_place``."""
    number = tl.load(factor)
    changes = True
    if in_place:
        changes = number != 1
    if changes:
        place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
        value = tl.load(x + place, mask=place < count, other=0).to(number.dtype)
        tl.store(out + place, (value * number).to(out.dtype.element_ty), mask=place < count)


@lru_cache(maxsize=4096)
def scaling(count: int, in_place: bool) -> KernelCall:
    """The kernel for so many elements without gaps, which takes the array, the number and the result."""
    constants = {"in_place": in_place, "block": _BLOCK}
    return KernelCall(scale_kernel, (-(-count // _BLOCK), 1), (count,), constants, 8, 1)
