"""Layer norm and RMS norm of torch's tensors, also after dropout and a sum: by our kernels, or by torch's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for
from einops_fast.backends.torch_operator import (
    MEMORY,
    Operator,
    aligned_items,
    by_kernel,
    dtype_name,
    launch,
    result_dtype,
)
from einops_fast.backends.triton.attention.launch import KernelCall
from einops_fast.backends.triton.column_sums import column_sums
from einops_fast.backends.triton.norm import NormFeatures, NormStrides, norm_kernel
from einops_fast.backends.triton.norm_gradient import norm_columns_kernel, norm_gradient_kernel, norm_row_sums_kernel
from einops_fast.backends.triton.ring_norm import norm_through_ring
from einops_fast.backends.triton.rows import (
    column_tiling,
    dense_strides,
    dropping,
    fitting,
    gradient_tiling,
    in_fours,
    row_tiling,
    rows_of,
    sums_tiling,
)
from einops_fast.layout import contiguous_strides

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


class _Plan:
    """The forward kernels for one kind of call."""

    def __init__(
        self, shape: Strides, strides: tuple[Strides, ...], along: tuple[int, int], dim: int, centred: bool, eps: float,
        drop: float, dtype: torch.dtype, items: tuple[int, ...], device: int,
    ) -> None:  # fmt: skip
        rows = rows_of(shape, dim, (*strides, contiguous_strides(shape)))
        double = dtype == torch.float64
        features = NormFeatures(
            len(rows.sizes), eps, centred, drop > 0, in_fours(rows, rows.strides[-1]), rows.wide, double,
            drop if double else 0.0,
        )  # fmt: skip
        of_x, out, row, residual, summed, place = rows.strides
        places = NormStrides(of_x, out, row, residual, summed, place, of_x, of_x, (along[0],), (along[1],))
        ring = None if double else norm_through_ring(rows, items, along, features, *MEMORY.limits(device))
        if ring is not None:
            self.partial, self.steps = 0, [ring]
            return
        tiling = row_tiling(rows, dtype.itemsize)
        self.partial = rows.count * tiling.parts if tiling.parts > 1 else 0
        tail = rows.sizes, places, rows.count, rows.columns, tiling.part(rows.columns), dropping(drop)
        constants = {
            "f": features, "together": tiling.rows, "block": tiling.block, "whole": tiling.whole, "parts": tiling.parts
        }  # fmt: skip
        grid = -(-rows.count // tiling.rows), tiling.parts
        self.steps = [
            KernelCall(norm_kernel, grid, tail, {**constants, "step": step, "stages": tiling.stages}, tiling.warps, 1)
            for step in ((1, 2) if tiling.parts > 1 else (0,))
        ]


class _GradientPlan:
    """The backward kernels for one kind of call.

    Attributes:
        whole: the one that has whole rows, or ``None``.
        sums: the one that makes the sums of parts of rows, or ``None``; ``partial``: how many these are.
        columns: the one that has tiles of columns, or ``None``.
        count: how many sums of each column there are in the end.
        add: the one that adds these.
    """

    def __init__(
        self, shape: Strides, strides: tuple[Strides, ...], along: int, dim: int, centred: bool, eps: float,
        drop: float, dtype: torch.dtype, inputs: bool, parameters: int, shared: int,
    ) -> None:  # fmt: skip
        rows = rows_of(shape, dim, (*strides, contiguous_strides(shape)))
        h, d_out, row, d_summed, dx, d_residual, place = rows.strides
        double = dtype == torch.float64
        features = NormFeatures(
            len(rows.sizes), eps, centred, drop > 0, in_fours(rows, rows.strides[-1]), rows.wide, double,
            drop if double else 0.0,
        )  # fmt: skip
        places = NormStrides(h, d_out, row, h, dx, place, d_summed, d_residual, (along,), (0,))
        start = rows.sizes, places, rows.count, rows.columns
        self.whole = self.sums = self.columns = None
        self.partial = 0
        tiling = gradient_tiling(rows, dtype.itemsize, parameters) if inputs else None
        if tiling is not None:
            tiling = fitting(tiling, 3, dtype.itemsize, shared)
            tiles = -(-rows.count // tiling.rows)
            self.count = min(tiles, tiling.programs)
            self.whole = KernelCall(
                norm_gradient_kernel, (self.count, 1), (*start, dropping(drop), tiles),
                {"f": features, "together": tiling.rows, "block": tiling.block, "stages": tiling.stages},
                tiling.warps, 1,
            )  # fmt: skip
        else:
            tiling = fitting(sums_tiling(rows), 3, dtype.itemsize, shared)
            of_columns = fitting(column_tiling(rows), 3, dtype.itemsize, shared)
            if inputs:
                self.partial = rows.count * tiling.parts
                self.sums = KernelCall(
                    norm_row_sums_kernel, (-(-rows.count // tiling.rows), tiling.parts),
                    (*start, tiling.part(rows.columns)),
                    {"f": features, "together": tiling.rows, "block": tiling.block, "stages": tiling.stages},
                    tiling.warps, 1,
                )  # fmt: skip
            self.count = of_columns.parts
            self.columns = KernelCall(
                norm_columns_kernel, (-(-rows.columns // of_columns.block), of_columns.parts),
                (*start, dropping(drop), -(-rows.count // of_columns.rows)),
                {
                    "f": features, "together": of_columns.rows, "block": of_columns.block, "parts": tiling.parts,
                    "stages": of_columns.stages,
                },
                of_columns.warps, 1,
            )  # fmt: skip
        self.add = column_sums(self.count, rows.columns)


_forward_plan = lru_cache(maxsize=4096)(_Plan)
_gradient_plan = lru_cache(maxsize=4096)(_GradientPlan)


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
    nowhere = (0,) * len(shape)
    kept = summed if residual is not None or seed is not None else None
    plan = _forward_plan(
        shape,
        (
            x.stride(), out.stride(), _row_strides(shape, dim),
            nowhere if residual is None else residual.expand(shape).stride(),
            nowhere if kept is None else kept.stride(),
        ),
        (0 if weight is None else weight.stride(0), 0 if bias is None else bias.stride(0)),
        dim, centred, eps, drop, x.dtype, aligned_items(x, out) if kept is None else (), MEMORY.device(x),
    )  # fmt: skip
    parts = [MEMORY.workspace(x, plan.partial, dtype_name(rstds.dtype)) if plan.partial else None for _ in range(2)]
    launch(plan.steps, x, residual, weight, bias, seed, out, kept, means if centred else None, rstds, *parts)
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
    nowhere = (0,) * len(shape)
    plan = _gradient_plan(
        shape,
        (
            h.stride(), d_out.stride(), _row_strides(shape, dim), nowhere if d_summed is None else d_summed.stride(),
            strides, strides,
        ),
        0 if weight is None else weight.stride(0),
        dim, centred, eps, drop, h.dtype, bool(of_x or of_residual), bool(of_weight) + bool(of_bias),
        MEMORY.shared(MEMORY.device(h)),
    )  # fmt: skip
    kind = dtype_name(rstds.dtype)
    to_weight, to_bias = (
        MEMORY.workspace(h, plan.count * shape[dim], kind) if dtype else None for dtype in (of_weight, of_bias)
    )
    means = means if centred else None
    sums: tuple[Any, Any] = None, None
    if plan.whole is not None:
        launch([plan.whole], h, means, rstds, weight, seed, d_out, d_summed, dx, d_residual, to_weight, to_bias)
    if plan.sums is not None:
        sums = MEMORY.workspace(h, plan.partial, kind), MEMORY.workspace(h, plan.partial, kind)
        launch([plan.sums], h, means, rstds, weight, d_out, *sums)
    if plan.columns is not None:
        launch(
            [plan.columns], h, means, rstds, weight, seed, d_out, d_summed, dx, d_residual, to_weight, to_bias, *sums
        )
    d_weight, d_bias = (
        h.new_empty(shape[dim], dtype=getattr(torch, dtype)) if dtype else None for dtype in (of_weight, of_bias)
    )
    if of_weight or of_bias:
        launch([plan.add], *((to_weight, to_bias, d_weight, d_bias) if of_weight else (to_bias, None, d_bias, None)))
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
