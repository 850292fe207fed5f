"""``dropout(activation(x + bias))`` of torch's tensors: by our kernels on a GPU, else by torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch_operator import MEMORY, Operator, by_kernel, dtype_name, launch
from einops_fast.backends.triton.activation import (
    ActivationFeatures,
    ActivationStrides,
    activation_gradient_kernel,
    activation_kernel,
)
from einops_fast.backends.triton.attention.launch import KernelCall
from einops_fast.backends.triton.column_sums import column_sums
from einops_fast.backends.triton.rows import column_tiling, dense_strides, dropping, in_fours, rows_of
from einops_fast.layout import contiguous_strides

__all__ = ["activation_by_kernel", "activation_by_torch", "activation_gradients", "bias_activation"]

Strides = tuple[int, ...]


def _smelu(x: Any) -> Any:
    return torch.where(x <= -2, 0.0, torch.where(x >= 2, x, (x + 2).square() / 8)).to(x.dtype)


_BY_TORCH: dict[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "squared_relu": lambda x: F.relu(x).square(),
    "smelu": _smelu,
    "star_relu": lambda x: 0.8944 * F.relu(x).square() - 0.4472,
    "silu": F.silu,
}


def bias_activation(x: Any, bias: Any, activation: str, p: float) -> Any:
    """See :func:`einops_fast.ops.dropout_bias_activation`."""
    if not by_kernel([x] if bias is None else [x, bias]):
        found = activation_by_torch(x, bias, activation)
        return F.dropout(found, p) if p else found
    return activation_by_kernel(x, bias, seed_for(x) if p else None, activation, p)


def activation_by_torch(x: Any, bias: Any, activation: str) -> Any:
    """Without dropout, by functions that can be differentiated again."""
    return _BY_TORCH[activation](x if bias is None else x + bias)


class _Plan:
    """A kernel for one kind of call; ``sums`` programs have parts of the rows, if it is that of the gradients."""

    def __init__(
        self, shape: Strides, strides: tuple[Strides, Strides, Strides], along: int, kind: str, drop: float,
        dtype: torch.dtype, gradient: bool,
    ) -> None:  # fmt: skip
        rows = rows_of(shape, len(shape) - 1, (*strides, contiguous_strides(shape)))
        x, out, d_out, place = rows.strides
        double = dtype == torch.float64
        features = ActivationFeatures(
            len(rows.sizes), kind, drop > 0, in_fours(rows, place), dtype in (torch.float16, torch.bfloat16),
            rows.wide, double, drop if double else 0.0,
        )  # fmt: skip
        # Random words need registers: then half of a tile is as much.
        tiling = column_tiling(rows, 4 if gradient or drop else dtype.itemsize)
        if dtype == torch.float64:
            tiling = replace(tiling, stages=1)
        steps, blocks = -(-rows.count // tiling.rows), -(-rows.columns // tiling.block)
        constants = {"f": features, "together": tiling.rows, "block": tiling.block}
        tail: tuple[Any, ...]
        tail = rows.sizes, ActivationStrides(x, out, d_out, place, (along,)), rows.count, rows.columns
        if gradient:
            self.sums = tiling.parts
            self.call = KernelCall(
                activation_gradient_kernel, (blocks, tiling.parts), (*tail, steps, dropping(drop)),
                {**constants, "stages": tiling.stages}, tiling.warps, 1,
            )  # fmt: skip
            self.add = column_sums(self.sums, rows.columns)
        else:
            self.call = KernelCall(
                activation_kernel, (steps, blocks), (*tail, dropping(drop)), constants, tiling.warps, 1
            )


_plan = lru_cache(maxsize=4096)(_Plan)


def _shape(x: Any, *others: Any) -> Any:
    return x.new_empty_strided(x.shape, dense_strides(x.shape, x.stride()))


def _compute(x: Any, bias: Any, seed: Any, activation: str, drop: float) -> Any:
    out = _shape(x)
    plan = _plan(
        tuple(x.shape), (x.stride(), out.stride(), out.stride()), 0 if bias is None else bias.stride(0), activation,
        drop, x.dtype, False,
    )  # fmt: skip
    launch([plan.call], x, bias, seed, out)
    return out


def _gradient_shapes(
    x: Any, bias: Any, seed: Any, d_out: Any, activation: str, drop: float, of_bias: bool
) -> tuple[Any, Any]:
    return _shape(x), bias.new_empty(bias.shape if of_bias else 0) if bias is not None else x.new_empty(0)


def _compute_gradients(
    x: Any, bias: Any, seed: Any, d_out: Any, activation: str, drop: float, of_bias: bool
) -> tuple[Any, Any]:
    dx = _shape(x)
    plan = _plan(
        tuple(x.shape), (x.stride(), dx.stride(), d_out.stride()), 0 if bias is None else bias.stride(0), activation,
        drop, x.dtype, True,
    )  # fmt: skip
    columns = x.shape[-1]
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    parts = MEMORY.workspace(x, plan.sums * columns, dtype_name(acc)) if of_bias else None
    launch([plan.call], x, bias, seed, d_out, dx, parts)
    d_bias = x.new_empty(0) if parts is None else bias.new_empty(bias.shape)
    if parts is not None:
        launch([plan.add], parts, None, d_bias, None)
    return dx, d_bias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, bias, seed, ctx.activation, ctx.drop = inputs
    ctx.save_for_backward(x, bias, seed)


def _backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
    x, bias, seed = ctx.saved_tensors
    of_x, of_bias, *_ = ctx.needs_input_grad
    if not torch.is_grad_enabled():
        dx, d_bias = activation_gradients(x, bias, seed, d_out, ctx.activation, ctx.drop, of_bias)
        return dx if of_x else None, d_bias if of_bias else None, None, None, None
    if seed is not None:
        raise NotImplementedError("dropout by the kernels can't be differentiated twice: set p=0")
    of = [each for each in (x, bias) if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(activation_by_torch(x, bias, ctx.activation), of, d_out, create_graph=True))
    return (*(next(found) if wanted else None for wanted in (of_x, of_bias)), None, None, None)


activation_gradients = Operator(
    "bias_activation_gradients(Tensor x, Tensor? bias, Tensor? seed, Tensor d_out, str activation, float drop, "
    "bool of_bias) -> (Tensor, Tensor)",
    _compute_gradients,
    _gradient_shapes,
)

activation_by_kernel = Operator(
    "bias_activation(Tensor x, Tensor? bias, Tensor? seed, str activation, float drop) -> Tensor",
    _compute,
    _shape,
    _setup,
    _backward,
)
