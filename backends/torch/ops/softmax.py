"""softmax and log_softmax of torch's tensors: by our kernels on a GPU, else by torch's own functions."""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.backends.torch.operator import Layout, by_kernel, dtype_name, result_dtype
from einops_fast.backends.torch.ops.begun import Calls, begun
from einops_fast.backends.torch.ops.row_operator import RowOperator, dense_layout
from einops_fast.backends.torch.ops.softmax_pieces import (
    gains_by_pieces,
    gradient_by_torch,
    masked_softmax,
    softmax_in_pieces,
)
from einops_fast.errors import OperandError
from einops_fast.runtime.tiers import Run

__all__ = ["softmax", "softmax_by_kernel"]


def softmax(
    x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, scale: float, dtype: str | None
) -> Run:
    """Return what computes the softmax along ``dim`` of ``scale * x``, masked, of ``x`` and the mask.

    See :func:`einops_fast.ops.softmax`.
    """
    wanted = result_dtype(x) if dtype is None else getattr(torch, dtype)
    library = _by_torch(x, mask, dim, log, queries, shift, scale, wanted)
    if not by_kernel([x] if mask is None else [x, mask]):
        return library
    numbers = dim, log, queries, shift, scale, dtype_name(wanted)
    kernels = lambda x, mask: softmax_by_kernel(x, mask, *numbers)  # noqa: E731
    return begun(Calls("softmax", library, kernels, (x, mask), dim, numbers))


def _by_torch(
    x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, scale: float, wanted: torch.dtype
) -> Run:
    """Return the same by torch's functions, which can be differentiated as often as these."""
    if x.is_nested:
        if mask is not None and dim == x._ragged_idx:
            raise OperandError(f"axis {dim} of the input has several lengths: there is no mask for a softmax along it")
        dim -= x.dim()  # torch's gradient of a jagged tensor takes it for an axis of the values
    if mask is None and queries is None and scale == 1.0:
        kind = None if wanted == x.dtype else wanted
        if log:
            return lambda x, mask: torch.log_softmax(x, dim, dtype=kind)
        return lambda x, mask: torch.softmax(x, dim, dtype=kind)

    def masked(x: Any, mask: Any) -> Any:
        way = softmax_in_pieces if gains_by_pieces(x, mask, queries, wanted) else masked_softmax
        return way(x, dim, log, mask, queries, shift, scale, wanted)

    return masked


def _layouts(x: Any, *arguments: Any) -> tuple[Layout]:
    return (dense_layout(x, getattr(torch, arguments[-1])),)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, mask, ctx.dim, ctx.log, queries, _, ctx.scale, _ = inputs
    ctx.masked = mask is not None or queries is not None
    ctx.dtype = dtype_name(x.dtype)
    ctx.mask = None if mask is None else (mask.shape, mask.dtype)
    ctx.save_for_backward(output)


def _backward(ctx: Any, d_out: Any) -> tuple[Any, ...]:
    (out,) = ctx.saved_tensors
    dx = d_mask = None
    # Gradients of gradients are left to torch.
    gradient = _gradient_by_torch if torch.is_grad_enabled() else softmax_gradient
    if ctx.needs_input_grad[0]:
        dx = gradient(out, d_out, ctx.dim, ctx.log, ctx.masked, ctx.scale, ctx.dtype)
    if ctx.needs_input_grad[1]:
        shape, dtype = ctx.mask
        kind = "float64" if out.dtype == torch.float64 else "float32"
        d_mask = gradient(out, d_out, ctx.dim, ctx.log, ctx.masked, 1.0, kind).sum_to_size(shape).to(dtype)
    return dx, d_mask


def _gradient_by_torch(out: Any, d_out: Any, dim: int, log: bool, masked: bool, scale: float, dtype: str) -> Any:
    return gradient_by_torch(out, d_out, dim, log, masked, scale, getattr(torch, dtype))


softmax_gradient = RowOperator(
    "softmax_gradient(Tensor out, Tensor d_out, int dim, bool log, bool masked, float scale, str dtype) -> Tensor",
    "softmax.softmax_gradient",
    _layouts,
)

softmax_by_kernel = RowOperator(
    "softmax(Tensor x, Tensor? mask, int dim, bool log, int? queries, SymInt shift, float scale, str dtype) -> Tensor",
    "softmax.softmax",
    _layouts,
    _setup,
    _backward,
)
