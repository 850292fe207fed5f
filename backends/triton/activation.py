"""``dropout(activation(x + bias))``, element by element, and its gradients; that of the bias without atomics."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.loading import kept_type
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.row_tiles import (
    dropped_tile,
    kept_tile,
    load_parameter,
    load_tile,
    row_place,
    store_tile,
)

__all__ = [
    "ActivationFeatures",
    "ActivationStrides",
    "activated_tile",
    "activation_gradient_kernel",
    "activation_kernel",
]


@dataclass(frozen=True)
class ActivationFeatures:
    """Everything that the kernels are specialised for, apart from the tiles.

    Attributes:
        axes: how many count the rows.
        kind: of the activation.
        dropout: elements of the result are dropped.
        fours: four columns each are drawn together.
        half: results have few digits, so that the normal distribution needn't have many.
        wide: offsets inside a row need 64 bits.
        double: compute in float64. ``drop`` is then a constant.
        drop: probability of dropping an element, for float64 only.
    """

    axes: int
    kind: str
    dropout: bool = False
    fours: bool = False
    half: bool = False
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


_HALF_ROOT = tl.constexpr(0.7071067811865476)
"""The root of 1 / 2."""
_DENSITY = tl.constexpr(0.3989422804014327)
"""One over the root of 2 pi."""
_TANH = tl.constexpr(1.5957691216057308)
"""Twice the root of 2 / pi."""


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _normal(x):
    """The normal distribution, and ``exp(-x² / 2)``.

    Down to -5.5, where it is 2e-8, it is 6e-5 off at most, relative to itself. The ratio of the tail to the
    exponential, Mills' ratio (1926, https://doi.org/10.1093/biomet/18.3-4.395), is smooth: here it is a polynomial of
    degree 9, fitted to the relative error. That has half as many steps as ``erf``, and no division.
    """
    z = tl.minimum(tl.abs(x), 5.5)
    e = tl.exp(-0.5 * x * x)
    ratio = 2.55195103e-05 - 8.43056425e-07 * z
    ratio = ratio * z - 0.000338974766
    ratio = ratio * z + 0.00261671621
    ratio = ratio * z - 0.0131705691
    ratio = ratio * z + 0.0463403717
    ratio = ratio * z - 0.120681625
    ratio = ratio * z + 0.244878858
    ratio = ratio * z - 0.398056194
    ratio = ratio * z + 0.499972551
    tail = ratio * e
    return tl.where(x < 0, tail, 1.0 - tail), e


@triton.jit
def activated_tile(x, f: tl.constexpr):
    """The activation of a tile in the type that is computed in."""
    kind: tl.constexpr = field(f, "kind")
    found = x
    # A comparison with NaN is False, so that NaN stays.
    if kind == "relu":
        found = tl.where(x <= 0, 0.0, x)
    elif kind == "leaky_relu":
        found = tl.where(x < 0, x / 100, x)
    elif kind == "gelu":
        if field(f, "half"):
            share, _ = _normal(x)
            found = x * share
        else:
            found = x * (tl.erf(x * _HALF_ROOT) + 1.0) * 0.5
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
        if field(f, "half"):
            share, e = _normal(x)
            found = share + x * e * _DENSITY
        else:
            found = (tl.erf(x * _HALF_ROOT) + 1.0) * 0.5 + x * tl.exp(-0.5 * x * x) * _DENSITY
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
def _inputs(x, bias, b, row, column, exists, sizes, strides, f: tl.constexpr):
    found = load_tile(x, row_place(row, sizes, strides.x, f), column, strides.x, exists, 0.0, f)
    if bias is not None:
        found += b.to(kept_type(f))
    return found


@triton.jit(do_not_specialize=["rows", "inner"])
def activation_kernel(
    x, bias, seed, out, sizes, strides, rows, columns, inner, drop, f: tl.constexpr, together: tl.constexpr,
    block: tl.constexpr, across: tl.constexpr,
):  # fmt: skip
    """Write a tile of the result. Neighbouring programs have tiles ``across`` the columns, or down the rows.

    ``inner`` is how many tiles there are in that direction: what is next in memory is then read at about the same time.
    """
    near = tl.program_id(0) % inner
    far = tl.program_id(0) // inner
    if across:
        start = near * block
        row = far * together + tl.arange(0, together)
    else:
        start = far * block
        row = near * together + tl.arange(0, together)
    column = start + tl.arange(0, block)
    b = load_parameter(bias, strides.bias, column, columns)
    exists = (row < rows)[:, None] & (column < columns)[None, :]
    found = activated_tile(_inputs(x, bias, b, row, column, exists, sizes, strides, f), f)
    if field(f, "dropout"):
        place = row_place(row, sizes, strides.place, f)
        found = dropped_tile(found, kept_tile(place, start, strides.place, seed, drop, f, block), drop, f)
    store_tile(out, found, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)


@triton.jit(do_not_specialize=["rows", "tiles"])
def activation_gradient_kernel(
    x, bias, seed, d_out, dx, part_bias, sizes, strides, rows, columns, tiles, drop, f: tl.constexpr,
    together: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Write the gradient of ``x`` in some tiles of rows, and its sums down columns. ``strides.out`` are of ``dx``."""
    start = tl.program_id(0) * block
    column = start + tl.arange(0, block)
    b = load_parameter(bias, strides.bias, column, columns)
    # Of each place of a tile, so that no program waits for its threads in order to add up rows.
    total = tl.zeros((together, block), kept_type(f))
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=stages):
        row = tile * together + tl.arange(0, together)
        exists = (row < rows)[:, None] & (column < columns)[None, :]
        back = load_tile(d_out, row_place(row, sizes, strides.d_out, f), column, strides.d_out, exists, 0.0, f)
        if field(f, "dropout"):
            place = row_place(row, sizes, strides.place, f)
            back = dropped_tile(back, kept_tile(place, start, strides.place, seed, drop, f, block), drop, f)
        back *= _slope(_inputs(x, bias, b, row, column, exists, sizes, strides, f), f)
        store_tile(dx, back, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)
        total += tl.where(exists, back, 0.0)
    if part_bias is not None:
        place = tl.program_id(1).to(tl.int64) * columns + column
        tl.store(part_bias + place, tl.sum(total, 0), mask=column < columns)
