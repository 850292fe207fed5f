"""The one call of ``tl.dot``, as exact as was asked for, and what is done to sums before they are stored."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.rows.activation.kernel import ActivationFeatures, activated_tile

_HALF, _KEPT = tl.constexpr(0x1000), tl.constexpr(-0x2000)
"""Half of the last bit of TF32, in a float32 number's, of which it lacks 13; and which of these it has."""


@triton.jit
def matrix_product(a, b, total, precision: tl.constexpr, acc_type: tl.constexpr, upcast: tl.constexpr):
    """``total + a @ b``, or ``a @ b`` where there is no total.

    Sums are of ``acc_type``, and so are products to ``upcast``: Triton's interpreter is wrong about those of bfloat16.
    """
    if upcast:
        a = a.to(acc_type)
        b = b.to(acc_type)
    if precision == "tf32":
        a = to_tf32(a)
        b = to_tf32(b)
    return tl.dot(a, b, total, input_precision=precision, out_dtype=acc_type)


@triton.jit
def to_tf32(x):
    """Float32 numbers, rounded to TF32 as by PTX's ``cvt.rna``. Tensor cores cut bits off, so that all sums shrink."""
    bits = (x.to(tl.int32, bitcast=True) + _HALF) & _KEPT
    return tl.where(x == x, bits.to(tl.float32, bitcast=True), x)


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
