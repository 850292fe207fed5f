"""``dropout(activation(x + bias))`` of torch's tensors: by our kernels on a GPU, else by torch's own functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import Layout, by_kernel
from einops_fast.backends.torch.ops.begun import Calls, begun
from einops_fast.backends.torch.ops.row_operator import RowOperator, dense_layout
from einops_fast.backends.torch.types import HALVES, may_read_values
from einops_fast.runtime.tiers import Run


def _smelu(x: Any) -> Any:
    # Infinity would make NaN of the gradient, also where the parabola isn't used.
    within = torch.where(x <= -2, -2.0, torch.where(x >= 2, 2.0, x))
    return torch.where(x >= 2, x, (within + 2).square() / 8).to(x.dtype)


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

_aten = torch.ops.aten

_IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu_,
    "leaky_relu": _aten.leaky_relu_,
    "gelu": _aten.gelu_,
    "gelu_tanh": partial(_aten.gelu_, approximate="tanh"),
    "squared_relu": lambda x: torch.relu_(x).square_(),
    "star_relu": lambda x: torch.relu_(x).square_().mul_(0.8944).sub_(0.4472),
    "silu": _aten.silu_,
}
"""Those that torch has over their own input."""


def bias_activation(x: Any, bias: Any, activation: str, p: float) -> Run:
    """Return what computes :func:`einops_fast.ops.dropout_bias_activation` of ``x`` and the bias."""
    library = _by_torch(x, bias, activation, p)
    if not by_kernel([x] if bias is None else [x, bias]):
        return library
    kernels = lambda x, bias: activation_by_kernel(x, bias, seed_of(x, p), activation, p)  # noqa: E731
    return begun(Calls("bias_activation", library, kernels, (x, bias), x.dim() - 1, (activation, p)))


def activation_by_torch(x: Any, bias: Any, activation: str, p: float = 0.0) -> Any:
    """Compute the same by functions that can be differentiated again, each of which rounds."""
    return _by_torch(x, bias, activation, p)(x, bias)


def _by_torch(x: Any, bias: Any, activation: str, p: float) -> Run:
    dtype, function = x.dtype, _BY_TORCH[activation]
    recorded = torch.is_grad_enabled() and (x.requires_grad or (bias is not None and bias.requires_grad))
    if bias is not None and activation in _IN_PLACE and not recorded and may_read_values(x):
        function = _IN_PLACE[activation]  # over the sum, which is nobody else's

    def run(x: Any, bias: Any) -> Any:
        found = function(x if bias is None else x + bias)
        return (dropout_by_torch(found, p) if p else found).to(dtype)

    return run


@cache
def _some_seed() -> Any:
    return torch.empty((1,), dtype=torch.int64, device="meta")


def seed_of(x: Any, p: float) -> Any:
    """Return the seed of a call, in a rehearsal one without memory; ``None`` where nothing is dropped."""
    return None if not p else _some_seed() if x.is_meta else seed_for(x)


def dropout_by_torch(x: Any, p: float) -> Any:
    """Each element dropped with probability ``p``, and the others divided by ``1 - p``."""
    if p == 1:  # torch multiplies by 0, which leaves NaN of what is infinite
        return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0.0)
    return F.dropout(x, p) if p else x


def _layouts(x: Any, *others: Any) -> tuple[Layout]:
    return (dense_layout(x),)


def _gradient_layouts(
    x: Any, bias: Any, seed: Any, d_out: Any, activation: str, drop: float, of_bias: bool
) -> tuple[Layout, Layout | None]:
    """Return the layouts of the gradients of ``x`` and, if it is wanted, of the bias, which may be in ``x`` already."""
    dtype = (x if bias is None else bias).dtype
    return dense_layout(x), (tuple(x.shape[-1:]), (1,), dtype) if of_bias else None


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, bias, seed, ctx.activation, ctx.drop = inputs
    ctx.save_for_backward(None if ctx.activation == "none" else x, bias, seed)


def _backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
    x, bias, seed = ctx.saved_tensors
    x = d_out if x is None else x  # only its layout matters
    of_x, of_bias, *_ = ctx.needs_input_grad
    if not torch.is_grad_enabled():
        dx, d_bias = activation_gradients(x, bias, seed, d_out, ctx.activation, ctx.drop, of_bias)
        return dx if of_x else None, d_bias if of_bias else None, None
    if seed is not None:
        raise NotImplementedError("dropout by the kernels can't be differentiated twice: set p=0")

    def function(x: Any, bias: Any) -> Any:
        wide = x.float() if x.dtype in HALVES else x
        return activation_by_torch(wide, bias, ctx.activation).to(x.dtype)

    return (*gradients_by_torch(function, (x, bias), (of_x, of_bias), d_out), None)


activation_gradients = RowOperator(
    "bias_activation_gradients(Tensor x, Tensor? bias, Tensor? seed, Tensor d_out, str activation, float drop, "
    "bool of_bias) -> (Tensor, Tensor)",
    "activation.activation_gradients",
    _gradient_layouts,
)

activation_by_kernel = RowOperator(
    "bias_activation(Tensor x, Tensor? bias, Tensor? seed, str activation, float drop) -> Tensor",
    "activation.activation",
    _layouts,
    _setup,
    _backward,
)
