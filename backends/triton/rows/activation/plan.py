"""The ways to launch the kernels of ``dropout(activation(x + bias))`` and of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.activation.kernel import (
    ActivationFeatures,
    ActivationStrides,
    activation_gradient_kernel,
    activation_kernel,
)
from einops_fast.backends.triton.rows.candidates import column_tilings, element_tilings, row_call, typical
from einops_fast.backends.triton.rows.column_sums import column_sums
from einops_fast.backends.triton.rows.contest import Contest, Launch, Way
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, dropping, in_fours, rows_of
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import Strides, contiguous_strides

__all__ = ["activation_contest"]

_DIGITS = {"float16": 11, "bfloat16": 8}
"""Binary digits of types that have few."""


class _Elements(Way):
    """The result, a tile for each program."""

    def __init__(self, features: ActivationFeatures, rows: Rows, tiling: RowTiling, places: Any, drop: Any) -> None:
        self.name = tiling.name
        tiles, blocks = -(-rows.count // tiling.rows), -(-rows.columns // tiling.block)
        constants = {
            "f": features, "together": tiling.rows, "block": tiling.block, "across": rows.contiguous
        }  # fmt: skip
        tail = rows.sizes, places, rows.count, rows.columns, blocks if rows.contiguous else tiles, drop
        self._call = KernelCall(activation_kernel, (tiles * blocks, 1), tail, constants, tiling.warps, 1)

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        return [(self._call, arrays)]


class _Gradient(Way):
    """The gradient of ``x`` and sums of parts of its columns, and then, if that of the bias is wanted, their sum."""

    def __init__(
        self, features: ActivationFeatures, rows: Rows, tiling: RowTiling, places: Any, drop: Any, acc: str
    ) -> None:
        self.name = tiling.name
        tiles = -(-rows.count // tiling.rows)
        parts = min(tiling.parts, tiles)
        grid = -(-rows.columns // tiling.block), parts
        constants = {"f": features, "together": tiling.rows, "block": tiling.block, "stages": tiling.stages}
        tail = rows.sizes, places, rows.count, rows.columns, tiles, drop
        self._call = KernelCall(activation_gradient_kernel, grid, tail, constants, tiling.warps, 1)
        self._add = column_sums(parts, rows.columns)
        self._sums, self._acc = parts * rows.columns, acc

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        *given, d_bias = arrays
        if d_bias is None:
            return [(self._call, (*given, None))]
        sums = memory.workspace(arrays[0], self._sums, self._acc)
        return [(self._call, (*given, sums)), (self._add, (sums, None, d_bias, None))]


def activation_contest(
    memory: Memory, device: int, shared: int, mode: str, shape: Strides, strides: tuple[Strides, Strides, Strides],
    along: int | None, kind: str, drop: float, dtype: str, gradient: bool, of_bias: bool,
) -> Contest:  # fmt: skip
    """The ways to run an activation, or its gradients.

    The first takes input, bias, seed and result; the other one input, bias, seed, the gradient of the result, that of
    the input and that of the bias.

    Args:
        memory, device, shared: where arrays are, and how many bytes of shared memory a program may have there.
        mode: of :func:`einops_fast.autotune`.
        shape: of the arrays.
        strides: of input, result (or gradient of the input), and gradient of the result.
        along: stride of the bias, or ``None``.
        kind: of the activation.
        drop: probability of dropping an element.
        dtype: of all arrays.
        gradient: the gradients are wanted; ``of_bias``: also that of the bias.
    """
    rows = rows_of(shape, len(shape) - 1, (*strides, contiguous_strides(shape)))
    x, out, d_out, place = rows.strides
    double, size, arrays = dtype == "float64", ITEM_SIZES[dtype], range(len(rows.strides))
    features = ActivationFeatures(
        len(rows.sizes), kind, drop > 0, in_fours(rows, place), _DIGITS.get(dtype, 24), rows.wide, double,
        drop if double else 0.0, rows.unit(arrays),
        # Elements are numbered only where some are dropped.
        rows.across(arrays if drop else arrays[:-1]),
    )  # fmt: skip
    places, dropped = ActivationStrides(x, out, d_out, place, (along or 0,)), dropping(drop)
    alike = typical(rows)
    ways: list[Way]
    if gradient:
        acc = "float64" if double else "float32"
        tilings = column_tilings(alike, size, 2, shared)
        if double:  # whose sums need the registers
            tilings = list(dict.fromkeys([replace(tiling, stages=1) for tiling in tilings]))
        ways = [_Gradient(features, rows, tiling, places, dropped, acc) for tiling in tilings]
    else:
        # Random words need registers: then half of a tile is as much.
        tilings = element_tilings(alike, 4 if drop else size)
        ways = [_Elements(features, rows, tiling, places, dropped) for tiling in tilings]
    name = "bias and activation" if along is not None or of_bias else "activation"
    if gradient:
        name = f"gradients of {name}" if of_bias or along is None else f"gradient of {name} without the bias"
    return Contest(memory, device, row_call(name, alike, features, mode), ways)
