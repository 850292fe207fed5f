"""Layer norm and RMS norm of torch's tensors, also after dropout and a sum: by our kernels, or by torch's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch_operator import MEMORY, Operator, aligned_items, by_kernel, dtype_name, result_dtype
from einops_fast.backends.triton.contest import Contest
from einops_fast.backends.triton.norm_plan import NormProblem, norm_contest, norm_gradient_contest
from einops_fast.backends.triton.rows import dense_strides
from einops_fast.layout import contiguous_strides
from einops_fast.tuning import current_mode

__all__ = ["dropout_add_norm", "norm", "norm_by_kernel", "norm_by_torch"]

Strides = tuple[int, ...]


def norm(x: Any, dim: int, count: int, weight: Any, bias: Any, eps: float | None, centred: bool) -> Any:
    """Layer norm, or RMS norm if not ``centred``, along ``count`` axes from ``dim`` on; of several, the last ones.

    Weight and bias have these axes. See :func:`einops_fast.ops.layer_norm`.
    """
    tensors = [each for each in (x, weight, bias) if each is not None]
    if not by_kernel(tensors) or not _flattens(x, count):
        return norm_by_torch(x, dim, count, weight, bias, eps, centred)
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


def norm_by_torch(x: Any, dim: int, count: int, weight: Any, bias: Any, eps: float | None, centred: bool) -> Any:
    """The same by torch's functions, which can be differentiated as often as these."""
    moved = x if dim + count == x.dim() else x.movedim(dim, -1)
    shape = moved.shape[-count:]
    found: Any
    if centred:
        found = F.layer_norm(moved, shape, weight, bias, 1e-5 if eps is None else eps)
    else:
        found = F.rms_norm(moved, shape, weight, eps)
        if bias is not None:
            found = found + bias
    return found if moved is x else found.movedim(-1, dim)


def dropout_add_norm(
    x: Any, residual: Any, dim: int, weight: Any, bias: Any, p: float, eps: float, centred: bool
) -> tuple[Any, Any]:
    """The norm of ``h = dropout(x) + residual``, and ``h``; see :func:`einops_fast.ops.dropout_add_layer_norm`."""
    tensors = [each for each in (x, residual, weight, bias) if each is not None]
    if not by_kernel(tensors):
        summed = F.dropout(x, p) if p else x
        summed = summed if residual is None else summed + residual
        return norm_by_torch(summed, dim, 1, weight, bias, eps, centred), summed
    if residual is None and not p:
        return norm(x, dim, 1, weight, bias, eps, centred), x
    seed = seed_for(x) if p else None
    dtype = dtype_name(result_dtype(x))
    found = norm_by_kernel(x, residual, weight, bias, seed, dim, centred, _eps(x, eps), p, dtype)
    return found[0], found[1]


@lru_cache(maxsize=4096)
def _forward_plan(
    shape: Strides, strides: tuple[Strides | None, ...], along: tuple[int | None, int | None], dim: int, centred: bool,
    eps: float, drop: float, kind: torch.dtype, others: tuple[Any, str], items: tuple[int, ...], device: int, mode: str,
) -> Contest:  # fmt: skip
    given = "" if strides[4] is None else " of a sum" if strides[3] is not None else " after dropout"
    problem = NormProblem(shape, dim, centred, eps, drop, dtype_name(kind), given)
    return norm_contest(MEMORY, device, MEMORY.limits(device), items, mode, problem, strides, along)


@lru_cache(maxsize=4096)
def _gradient_plan(
    shape: Strides, strides: tuple[Strides | None, ...], along: int | None, dim: int, centred: bool, eps: float,
    drop: float, kinds: tuple[Any, ...], dtypes: tuple[str, ...], device: int, mode: str,
) -> Contest:  # fmt: skip
    of_x, of_residual, of_weight, of_bias = map(bool, dtypes)
    given = " of a sum" if of_residual else " after dropout" if drop else ""
    problem = NormProblem(shape, dim, centred, eps, drop, dtype_name(kinds[0]), given)
    return norm_gradient_contest(
        MEMORY, device, MEMORY.shared(device), mode, problem, strides, along, of_x or of_residual, of_weight + of_bias
    )


@lru_cache(maxsize=4096)
def _row_strides(shape: Strides, dim: int) -> Strides:
    """Of the statistics, in C order."""
    found = list(contiguous_strides([1 if at == dim else size for at, size in enumerate(shape)]))
    found[dim] = 0
    return tuple(found)


def _shapes(
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    seed: Any,
    dim: int,
    centred: bool,
    eps: float,
    drop: float,
    dtype: str,
) -> tuple[Any, Any, Any, Any]:
    strides = dense_strides(x.shape, x.stride())
    out = x.new_empty_strided(x.shape, strides, dtype=getattr(torch, dtype))
    kind = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    summed = x.new_empty(0) if residual is None and seed is None else x.new_empty_strided(x.shape, strides, dtype=kind)
    shape = [1 if at == dim else size for at, size in enumerate(x.shape)]
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    return out, summed, x.new_empty(shape if centred else 0, dtype=acc), x.new_empty(shape, dtype=acc)


def _compute(
    x: Any,
    residual: Any,
    weight: Any,
    bias: Any,
    seed: Any,
    dim: int,
    centred: bool,
    eps: float,
    drop: float,
    dtype: str,
) -> tuple[Any, Any, Any, Any]:
    out, summed, means, rstds = _shapes(x, residual, weight, bias, seed, dim, centred, eps, drop, dtype)
    shape = tuple(x.shape)
    kept = summed if residual is not None or seed is not None else None
    run = _forward_plan(
        shape,
        (
            x.stride(), out.stride(), _row_strides(shape, dim),
            None if residual is None else residual.expand(shape).stride(),
            None if kept is None else kept.stride(),
        ),
        (None if weight is None else weight.stride(0), None if bias is None else bias.stride(0)),
        dim, centred, eps, drop, x.dtype, (None if residual is None else residual.dtype, dtype),
        aligned_items(x, out) if kept is None else (), MEMORY.device(x), current_mode(),
    )  # fmt: skip
    run(x, residual, weight, bias, seed, out, kept, means if centred else None, rstds)
    return out, summed, means, rstds


def _gradient_shapes(
    h: Any, means: Any, rstds: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, dim: int,
    centred: bool, eps: float, drop: float, dtypes: list[str],
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    of_x, of_residual, of_weight, of_bias = dtypes
    strides = dense_strides(h.shape, h.stride())
    dx, d_residual = (
        h.new_empty_strided(h.shape, strides, dtype=getattr(torch, dtype)) if dtype else h.new_empty(0)
        for dtype in (of_x, of_residual)
    )
    d_weight, d_bias = (
        h.new_empty(h.shape[dim], dtype=getattr(torch, dtype)) if dtype else h.new_empty(0)
        for dtype in (of_weight, of_bias)
    )
    return dx, d_residual, d_weight, d_bias


def _compute_gradients(
    h: Any, means: Any, rstds: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, dim: int,
    centred: bool, eps: float, drop: float, dtypes: list[str],
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    of_x, of_residual, of_weight, of_bias = dtypes
    strides = dense_strides(h.shape, h.stride())
    dx, d_residual = (
        h.new_empty_strided(h.shape, strides, dtype=getattr(torch, dtype)) if dtype else None
        for dtype in (of_x, of_residual)
    )
    shape = tuple(h.shape)
    run = _gradient_plan(
        shape,
        (
            h.stride(), d_out.stride(), _row_strides(shape, dim), None if d_summed is None else d_summed.stride(),
            strides, strides,
        ),
        None if weight is None else weight.stride(0),
        dim, centred, eps, drop, (h.dtype, d_out.dtype), tuple(dtypes), MEMORY.device(h), current_mode(),
    )  # fmt: skip
    d_weight, d_bias = (
        h.new_empty(shape[dim], dtype=getattr(torch, dtype)) if dtype else None for dtype in (of_weight, of_bias)
    )
    means = means if centred else None
    run(h, means, rstds, weight, seed, d_out, d_summed, dx, d_residual, d_weight, d_bias)
    dx, d_residual, d_weight, d_bias = (
        h.new_empty(0) if each is None else each for each in (dx, d_residual, d_weight, d_bias)
    )
    return dx, d_residual, d_weight, d_bias


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, weight, bias, seed, *ctx.numbers, _ = inputs
    _, summed, means, rstds = output
    alone = residual is None and seed is None
    ctx.dtypes = ["" if each is None else dtype_name(each.dtype) for each in (x, residual, weight, bias)]
    ctx.shape = None if residual is None else residual.shape
    ctx.save_for_backward(x if alone else summed, means, rstds, weight, bias, seed)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Any, d_summed: Any, *others: Any) -> tuple[Any, ...]:
    h, means, rstds, weight, bias, seed = ctx.saved_tensors
    wanted = [dtype if needs else "" for dtype, needs in zip(ctx.dtypes, ctx.needs_input_grad, strict=False)]
    if d_out is None:
        d_out = torch.zeros_like(h)
    if not any(wanted[:2]) or not (ctx.shape is not None or seed is not None):
        d_summed = None
    if torch.is_grad_enabled():
        found = _gradients_by_torch(h, weight, bias, seed, d_out, d_summed, wanted, *ctx.numbers)
    else:
        found = norm_gradients(h, means, rstds, weight, bias, seed, d_out, d_summed, *ctx.numbers, wanted)
    dx, d_residual, d_weight, d_bias = (each if dtype else None for each, dtype in zip(found, wanted, strict=True))
    if d_residual is not None and d_residual.shape != ctx.shape:
        d_residual = d_residual.sum_to_size(ctx.shape)
    return (dx, d_residual, d_weight, d_bias, *(None,) * 6)


def _gradients_by_torch(
    h: Any, weight: Any, bias: Any, seed: Any, d_out: Any, d_summed: Any, wanted: list[str], dim: int, centred: bool,
    eps: float, drop: float,
) -> tuple[Any, ...]:  # fmt: skip
    """To be differentiated again."""
    if seed is not None:
        raise NotImplementedError("dropout with a norm by the kernels can't be differentiated twice: set p=0")
    # Of a leaf in place of h, autograd wouldn't know where it comes from.
    h = h if h.requires_grad else h.detach().requires_grad_()
    found = norm_by_torch(h, dim, 1, weight, bias, eps, centred)
    of = [each for each in (h, weight, bias) if each is not None and each.requires_grad]
    gradients = iter(torch.autograd.grad(found, of, d_out.to(found.dtype), create_graph=True, materialize_grads=True))
    dh, d_weight, d_bias = (
        next(gradients) if each is not None and each.requires_grad else None for each in (h, weight, bias)
    )
    if d_summed is not None and dh is not None:
        dh = dh + d_summed
    dx, d_residual = (dh.to(getattr(torch, dtype)) if dtype and dh is not None else None for dtype in wanted[:2])
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
)
