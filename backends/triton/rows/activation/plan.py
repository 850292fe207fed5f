"""The ways to launch the kernels of ``dropout(activation(x + bias))`` and of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einops_fast.backends.triton.rows.activation.kernel import (
    ActivationFeatures,
    ActivationStrides,
    activation_gradient_kernel,
    activation_kernel,
)
from einops_fast.backends.triton.rows.contest import NONE, Contest, Site, Way
from einops_fast.backends.triton.rows.plan import Operands, RowCall
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, dropping, rows_of
from einops_fast.backends.triton.rows.tilings import column_tilings, element_tilings
from einops_fast.planning.layout import contiguous_strides

_DIGITS = {"float16": 11, "bfloat16": 8}
"""Binary digits of types that have few."""


def activation(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of an activation: input, bias, seed and result."""
    (x, bias, _), (out,), (kind, drop) = given, made, numbers
    name = "activation" if bias is None else "bias and activation"
    call = _call(site, name, (x, out, out), (*given, out), kind, drop)
    rows = call.rows

    def way(tiling: RowTiling) -> Way:
        tiles, blocks = -(-rows.count // tiling.rows), -(-rows.columns // tiling.block)
        numbers = blocks if rows.contiguous else tiles, dropping(drop)
        kernel = call.kernel(activation_kernel, tiling, (tiles * blocks, 1), numbers, across=rows.contiguous)
        return Way(tiling.name, [(kernel, range(4))])

    # Random words need registers: then half of a tile is as much.
    return call.contest([way(tiling) for tiling in element_tilings(call.alike, 4 if drop else call.size)])


def activation_gradients(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of the gradients: input, bias, seed, gradient of the result, those of input and bias."""
    (x, bias, _, d_out), (dx, d_bias), (kind, drop, _) = given, made, numbers
    name = "gradients of activation" if bias is None else "gradient of bias and activation without the bias"
    if d_bias is not None:
        name = "gradients of bias and activation"
    call = _call(site, name, (x, dx, d_out), (*given, *made), kind, drop)
    rows = call.rows

    def way(tiling: RowTiling) -> Way:
        tiles = -(-rows.count // tiling.rows)
        programs = min(tiling.parts, tiles)
        grid, numbers = (-(-rows.columns // tiling.block), programs), (tiles, dropping(drop))
        kernel = call.kernel(activation_gradient_kernel, tiling, grid, numbers, stages=tiling.stages)
        sums, work, steps = call.added_up(programs, [NONE if d_bias is None else 5])
        return Way(tiling.name, [(kernel, (*range(5), *sums)), *steps], work)

    tilings = column_tilings(call.alike, call.size, 2, site.limits[0])
    if call.features.double:  # whose sums need the registers
        tilings = list(dict.fromkeys([replace(tiling, stages=1) for tiling in tilings]))
    return call.contest([way(tiling) for tiling in tilings])


def _call(site: Site, name: str, arrays: Operands, operands: Operands, kind: str, drop: float) -> RowCall:
    """Return the call; ``arrays`` are input, result or gradient of the input, and gradient of the result."""
    x, bias = operands[0], operands[1]
    rows = rows_of(x.shape, len(x.shape) - 1, (*[each.strides for each in arrays], contiguous_strides(x.shape)))
    features = ActivationFeatures(
        **rows.features(range(4), drop, x.dtype == "float64"), kind=kind, digits=_DIGITS.get(x.dtype, 24)
    )

    def places(rows: Rows) -> ActivationStrides:
        x, out, d_out, place = rows.strides
        return ActivationStrides(x, out, d_out, place, (0,) if bias is None else bias.strides)

    return RowCall(site, name, rows, features, places, operands)
