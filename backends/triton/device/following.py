"""A kernel that follows another one begins while that one ends, and waits for its results (Hopper and later).

This is programmatic dependent launch, see the CUDA programming guide. The next launch needs no time of its own then.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from einops_fast.backends.triton.device.indexing import field

__all__ = ["take_turn"]


@triton.jit
def take_turn(tiling: tl.constexpr):
    """What a kernel begins with, before it reads or writes anything."""
    if field(tiling, "leads"):
        gdc_launch_dependents()
    if field(tiling, "follows"):
        gdc_wait()
