"""``dropout(activation(x + bias))`` of torch's tensors: by our kernels on a GPU, else by torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch_operator import MEMORY, Operator, by_kernel, dtype_name
from einops_fast.backends.triton.activation_plan import activation_contest
from einops_fast.backends.triton.contest import Contest
from einops_fast.backends.triton.rows import dense_strides
from einops_fast.tuning import current_mode

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


@lru_cache(maxsize=4096)
def _plan(
    shape: Strides, strides: tuple[Strides, Strides, Strides], along: int | None, kind: str, drop: float,
    dtype: torch.dtype, gradient: bool, of_bias: bool, device: int, mode: str,
) -> Contest:  # fmt: skip
    return activation_contest(
        MEMORY, device, MEMORY.shared(device), mode, shape, strides, along, kind, drop, dtype_name(dtype), gradient,
        of_bias,
    )  # fmt: skip


def _shape(x: Any, *others: Any) -> Any:
    return x.new_empty_strided(x.shape, dense_strides(x.shape, x.stride()))


def _compute(x: Any, bias: Any, seed: Any, activation: str, drop: float) -> Any:
    out = _shape(x)
    run = _plan(
        tuple(x.shape), (x.stride(), out.stride(), out.stride()), None if bias is None else bias.stride(0), activation,
        drop, x.dtype, False, False, MEMORY.device(x), current_mode(),
    )  # fmt: skip
    run(x, bias, seed, out)
    return out


def _gradient_shapes(
    x: Any, bias: Any, seed: Any, d_out: Any, activation: str, drop: float, of_bias: bool
) -> tuple[Any, Any]:
    return _shape(x), bias.new_empty(bias.shape if of_bias else 0) if bias is not None else x.new_empty(0)


def _compute_gradients(
    x: Any, bias: Any, seed: Any, d_out: Any, activation: str, drop: float, of_bias: bool
) -> tuple[Any, Any]:
    dx = _shape(x)
    run = _plan(
        tuple(x.shape), (x.stride(), dx.stride(), d_out.stride()), None if bias is None else bias.stride(0), activation,
        drop, x.dtype, True, of_bias, MEMORY.device(x), current_mode(),
    )  # fmt: skip
    d_bias = bias.new_empty(bias.shape) if of_bias else None
    run(x, bias, seed, d_out, dx, d_bias)
    return dx, x.new_empty(0) if d_bias is None else d_bias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, bias, seed, ctx.activation, ctx.drop = inputs
    ctx.save_for_backward(x, bias, seed)


def _backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
    x, bias, seed = ctx.saved_tensors
    of_x, of_bias, *_ = ctx.needs_input_grad
    if not torch.is_grad_enabled():
        dx, d_bias = activation_gradients(x, bias, seed, d_out, ctx.activation, ctx.drop, of_bias)
        return dx if of_x else None, d_bias if of_bias else None, None
    if seed is not None:
        raise NotImplementedError("dropout by the kernels can't be differentiated twice: set p=0")
    of = [each for each in (x, bias) if each is not None and each.requires_grad]
    found = iter(torch.autograd.grad(activation_by_torch(x, bias, ctx.activation), of, d_out, create_graph=True))
    return (*(next(found) if wanted else None for wanted in (of_x, of_bias)), None)


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
