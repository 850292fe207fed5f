"""Layer norm and RMS norm of torch's tensors, also after dropout and a sum: by our kernels, or by torch's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import (
    MEMORY,
    Layout,
    Operator,
    by_kernel,
    dtype_name,
    is_aligned,
    new_tensors,
    result_dtype,
)
from einops_fast.backends.torch.ops.dropout import dropout_by_torch
from einops_fast.planning.layout import Strides, contiguous_strides, dense_strides
from einops_fast.runtime.tuning import current_mode

if TYPE_CHECKING:
    from einops_fast.backends.triton.rows.contest import Contest

__all__ = ["dropout_add_norm", "norm", "norm_by_kernel", "norm_by_torch"]


def norm(x: Any, dim: int, count: int, weight: Any, bias: Any, eps: float | None, centred: bool) -> Any:
    """Layer norm, or RMS norm if not ``centred``, along ``count`` axes from ``dim`` on; of several, the last ones.

    Weight and bias have these axes. See :func:`einops_fast.ops.layer_norm`.
    """
    tensors = [each for each in (x, weight, bias) if each is not None]
    if not by_kernel(tensors) or (count > 1 and not _flattens(x, count)):
        return norm_by_torch(x, dim, count, weight, bias, _eps(x, eps), centred, result_dtype(x))
    shape = x.shape
    if count > 1:
        x = x.view(*shape[:dim], -1)
        weight, bias = (None if each is None else each.reshape(-1) for each in (weight, bias))
    dtype = dtype_name(result_dtype(x))
    found = norm_by_kernel(x, None, weight, bias, None, dim, centred, _eps(x, eps), 0.0, dtype)[0]
    return found.view(shape) if count > 1 else found


def _eps(x: Any, eps: float | None) -> float:
    """As torch's ``rms_norm`` has it: that of the type that is computed in."""
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == torch.float64 else torch.float32).eps
    return float(eps)


def _flattens(x: Any, count: int) -> bool:
    """Whether the last axes lie like one."""
    axes = range(x.dim() - count, x.dim() - 1)
    return all(x.stride(at) == x.stride(at + 1) * x.shape[at + 1] for at in axes)


def norm_by_torch(
    x: Any, dim: int, count: int, weight: Any, bias: Any, eps: float, centred: bool, dtype: torch.dtype
) -> Any:
    """The same in ``dtype`` by torch's functions, which can be differentiated as often as these."""
    kinds = {each.dtype for each in (x, weight, bias) if each is not None}
    # torch's RMS norm has no bias, and its layer norm no gradients of gradients of one without a weight.
    if centred and weight is None and bias is not None:
        weight = torch.ones_like(bias)
    apart = bias is not None and not centred
    if apart or kinds != {dtype}:
        wide = torch.float64 if torch.float64 in kinds else torch.float32
        x, weight, bias = (None if each is None else each.to(wide) for each in (x, weight, bias))
    moved = x if dim + count == x.dim() else x.movedim(dim, -1)
    shape = moved.shape[-count:]
    found: Any = F.layer_norm(moved, shape, weight, bias, eps) if centred else F.rms_norm(moved, shape, weight, eps)
    if apart:
        found = found + bias
    return (found if moved is x else found.movedim(-1, dim)).to(dtype)


def dropout_add_norm(
    x: Any, residual: Any, dim: int, weight: Any, bias: Any, p: float, eps: float, centred: bool
) -> tuple[Any, Any]:
    """The norm of ``h = dropout(x) + residual``, and ``h``; see :func:`einops_fast.ops.dropout_add_layer_norm`."""
    tensors = [each for each in (x, residual, weight, bias) if each is not None]
    if not by_kernel(tensors):
        summed = dropout_by_torch(x, p)
        if residual is not None:
            # Of a number, torch would take the kind of dtype only.
            summed = summed.to(torch.promote_types(x.dtype, residual.dtype)) + residual
        return norm_by_torch(summed, dim, 1, weight, bias, eps, centred, result_dtype(x)), summed
    if residual is None and not p:
        return norm(x, dim, 1, weight, bias, eps, centred), x
    seed = seed_for(x) if p else None
    dtype = dtype_name(result_dtype(x))
    found = norm_by_kernel(x, residual, weight, bias, seed, dim, centred, _eps(x, eps), p, dtype)
    return found[0], found[1]


def _layouts(
    shape: Any, strides: Any, kind: torch.dtype, residual: torch.dtype | None, drops: bool, dim: int, centred: bool,
    dtype: str,
) -> tuple[Layout, Layout | None, Layout | None, Layout]:  # fmt: skip
    """Of the result, of what is normalised if that isn't the input, of means and of reciprocals of deviations."""
    shape, dense = tuple(shape), dense_strides(shape, strides)
    rows = tuple([1 if at == dim else size for at, size in enumerate(shape)])
    statistics = rows, contiguous_strides(rows), torch.float64 if kind == torch.float64 else torch.float32
    wider = kind if residual is None else torch.promote_types(kind, residual)
    return (
        (shape, dense, getattr(torch, dtype)),
        (shape, dense, wider) if drops or residual is not None else None,
        statistics if centred else None,
        statistics,
    )


@lru_cache(maxsize=4096)
def _forward_plan(
    shape: Strides, strides: Strides, kind: torch.dtype, residual: tuple[Strides, Strides, torch.dtype] | None,
    along: tuple[int | None, int | None], drops: bool, dim: int, centred: bool, eps: float, drop: float, dtype: str,
    device: int, mode: str,
) -> tuple[tuple[Layout | None, ...], Contest]:  # fmt: skip
    """What there is memory to be made for, and what writes it."""
    from einops_fast.backends.triton.rows.norm.plan import NormProblem, norm_contest

    layouts = _layouts(shape, strides, kind, None if residual is None else residual[2], drops, dim, centred, dtype)
    (_, dense, _), summed, *_ = layouts
    problem = NormProblem(
        tuple(shape), dim, centred, eps, drop, dtype_name(kind),
        "" if summed is None else " after dropout" if residual is None else " of a sum",
    )  # fmt: skip
    of_residual = None if residual is None else _expanded(residual[0], residual[1], shape)
    of_arrays = strides, dense, _row_strides(shape, dim), of_residual, None if summed is None else dense
    return layouts, norm_contest(MEMORY, device, MEMORY.limits(device), mode, problem, of_arrays, along)


def _expanded(shape: Strides, strides: Strides, to: Strides) -> Strides:
    """Strides of an array of this shape when it is broadcast."""
    own = zip(shape, strides, to[len(to) - len(shape) :], strict=True)
    return (0,) * (len(to) - len(shape)) + tuple([stride if size == full else 0 for size, stride, full in own])


def _gradient_layouts(
    shape: Any, strides: Any, dim: int, dtypes: Sequence[str]
) -> tuple[Layout | None, Layout | None, Layout | None, Layout | None]:
    """Of the gradients of input, residual, weight and bias; ``None`` for those without a dtype."""
    shape, dense = tuple(shape), dense_strides(shape, strides)
    of_x, of_residual, of_weight, of_bias = [getattr(torch, dtype) if dtype else None for dtype in dtypes]
    columns = shape[dim : dim + 1], (1,)
    return (
        None if of_x is None else (shape, dense, of_x),
        None if of_residual is None else (shape, dense, of_residual),
        None if of_weight is None else (*columns, of_weight),
        None if of_bias is None else (*columns, of_bias),
    )


@lru_cache(maxsize=4096)
def _gradient_plan(
    shape: Strides, strides: Strides, kind: torch.dtype, d_out: tuple[Strides, torch.dtype], d_summed: Strides | None,
    along: int | None, dim: int, centred: bool, eps: float, drop: float, dtypes: tuple[str, ...], aligned: bool,
    device: int, mode: str,
) -> tuple[tuple[Layout | None, ...], Contest]:  # fmt: skip
    """The same of the gradients."""
    from einops_fast.backends.triton.rows.norm.plan import NormProblem, norm_gradient_contest

    of_x, of_residual, of_weight, of_bias = map(bool, dtypes)
    given = " of a sum" if of_residual else " after dropout" if drop else ""
    problem = NormProblem(tuple(shape), dim, centred, eps, drop, dtype_name(kind), given)
    dense = dense_strides(shape, strides)
    of_arrays = strides, d_out[0], _row_strides(shape, dim), d_summed, dense, dense
    items = (kind.itemsize, d_out[1].itemsize) if aligned else ()
    return _gradient_layouts(shape, strides, dim, dtypes), norm_gradient_contest(
        MEMORY, device, MEMORY.limits(device), items, mode, problem, of_arrays, along, of_x or of_residual,
        of_weight + of_bias,
    )  # fmt: skip


def _row_strides(shape: Strides, dim: int) -> Strides:
    """Of the statistics, in C order."""
    found = list(contiguous_strides([1 if at == dim else size for at, size in enumerate(shape)]))
    found[dim] = 0
    return tuple(found)


def _shapes(
    x: Any, residual: Any, weight: Any, bias: Any, seed: Any, dim: int, centred: bool, eps: float, drop: float,
    dtype: str,
) -> tuple[Any, ...]:  # fmt: skip
    other = None if residual is None else residual.dtype
    return new_tensors(x, _layouts(x.shape, x.stride(), x.dtype, other, seed is not None, dim, centred, dtype))


def _compute(*arguments: Any) -> tuple[Any, ...]:
    return _made(4, *arguments)


def _compute_without_statistics(*arguments: Any) -> tuple[Any, ...]:
    """The same where nobody will want gradients, which need the statistics."""
    return _made(2, *arguments)


def _made(
    count: int, x: Any, residual: Any, weight: Any, bias: Any, seed: Any, dim: int, centred: bool, eps: float,
    drop: float, dtype: str,
) -> tuple[Any, ...]:  # fmt: skip
    """The first so many results; ``None`` for the others."""
    layouts, run = _forward_plan(
        x.shape, x.stride(), x.dtype, None if residual is None else (residual.shape, residual.stride(), residual.dtype),
        (None if weight is None else weight.stride(0), None if bias is None else bias.stride(0)),
        seed is not None, dim, centred, eps, drop, dtype, MEMORY.device(x), current_mode(),
    )  # fmt: skip
    found = (*new_tensors(x, layouts[:count]), *(None,) * (len(layouts) - count))
    run(x, residual, weight, bias, seed, *found)
    return found


def _gradient_shapes(h: Any, *others: Any) -> tuple[Any, ...]:
    *_, dim, _, _, _, dtypes = others
    return new_tensors(h, _gradient_layouts(h.shape, h.stride(), dim, dtypes))


def _compute_gradients(
    h: Any, means: Any, rstds: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, dim: int,
    centred: bool, eps: float, drop: float, dtypes: Sequence[str],
) -> tuple[Any, ...]:  # fmt: skip
    layouts, run = _gradient_plan(
        h.shape, h.stride(), h.dtype, (d_out.stride(), d_out.dtype), None if d_summed is None else d_summed.stride(),
        None if weight is None else weight.stride(0), dim, centred, eps, drop, tuple(dtypes), is_aligned(h, d_out),
        MEMORY.device(h), current_mode(),
    )  # fmt: skip
    found = new_tensors(h, layouts)
    run(h, means if centred else None, rstds, weight, seed, d_out, d_summed, *found)
    return found


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
    wanted = [
        dtype_name(kind) if of_x else "",
        dtype_name(kind_of_residual) if of_residual else "",
        dtype_name(weight.dtype) if of_weight else "",
        dtype_name(bias.dtype) if of_bias else "",
    ]
    if d_out is None:
        d_out = torch.zeros_like(h)
    if d_summed is not None and (not (of_x or of_residual) or (ctx.shape is None and seed is None)):
        d_summed = None
    if torch.is_grad_enabled():
        found = _gradients_again(h, weight, bias, seed, d_out, d_summed, wanted, *ctx.numbers)
    else:
        found = norm_gradients(h, means, rstds, weight, bias, seed, d_out, d_summed, *ctx.numbers, wanted)
    dx, d_residual, d_weight, d_bias = [each if dtype else None for each, dtype in zip(found, wanted, strict=True)]
    if d_residual is not None and d_residual.shape != ctx.shape:
        d_residual = d_residual.sum_to_size(ctx.shape)
    return dx, d_residual, d_weight, d_bias, None


def _gradients_again(
    h: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, wanted: list[str], dim: int, centred: bool,
    eps: float, drop: float,
) -> tuple[Any, ...]:  # fmt: skip
    """To be differentiated again."""
    if seed is not None:
        raise NotImplementedError("dropout with a norm by the kernels can't be differentiated twice: set p=0")
    of_h = bool(wanted[0] or wanted[1])
    dh, d_weight, d_bias = gradients_by_torch(
        lambda h, weight, bias: norm_by_torch(h, dim, 1, weight, bias, eps, centred, d_out.dtype),
        (h, weight, bias), (of_h, bool(wanted[2]), bool(wanted[3])), d_out,
    )  # fmt: skip
    if d_summed is not None:
        dh = dh + d_summed
    dx, d_residual = (dh.to(getattr(torch, dtype)) if dtype else None for dtype in wanted[:2])
    return dx, d_residual, d_weight, d_bias


norm_gradients = Operator(
    "norm_gradients(Tensor h, Tensor means, Tensor rstds, Tensor? weight, Tensor? bias, Tensor? seed, Tensor d_out, "
    "Tensor? d_summed, int dim, bool centred, float eps, float drop, str[] dtypes) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _compute_gradients,
    _gradient_shapes,
)

norm_by_kernel = Operator(
    "norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, Tensor? seed, int dim, bool centred, float eps, "
    "float drop, str dtype) -> (Tensor, Tensor, Tensor, Tensor)",
    _compute,
    _shapes,
    _setup,
    _backward,
    seen=2,
    unrecorded=_compute_without_statistics,
)
