"""``activation(x + bias)`` of few digits on a CPU, by torch's functions of pieces that stay in the cache.

For the result the sum is float32. For the gradient it is kept as it is rounded: torch's own functions do so, and
compute in float32 from there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from einops_fast.backends.torch_function import recorded
from einops_fast.backends.torch_operator import is_known
from einops_fast.backends.torch_pieces import dense_like, outermost_first, pieces, room_for
from einops_fast.backends.torch_types import HALVES

__all__ = ["IN_PLACE", "activation_in_pieces", "gains_by_pieces"]

_aten = torch.ops.aten

_LARGE = 1 << 19
"""Elements from which on the sum is too large for the cache."""

IN_PLACE: dict[str, Callable[[Any], Any]] = {
    "relu": torch.relu_,
    "leaky_relu": _aten.leaky_relu_,
    "gelu": _aten.gelu_,
    "gelu_tanh": partial(_aten.gelu_, approximate="tanh"),
    "silu": _aten.silu_,
}
"""Activations that torch has over their own input."""


def _silu_gradient(back: Any, x: Any) -> Any:
    if not torch.is_grad_enabled():
        return _aten.silu_backward(back, x)
    share = x.sigmoid()  # torch has no derivative of the other function
    return back * (share * (1 + x * (1 - share)))


_GRADIENTS: dict[str, Callable[[Any, Any], Any]] = {
    "leaky_relu": partial(_aten.leaky_relu_backward, negative_slope=0.01, self_is_result=False),
    "gelu": _aten.gelu_backward,
    "gelu_tanh": partial(_aten.gelu_backward, approximate="tanh"),
    "silu": _silu_gradient,
}
"""Their gradients, from that of the result and the input."""


def gains_by_pieces(x: Any, bias: Any, activation: str) -> bool:
    """Whether this is for pieces: what takes two functions that would both round."""
    return (
        bias is not None
        and x.dtype in HALVES
        and bias.dtype == x.dtype
        and activation in _GRADIENTS
        and is_known(x, bias)
    )


def activation_in_pieces(x: Any, bias: Any, activation: str) -> Any:
    """What :func:`gains_by_pieces` is true of: rounded once, and recorded where a gradient is needed."""
    if torch.is_grad_enabled() and (x.requires_grad or bias.requires_grad):
        return _record(x, bias, activation)[0]
    return _compute(x, bias, activation)[0]


def _compute(x: Any, bias: Any, activation: str, *, keeps: bool = False) -> tuple[Any, Any]:
    """The result and, if the gradient ``keeps`` it, the sum."""
    function, kind = IN_PLACE[activation], x.dtype
    if x.numel() < _LARGE:
        wide = x.float().add_(bias.float())
        total = wide.to(kind) if keeps else None
        return function(wide).to(kind), total
    found = [dense_like(x, kind) for _ in range(1 + keeps)]
    tensors, _ = outermost_first((x, bias.float(), *found), found[0])
    room = None
    for given, added, out, *totals in pieces(tensors):
        room = room_for(given, torch.float32, last=room)
        torch.add(room.copy_(given), added, out=room)
        for each in totals:
            each.copy_(room)
        out.copy_(function(room))
    return found[0], found[-1]


class ActivationInPieces(torch.autograd.Function):
    """What autograd sees: it keeps the sum, as a result of its own, by way of which gradients have gradients."""

    @staticmethod
    def forward(ctx: Any, x: Any, bias: Any, activation: str) -> Any:
        found = _compute(x, bias, activation, keeps=True)
        ctx.save_for_backward(found[1])
        ctx.given = activation, bias.shape
        ctx.set_materialize_grads(False)
        return found

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_total: Any = None) -> Any:
        (total,) = ctx.saved_tensors
        activation, shape = ctx.given
        dx = d_total
        if d_out is not None:
            own = _GRADIENTS[activation](d_out, total)
            dx = own if d_total is None else own + d_total
        if dx is None:
            return None, None, None
        of_x, of_bias, _ = ctx.needs_input_grad
        return dx if of_x else None, dx.sum_to_size(shape) if of_bias else None, None


_record = recorded(ActivationInPieces)
