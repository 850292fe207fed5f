"""Layer norm and RMS norm of torch's tensors, also after dropout and a sum: by our kernels, or by torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import Layout, by_kernel, dtype_name, result_dtype
from einops_fast.backends.torch.ops.activation import dropout_by_torch, seed_of
from einops_fast.backends.torch.ops.begun import Calls, begun
from einops_fast.backends.torch.ops.row_operator import RowOperator, dense_layout
from einops_fast.planning.layout import contiguous_strides


def norm(
    x: Any, weight: Any, bias: Any, dim: int, count: int, eps: float | None, centred: bool
) -> Callable[[Any, Any, Any], Any]:
    """Return what computes layer norm, or RMS norm if not ``centred``, along ``count`` axes from ``dim`` on.

    Of several axes, they are the last ones. Weight and bias have these axes. See :func:`einops_fast.ops.layer_norm`.
    """
    dtype, eps = result_dtype(x), _eps(x, eps)
    arrays = x, weight, bias
    if not by_kernel([each for each in arrays if each is not None]) or (count > 1 and not _flattens(x, count)):
        return _by_torch(x, weight, bias, dim, count, eps, centred, dtype)
    if count > 1:

        def flat(x: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
            weight, bias = (None if each is None else each.reshape(-1) for each in (weight, bias))
            return x.view(*x.shape[:dim], -1), weight, bias

        run = norm(*flat(*arrays), dim, 1, eps, centred)
        return lambda *arrays: run(*flat(*arrays)).view(arrays[0].shape)
    library = _by_torch(x, weight, bias, dim, 1, eps, centred, dtype)
    numbers = dim, centred, eps, 0.0, dtype_name(dtype)
    kernels = lambda x, weight, bias: norm_by_kernel(x, None, weight, bias, None, *numbers)[0]  # noqa: E731
    return begun(Calls("norm", library, kernels, arrays, dim, numbers))


def _eps(x: Any, eps: float | None) -> float:
    """Return the number, or as torch's ``rms_norm`` has it that of the type that is computed in."""
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    return float(eps)


def _flattens(x: Any, count: int) -> bool:
    """Return whether the last axes lie like one."""
    axes = range(x.dim() - count, x.dim() - 1)
    return all(x.stride(at) == x.stride(at + 1) * x.shape[at + 1] for at in axes)


def _by_torch(
    x: Any, weight: Any, bias: Any, dim: int, count: int, eps: float, centred: bool, dtype: torch.dtype
) -> Callable[[Any, Any, Any], Any]:
    """Return the same in ``dtype`` by torch's functions, which can be differentiated as often as these."""
    kinds = {each.dtype for each in (x, weight, bias) if each is not None}
    # torch's RMS norm has no bias, and its layer norm no gradients of gradients of one without a weight.
    apart, without_weight = bias is not None and not centred, centred and bias is not None and weight is None
    wide = torch.float64 if torch.float64 in kinds else torch.float32
    casts, moves = apart or kinds != {dtype}, dim + count != x.dim()
    shape = (x.shape[dim],) if moves else x.shape[-count:]
    if not (casts or moves or without_weight):
        if centred:
            return lambda x, weight, bias: F.layer_norm(x, shape, weight, bias, eps)
        return lambda x, weight, bias: F.rms_norm(x, shape, weight, eps)

    def run(x: Any, weight: Any, bias: Any) -> Any:
        if without_weight:
            weight = torch.ones_like(bias)
        if casts:
            x, weight, bias = (None if each is None else each.to(wide) for each in (x, weight, bias))
        if moves:
            x = x.movedim(dim, -1)
        found = F.layer_norm(x, shape, weight, bias, eps) if centred else F.rms_norm(x, shape, weight, eps)
        if apart:
            found = found + bias
        return (found.movedim(-1, dim) if moves else found).to(dtype)

    return run


def dropout_add_norm(
    x: Any, residual: Any, weight: Any, bias: Any, dim: int, p: float, eps: float, centred: bool
) -> Callable[[Any, Any, Any, Any], tuple[Any, Any]]:
    """Return what computes the norm of ``h = dropout(x) + residual``, and ``h``.

    See :func:`einops_fast.ops.dropout_add_layer_norm`.
    """
    arrays = x, residual, weight, bias
    dtype, eps = result_dtype(x), _eps(x, eps)
    kind = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    ours = by_kernel([each for each in arrays if each is not None])
    if residual is None and not p and ours:
        run = norm(x, weight, bias, dim, 1, eps, centred)
        return lambda x, residual, weight, bias: (run(x, weight, bias), x)

    def library(x: Any, residual: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        summed = dropout_by_torch(x, p)
        if residual is not None:
            # Of a number, torch would take the kind of dtype only.
            summed = (summed if summed.dtype == kind else summed.to(kind)) + residual
        normed = _by_torch(summed, weight, bias, dim, 1, eps, centred, dtype)
        return normed(summed, weight, bias), summed

    if not ours:
        return library
    numbers = dim, centred, eps, p, dtype_name(dtype)

    def kernels(x: Any, residual: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        found = norm_by_kernel(x, residual, weight, bias, seed_of(x, p), *numbers)
        return found[0], found[1]

    return begun(Calls("norm", library, kernels, arrays, dim, numbers))


def _layouts(
    x: Any, residual: Any, weight: Any, bias: Any, seed: Any, dim: int, centred: bool, eps: float, drop: float,
    dtype: str,
) -> tuple[Layout, Layout | None, Layout | None, Layout]:  # fmt: skip
    """Return the layouts of the result, the sum (unless the input is normalised), means, reciprocals of deviations."""
    rows = tuple([1 if at == dim else size for at, size in enumerate(x.shape)])
    statistics = rows, contiguous_strides(rows), torch.float64 if x.dtype == torch.float64 else torch.float32
    wider = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    return (
        dense_layout(x, getattr(torch, dtype)),
        dense_layout(x, wider) if seed is not None or residual is not None else None,
        statistics if centred else None,
        statistics,
    )


def _gradient_layouts(
    h: Any, means: Any, rstds: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, dim: int,
    centred: bool, eps: float, drop: float, of_x: str, of_residual: str, of_weight: bool, of_bias: bool,
) -> tuple[Layout | None, ...]:  # fmt: skip
    """Return the layouts of the wanted gradients of input, residual, weight and bias."""
    columns = tuple(h.shape[dim : dim + 1]), (1,)
    return (
        dense_layout(h, getattr(torch, of_x)) if of_x else None,
        dense_layout(h, getattr(torch, of_residual)) if of_residual else None,
        (*columns, weight.dtype) if of_weight else None,
        (*columns, bias.dtype) if of_bias else None,
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, weight, bias, seed, *ctx.numbers, _ = inputs
    _, summed, means, rstds = output
    ctx.kinds, ctx.shape = (x.dtype, None), None
    if residual is not None:
        ctx.kinds, ctx.shape = (x.dtype, residual.dtype), residual.shape
    ctx.save_for_backward(x if residual is None and seed is None else summed, means, rstds, weight, bias, seed)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Any, d_summed: Any, *others: Any) -> tuple[Any, ...]:
    h, means, rstds, weight, bias, seed = ctx.saved_tensors
    of_x, of_residual, of_weight, of_bias, *_ = ctx.needs_input_grad
    kind, kind_of_residual = ctx.kinds
    of_x, of_residual = (dtype_name(kind) if of_x else "", dtype_name(kind_of_residual) if of_residual else "")
    wanted = of_x, of_residual, of_weight, of_bias
    if d_out is None:
        d_out = torch.zeros_like(h)
    if d_summed is not None and (not (of_x or of_residual) or (ctx.shape is None and seed is None)):
        d_summed = None
    if torch.is_grad_enabled():
        found = _gradients_again(h, weight, bias, seed, d_out, d_summed, wanted, *ctx.numbers)
    else:
        found = norm_gradients(h, means, rstds, weight, bias, seed, d_out, d_summed, *ctx.numbers, *wanted)
    dx, d_residual, d_weight, d_bias = [each if really else None for each, really in zip(found, wanted, strict=True)]
    if d_residual is not None and d_residual.shape != ctx.shape:
        d_residual = d_residual.sum_to_size(ctx.shape)
    return dx, d_residual, d_weight, d_bias, None


def _gradients_again(
    h: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, wanted: tuple[Any, ...], dim: int,
    centred: bool, eps: float, drop: float,
) -> tuple[Any, ...]:  # fmt: skip
    """To be differentiated again."""
    if seed is not None:
        raise NotImplementedError("dropout with a norm by the kernels can't be differentiated twice: set p=0")
    of_h = bool(wanted[0] or wanted[1])
    run = _by_torch(h, weight, bias, dim, 1, eps, centred, d_out.dtype)
    dh, d_weight, d_bias = gradients_by_torch(run, (h, weight, bias), (of_h, *wanted[2:]), d_out)
    if d_summed is not None:
        dh = dh + d_summed
    dx, d_residual = (dh.to(getattr(torch, dtype)) if dtype else None for dtype in wanted[:2])
    return dx, d_residual, d_weight, d_bias


norm_gradients = RowOperator(
    "norm_gradients(Tensor h, Tensor means, Tensor rstds, Tensor? weight, Tensor? bias, Tensor? seed, Tensor d_out, "
    "Tensor? d_summed, int dim, bool centred, float eps, float drop, str of_x, str of_residual, bool of_weight, "
    "bool of_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    "norm.norm_gradients",
    _gradient_layouts,
    aligned=(0, 6),
)

norm_by_kernel = RowOperator(
    "norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? seed, int dim, bool centred, float eps, "
    "float drop, str dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    "norm.norm",
    _layouts,
    _setup,
    _backward,
    seen=2,
    unrecorded=2,
)
