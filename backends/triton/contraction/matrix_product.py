"""The one call of ``tl.dot``: what its operands have to be first, so that it is as exact as was asked for."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["matrix_product", "to_tf32"]

_HALF, _KEPT = tl.constexpr(0x1000), tl.constexpr(-0x2000)
"""Half of the last bit of TF32, in a float32 number's, of which it lacks 13; and which of these it has."""


@triton.jit
def matrix_product(a, b, total, precision: tl.constexpr, acc_type: tl.constexpr, upcast: tl.constexpr):
    """``total + a @ b``, or ``a @ b`` where there is no total.

    Args:
        precision: of float32 products: ``'ieee'``, ``'tf32'`` or ``'tf32x3'``.
        acc_type: of sums.
        upcast: whether to multiply in that: Triton's interpreter is wrong about products of bfloat16.
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
