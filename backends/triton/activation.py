"""``dropout(activation(x + bias))``, element by element, and its gradients; that of the bias without atomics."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.loading import kept_type
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.row_tiles import dropped_tile, load_tile, row_place, store_tile

__all__ = ["ActivationFeatures", "ActivationStrides", "activation_gradient_kernel", "activation_kernel"]


@dataclass(frozen=True)
class ActivationFeatures:
    """Everything that the kernels are specialised for, apart from the tiles.

    Attributes:
        axes: how many count the rows.
        kind: of the activation.
        dropout: elements of the result are dropped.
        wide: offsets inside a row need 64 bits.
        double: compute in float64. ``drop`` is then a constant.
        drop: probability of dropping an element, for float64 only.
    """

    axes: int
    kind: str
    dropout: bool = False
    wide: bool = False
    double: bool = False
    drop: float = 0.0


class ActivationStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the columns; ``place`` numbers elements in C order.

    All are tuples: where others are among them, Triton 3.6 loses the strides that are 1 in loops.
    """

    x: Any
    out: Any
    d_out: Any
    place: Any
    bias: tuple[int]


_ROOT_2 = tl.constexpr(1.4142135623730951)
_ROOT_2_PI = tl.constexpr(2.5066282746310002)
_TANH = tl.constexpr(1.5957691216057308)
"""Twice the root of 2 / pi."""


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _activated(x, f: tl.constexpr):
    kind: tl.constexpr = field(f, "kind")
    found = x
    # A comparison with NaN is False, so that NaN stays.
    if kind == "relu":
        found = tl.where(x <= 0, 0.0, x)
    elif kind == "leaky_relu":
        found = tl.where(x < 0, x / 100, x)
    elif kind == "gelu":
        found = x * (tl.erf(x / _ROOT_2) + 1.0) / 2
    elif kind == "gelu_tanh":
        found = x * _sigmoid(x * _TANH * (1.0 + 0.044715 * x * x))
    elif kind == "squared_relu":
        found = tl.where(x <= 0, 0.0, x * x)
    elif kind == "smelu":
        found = tl.where(x <= -2, 0.0, tl.where(x >= 2, x, (x + 2) * (x + 2) / 8))
    elif kind == "star_relu":
        found = tl.where(x <= 0, 0.0, x * x) * 0.8944 - 0.4472
    elif kind == "silu":
        found = x * _sigmoid(x)
    return found


@triton.jit
def _slope(x, f: tl.constexpr):
    """The derivative."""
    kind: tl.constexpr = field(f, "kind")
    found = x * 0.0 + 1.0
    if kind == "relu":
        found = tl.where(x <= 0, 0.0, found)
    elif kind == "leaky_relu":
        found = tl.where(x <= 0, found / 100, found)
    elif kind == "gelu":
        found = (tl.erf(x / _ROOT_2) + 1.0) / 2 + x * tl.exp(-x * x / 2) / _ROOT_2_PI
    elif kind == "gelu_tanh":
        s = _sigmoid(x * _TANH * (1.0 + 0.044715 * x * x))
        found = s + x * s * (1.0 - s) * ((1.0 + 3 * 0.044715 * x * x) * _TANH)
    elif kind == "squared_relu":
        found = tl.where(x <= 0, 0.0, 2 * x)
    elif kind == "smelu":
        found = tl.where(x <= -2, 0.0, tl.where(x >= 2, found, (x + 2) / 4))
    elif kind == "star_relu":
        found = tl.where(x <= 0, 0.0, 2 * x) * 0.8944
    elif kind == "silu":
        s = _sigmoid(x)
        found = s * (1.0 + x * (1.0 - s))
    return found


@triton.jit
def _inputs(x, bias, row, column, exists, sizes, strides, columns, f: tl.constexpr):
    found = load_tile(x, row_place(row, sizes, strides.x, f), column, strides.x, exists, 0.0, f)
    if bias is not None:
        found += tl.load(bias + column * strides.bias[0], mask=column < columns, other=0).to(kept_type(f))[None, :]
    return found


@triton.jit(do_not_specialize=["rows"])
def activation_kernel(
    x, bias, seed, out, sizes, strides, rows, columns, drop, f: tl.constexpr, together: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Write a tile of the result."""
    row = tl.program_id(0) * together + tl.arange(0, together)
    column = tl.program_id(1) * block + tl.arange(0, block)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    found = _activated(_inputs(x, bias, row, column, exists, sizes, strides, columns, f), f)
    if field(f, "dropout"):
        found = dropped_tile(found, row_place(row, sizes, strides.place, f), column, strides.place, seed, drop, f)
    store_tile(out, found, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)


@triton.jit(do_not_specialize=["rows", "part"])
def activation_gradient_kernel(
    x, bias, seed, d_out, dx, part_bias, sizes, strides, rows, columns, part, drop, f: tl.constexpr,
    together: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Write the gradient of ``x`` in ``part`` rows, and its sums down the columns. ``strides.out`` are of ``dx``."""
    column = tl.program_id(0) * block + tl.arange(0, block)
    total = tl.zeros((block,), kept_type(f))
    begin = tl.program_id(1) * part
    for start in range(begin, min(begin + part, rows), together):
        row = start + tl.arange(0, together)
        exists = (row < rows)[:, None] & (column < columns)[None, :]
        back = load_tile(d_out, row_place(row, sizes, strides.d_out, f), column, strides.d_out, exists, 0.0, f)
        if field(f, "dropout"):
            back = dropped_tile(back, row_place(row, sizes, strides.place, f), column, strides.place, seed, drop, f)
        back *= _slope(_inputs(x, bias, row, column, exists, sizes, strides, columns, f), f)
        store_tile(dx, back, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)
        total += tl.sum(tl.where(exists, back, 0.0), 0)
    if part_bias is not None:
        place = tl.program_id(1).to(tl.int64) * columns + column
        tl.store(part_bias + place, total, mask=column < columns)
