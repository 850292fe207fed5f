"""softmax and log_softmax of torch's tensors: by our kernels on a GPU, else by torch's own functions."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, nan
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.backends.torch.operator import Layout, by_kernel, dtype_name, result_dtype
from einops_fast.backends.torch.ops.begun import Calls, begun
from einops_fast.backends.torch.ops.row_operator import RowOperator, dense_layout
from einops_fast.backends.torch.types import HALVES, may_read_values
from einops_fast.errors import OperandError
from einops_fast.runtime.tiers import Run

_HIDDEN = float("-inf")

_LARGE = 1 << 15
"""Elements from which on a CPU takes longer to choose by a boolean than to make numbers of it and add them."""

_BITS = {
    torch.float16: (torch.int16, -0x400),
    torch.bfloat16: (torch.int16, -0x80),
    torch.float32: (torch.int32, -0x800000),
    torch.float64: (torch.int64, -0x10000000000000),
}
"""Integers of the same size, and which of them has the bits of ``-inf``."""


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
    native = torch.log_softmax if log else torch.softmax
    if x.is_nested:
        if mask is not None and dim == x._ragged_idx:
            raise OperandError(f"axis {dim} of the input has several lengths: there is no mask for a softmax along it")
        dim -= x.dim()  # torch's gradient of a jagged tensor takes it for an axis of the values
    if mask is None and queries is None and scale == 1.0:
        kind = None if wanted == x.dtype else wanted
        return lambda x, mask: native(x, dim, dtype=kind)
    if x.numel() >= _LARGE and may_read_values(x):
        strides = x.stride()
        order = sorted(range(x.dim()), key=lambda at: (strides[at] != 0, -strides[at]))
        if order != sorted(order):
            return _as_it_lies(order, x, mask, dim, log, queries, shift, scale, wanted)

    def masked(x: Any, mask: Any) -> Any:
        score, seen = _score(x, mask, dim, queries, shift, scale)
        kind = torch.promote_types(score.dtype, wanted)
        if (mask is None and queries is None) or not x.shape[dim]:
            return native(score, dim, dtype=kind).to(wanted)
        reads, total = may_read_values(x), nan
        if reads:
            score = _quickly_hidden(score, seen)
            own = score is not x and score.dtype == kind and not score.requires_grad
            found = native(score, dim, dtype=kind, out=score if own else None)
            total = (found if log and found.requires_grad else found.select(dim, 0)).detach().sum().item()
        if isnan(total):
            # Without anything to sum over, a row is NaN, all along, and so would be its gradients.
            score = _hidden(*_score(x, mask, dim, queries, shift, scale))
            empty = score.detach().amax(dim, keepdim=True) == _HIDDEN
            found = native(score.masked_fill(empty, 0.0), dim, dtype=kind)
            found = found.masked_fill(empty, _HIDDEN if log else 0.0)
        if log and not (reads and (isfinite(total) or not found.requires_grad)):  # what is hidden is a constant
            found = F.threshold(found, _HIDDEN, _HIDDEN)
        return found.to(wanted)

    return masked


def _as_it_lies(
    order: Sequence[int], x: Any, mask: Any, dim: int, log: bool, queries: int | None, *numbers: Any
) -> Run:
    """Return the same with the outermost axes first: of others, torch's functions make copies in C order."""
    rank = len(order)
    back = [order.index(at) for at in range(rank)]

    def permuted(array: Any) -> Any:
        return None if array is None else array[(None,) * (rank - array.dim())].permute(order)

    rows = None if queries is None else back[queries]
    run = _by_torch(permuted(x), permuted(mask), back[dim], log, rows, *numbers)
    return lambda x, mask: run(permuted(x), permuted(mask)).permute(back)


def _score(x: Any, mask: Any, dim: int, queries: int | None, shift: int, scale: float) -> tuple[Any, Any]:
    """Return what the softmax is of, each step rounded, and which of it takes part, ``None`` for all."""
    score, seen = x if scale == 1.0 else x * scale, mask
    if mask is not None and mask.dtype != torch.bool:
        fits = score is not x and may_read_values(x) and torch.promote_types(score.dtype, mask.dtype) == score.dtype
        score, seen = score.add_(mask) if fits else score + mask, None
    if queries is not None:
        shape = [1] * x.dim()
        shape[queries], shape[dim] = x.shape[queries], x.shape[dim]
        square = torch.ones(x.shape[queries], x.shape[dim], dtype=torch.bool, device=x.device).tril_(shift)
        before = (square if queries < dim else square.T).reshape(shape)
        seen = before if seen is None else before & seen
    return score, seen


def _hidden(score: Any, seen: Any) -> Any:
    """Return the score, ``-inf`` where it isn't seen."""
    if seen is None:
        return score
    # Of jagged tensors, `where` takes no mask that is broadcast.
    return score.masked_fill(~seen, _HIDDEN) if score.is_nested else torch.where(seen, score, _HIDDEN)


def _quickly_hidden(score: Any, seen: Any) -> Any:
    """Return the same, but NaN where NaN or infinity isn't seen: on a CPU in a third of the time."""
    if seen is None or score.numel() < _LARGE or score.dtype not in _BITS:
        return _hidden(score, seen)
    integers, bits = _BITS[score.dtype]
    numbers = seen.to(integers).sub_(1).bitwise_and_(bits).view(score.dtype)
    alike = numbers.shape == score.shape and numbers.stride() == score.stride()
    return numbers.add_(score) if alike else score + numbers


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
    """Compute the gradient by functions that can be differentiated again."""
    out = out.float() if out.dtype in HALVES else out
    d_out = d_out.to(out.dtype)
    if log:
        seen = d_out.masked_fill(out == _HIDDEN, 0.0) if masked else d_out
        found = seen - out.exp() * seen.sum(dim, keepdim=True)
    else:
        found = out * (d_out - (out * d_out).sum(dim, keepdim=True))
    return (found * scale).to(getattr(torch, dtype))


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
