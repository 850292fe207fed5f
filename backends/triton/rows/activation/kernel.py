"""``dropout(activation(x + bias))``, element by element, and its gradients; that of the bias without atomics."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import kept_type
from einops_fast.backends.triton.rows.rows import RowFeatures
from einops_fast.backends.triton.rows.tiles import (
    dropped_tile,
    in_runs,
    in_units,
    kept_tile,
    load_parameter,
    load_tile,
    row_place,
    store_tile,
)


@dataclass(frozen=True)
class ActivationFeatures(RowFeatures):
    """What the kernels are specialised for, apart from the tiles.

    Where a result has few binary ``digits``, some activations needn't have many either.
    """

    kind: str = "none"
    digits: int = 24


class ActivationStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the columns; ``place`` numbers elements in C order."""

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
_LOG2_E = tl.constexpr(1.4426950408889634)
_TANH_LOG2_E = tl.constexpr(1.5957691216057308 * 1.4426950408889634)


if triton.knobs.runtime.interpret:

    @triton.jit
    def _exp2(x):
        return tl.exp2(x)

    @triton.jit
    def _reciprocal(x):
        return 1.0 / x

else:  # one instruction each: Triton's own take several more, for numbers below 1e-38 and their reciprocals

    @triton.jit
    def _exp2(x):
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )

    @triton.jit
    def _reciprocal(x):
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
        )


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _sigmoid_and_slope(x, f: tl.constexpr):
    """The sigmoid and its derivative, which is no difference of numbers near 1, but where few digits are kept.

    That has a twentieth more instructions, for which half-precision numbers would wait.
    """
    if f.digits < 24:
        large = _sigmoid(x)
        small = 1.0 - large
        found = large
    else:
        power = tl.exp(-tl.abs(x))
        large = 1.0 / (1.0 + power)
        small = power * large
        found = tl.where(x < 0, small, large)
    return found, small * large


@triton.jit
def _tail(x, f: tl.constexpr):
    """The normal distribution at ``-|x|``, and ``|x|``, at most 16.

    The distribution's logarithm is nearly a parabola: here it is a polynomial, fitted to the error from 0 to 5.5, where
    the distribution is 2e-8. Up to there it is at most 2.9e-5 off, relative to itself, or 2.8e-4 where results are
    bfloat16; beyond, it goes on falling. That has a third as many steps as ``erf``, and no division.
    """
    z = tl.minimum(tl.abs(x), 16.0)
    if f.digits > 8:
        power = 2.65318740e-05 * z - 6.67779474e-04
        power = power * z + 7.53540732e-03
        power = power * z - 5.21274470e-02
        power = power * z - 4.60073888e-01
        power = power * z - 1.15076327
    else:
        power = 4.98826383e-03 - 2.41196205e-04 * z
        power = power * z - 4.52387407e-02
        power = power * z - 4.68181193e-01
        power = power * z - 1.14767551
    return _exp2(power * z - 1.0), z


@triton.jit
def _activated_few_digits(x, f: tl.constexpr):
    """Activations whose result is rounded to few digits, in as few instructions as will do.

    At the end of a matrix product, each costs about a cycle of the tensor cores' time, wherever it is put.
    """
    if f.kind == "gelu":
        tail, z = _tail(x, f)
        # The first is what relu makes of a number, and NaN of -infinity, as it is by torch.
        found = 0.5 * x + 0.5 * tl.abs(x) - z * tail
    elif f.kind == "silu":
        found = x * _reciprocal(1.0 + _exp2(x * -_LOG2_E))
    else:
        found = x * _reciprocal(1.0 + _exp2(x * (-_TANH_LOG2_E - _TANH_LOG2_E * 0.044715 * (x * x))))
    return found


@triton.jit
def activated_tile(x, f: tl.constexpr):
    """The activation of a tile in the type that is computed in."""
    found = x
    # A comparison with NaN is False, so that NaN stays.
    if f.kind == "relu":
        found = tl.where(x <= 0, 0.0, x)
    elif f.kind == "leaky_relu":
        found = tl.where(x < 0, x / 100, x)
    elif f.digits < 24 and (f.kind == "gelu" or f.kind == "gelu_tanh" or f.kind == "silu"):
        found = _activated_few_digits(x, f)
    elif f.kind == "gelu":
        found = x * (tl.erf(x * _HALF_ROOT) + 1.0) * 0.5
    elif f.kind == "gelu_tanh":
        found = x * _sigmoid(x * _TANH * (1.0 + 0.044715 * x * x))
    elif f.kind == "squared_relu":
        found = tl.where(x <= 0, 0.0, x * x)
    elif f.kind == "smelu":
        found = tl.where(x <= -2, 0.0, tl.where(x >= 2, x, (x + 2) * (x + 2) / 8))
    elif f.kind == "star_relu":
        found = tl.where(x <= 0, 0.0, x * x) * 0.8944 - 0.4472
    elif f.kind == "silu":
        found = x * _sigmoid(x)
    return found


@triton.jit
def _slope(x, f: tl.constexpr):
    """The derivative."""
    found = tl.full(x.shape, 1.0, x.dtype)
    if f.kind == "relu":
        found = tl.where(x <= 0, 0.0, found)
    elif f.kind == "leaky_relu":
        found = tl.where(x > 0, found, 0.01)
    elif f.kind == "gelu":
        if f.digits < 24:
            tail, _ = _tail(x, f)
            found = tl.where(x < 0, tail, 1.0 - tail) + x * tl.exp(-0.5 * x * x) * _DENSITY
        else:
            found = (tl.erf(x * _HALF_ROOT) + 1.0) * 0.5 + x * tl.exp(-0.5 * x * x) * _DENSITY
    elif f.kind == "gelu_tanh":
        s, slope = _sigmoid_and_slope(x * _TANH * (1.0 + 0.044715 * x * x), f)
        found = s + x * slope * ((1.0 + 3 * 0.044715 * x * x) * _TANH)
    elif f.kind == "squared_relu":
        found = tl.where(x <= 0, 0.0, 2 * x)
    elif f.kind == "smelu":
        found = tl.where(x <= -2, 0.0, tl.where(x >= 2, found, (x + 2) / 4))
    elif f.kind == "star_relu":
        found = tl.where(x <= 0, 0.0, 2 * x) * 0.8944
    elif f.kind == "silu":
        s, slope = _sigmoid_and_slope(x, f)
        found = s + x * slope
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
    columns = in_units(columns, f)
    rows = in_runs(rows, f)
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
    if f.dropout:
        place = row_place(row, sizes, strides.place, f)
        found = dropped_tile(found, kept_tile(place, start, strides.place, seed, drop, f, block), drop, f)
    store_tile(out, found, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)


@triton.jit(do_not_specialize=["rows", "tiles"])
def activation_gradient_kernel(
    x, bias, seed, d_out, dx, part_bias, sizes, strides, rows, columns, tiles, drop, f: tl.constexpr,
    together: tl.constexpr, block: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """Write the gradient of ``x`` in some tiles of rows, and its sums down columns. ``strides.out`` are of ``dx``."""
    columns = in_units(columns, f)
    rows = in_runs(rows, f)
    start = tl.program_id(0) * block
    column = start + tl.arange(0, block)
    b = load_parameter(bias, strides.bias, column, columns)
    # Of each place of a tile, so that no program waits for its threads in order to add up rows.
    total = tl.zeros((together, block), kept_type(f))
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=stages):
        row = tile * together + tl.arange(0, together)
        exists = (row < rows)[:, None] & (column < columns)[None, :]
        back = load_tile(d_out, row_place(row, sizes, strides.d_out, f), column, strides.d_out, exists, 0.0, f)
        if f.dropout:
            place = row_place(row, sizes, strides.place, f)
            back = dropped_tile(back, kept_tile(place, start, strides.place, seed, drop, f, block), drop, f)
        if f.kind != "none":
            back *= _slope(_inputs(x, bias, b, row, column, exists, sizes, strides, f), f)
        store_tile(dx, back, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)
        total += tl.where(exists, back, 0.0)
    if part_bias is not None:
        place = tl.program_id(1).to(tl.int64) * columns + column
        tl.store(part_bias + place, tl.sum(total, 0), mask=column < columns)
