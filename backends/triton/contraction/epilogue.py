"""What is done to the sums of a matrix product before they are stored, for every kernel that makes one."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.rows.activation.kernel import ActivationFeatures, activated_tile

__all__ = ["activated", "has_bias"]


@triton.constexpr_function
def has_bias(tiling):
    """Whether there is a bias to begin the sums with."""
    return tiling.epilogue is not None and tiling.epilogue.bias is not None


@triton.constexpr_function
def _features(epilogue, dtype):
    digits = 8 if dtype.is_bf16() else 11 if dtype.is_fp16() else 24
    return ActivationFeatures(0, kind=epilogue.activation, double=dtype.is_fp64(), digits=digits)


@triton.jit
def activated(x, epilogue: tl.constexpr, dtype: tl.constexpr):
    """The activation of a tile in the accumulator's type, for a result of this dtype."""
    return activated_tile(x, _features(epilogue, dtype))
