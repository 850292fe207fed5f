"""Attention as operators of torch, for code that torch.compile compiles: one call each, with known results.

Lengths come from the tensors, so that they may be symbolic; only the longest sequence's are numbers of their own.
Importing this module registers the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from einops_fast.attention.prediction import attention_flops, gradient_flops
from einops_fast.attention.reference import Math
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.call import DIFFERENTIABLE
from einops_fast.backends.torch.attention.layouts import extras_of, result_layout
from einops_fast.backends.torch.attention.runs import AttentionCall, call_of
from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.operator import Operator
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.dtypes import dtype_name
from einops_fast.planning.layout import dense_strides

_ARRAYS = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? alibi_slopes, Tensor? sinks, "
    "Tensor? q_segments, Tensor? kv_segments, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, Tensor? cache_seqlens, "
    "Tensor? block_table, Tensor? seed"
)
_CONSTANTS = (
    "float scale, bool causal, str alignment, int? left, int? right, float softcap, float dropout_p, int[] order, "
    "bool deterministic, SymInt longest_q, SymInt longest_kv"
)
_ARRAY_COUNT, _ORDER = 14, 7  # Where the order, which is a list, is among the numbers


def constants(spec: AttentionSpec) -> tuple[Any, ...]:
    """Return what of a spec the shapes of its tensors don't say."""
    left, right = spec.window
    return (
        spec.scale, spec.causal, spec.alignment, left, right, spec.softcap, spec.dropout_p, list(spec.order),
        spec.deterministic, spec.q_len, spec.kv_len,
    )  # fmt: skip


def spec_of(arrays: Sequence[Any], numbers: Sequence[Any]) -> AttentionSpec:
    """Return the spec of arrays in canonical order and :func:`constants`; sizes may be symbolic."""
    q, k, v, bias, mask, slopes, sinks, q_segments, kv_segments, q_starts, _, cached, table, _ = arrays
    scale, causal, alignment, left, right, softcap, dropout_p, order, deterministic, longest_q, longest_kv = numbers
    count = q.dim() - 2
    sizes = [each.shape[:count] for each in (q, bias, mask, slopes, sinks, q_segments, kv_segments) if each is not None]
    if table is None:
        sizes += [k.shape[:count], v.shape[:count]]
    else:
        sizes += [(1, *k.shape[1:count]), (1, *v.shape[1:count])]
    broadcast: Any = torch.broadcast_shapes
    batch = list(broadcast(*sizes))
    if q_starts is not None:
        batch[0] = q_starts.shape[0] - 1
    return AttentionSpec(
        tuple(batch),
        tuple(q.shape[:count]),
        tuple(k.shape[:count]),
        tuple(v.shape[:count]),
        longest_q,
        longest_kv,
        q.shape[-1],
        v.shape[-1],
        dtype_name(q.dtype),
        scale,
        causal,
        alignment,
        (left, right),
        softcap,
        dropout_p,
        None if bias is None else tuple(bias.shape),
        None if mask is None else tuple(mask.shape),
        alibi=slopes is not None,
        sinks=sinks is not None,
        segments=q_segments is not None,
        varlen=q_starts is not None,
        cache=cached is not None,
        page_size=0 if table is None else k.shape[-2],
        lse=True,
        deterministic=deterministic,
        order=tuple(order),
    )


def _call(arrays: tuple[Any, ...], numbers: tuple[Any, ...]) -> AttentionCall:
    """Return the call of such arrays, from the numbers alone where there was one like it."""
    return call_of(_question(numbers), arrays, lambda: spec_of(arrays, numbers))


def _question(numbers: Sequence[Any]) -> tuple[Any, ...]:
    """Return the numbers of a call as something that can be hashed."""
    return (*numbers[:_ORDER], *numbers[_ORDER], *numbers[_ORDER + 1 :])


def _compute(*arguments: Any) -> tuple[Any, Any]:
    arrays, numbers = arguments[:_ARRAY_COUNT], arguments[_ARRAY_COUNT:]
    q, k, v, *_ = arrays
    return _call(arrays, numbers).forward(q, k, v, extras_of(arrays))


def _shapes(*arguments: Any) -> tuple[Any, Any]:
    arrays, numbers = arguments[:_ARRAY_COUNT], arguments[_ARRAY_COUNT:]
    q = arrays[0]
    spec = spec_of(arrays, numbers)
    shape, strides, _ = result_layout(spec, q.shape[-2])
    lse = q.new_empty(shape[:-1], dtype=getattr(torch, accumulator(spec.dtype)))
    return q.new_empty_strided(shape, strides), lse


def _gradients(out: Any, lse: Any, d_out: Any, d_lse: Any, *arguments: Any) -> Any:
    arrays, wanted, numbers = arguments[:_ARRAY_COUNT], arguments[_ARRAY_COUNT], arguments[_ARRAY_COUNT + 1 :]
    q, k, v, *_ = arrays
    return _call(arrays, numbers).backward(q, k, v, extras_of(arrays), out, lse, d_out, d_lse, tuple(wanted))


def _gradient_shapes(out: Any, lse: Any, d_out: Any, d_lse: Any, *arguments: Any) -> Any:
    differentiable, wanted = [arguments[at] for at in DIFFERENTIABLE], arguments[_ARRAY_COUNT]
    return tuple(
        [
            each.new_empty_strided(each.shape, dense_strides(each.shape, each.stride())) if is_wanted else None
            for each, is_wanted in zip(differentiable, wanted, strict=True)
        ]
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    ctx.numbers = inputs[_ARRAY_COUNT:]
    ctx.save_for_backward(*inputs[:_ARRAY_COUNT], *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Any, d_lse: Any) -> Sequence[Any]:
    *arrays, out, lse = ctx.saved_tensors
    wanted = [ctx.needs_input_grad[at] for at in DIFFERENTIABLE]
    by_array: list[Any] = [None] * _ARRAY_COUNT
    if d_out is None and d_lse is None:
        return by_array
    found = gradients(arrays, ctx.numbers, wanted, (out, lse), (d_out, d_lse))
    for at, is_wanted, gradient in zip(DIFFERENTIABLE, wanted, found, strict=True):
        by_array[at] = gradient if is_wanted else None
    return by_array


def gradients(
    arrays: Sequence[Any], numbers: Sequence[Any], wanted: Sequence[bool], results: Sequence[Any], back: Sequence[Any]
) -> Sequence[Any]:
    """Return the gradients of q, k, v, the bias and the sinks: by the reference where they may be differentiated."""
    if not torch.is_grad_enabled():
        found: Sequence[Any] = attention_backward(*results, *back, *arrays, [*wanted], *numbers)
        return found
    spec = replace(spec_of(arrays, numbers), gradients=True)
    if spec.dropout_p:
        raise NotImplementedError(
            "attention by the Triton kernels can't be differentiated twice: use attention_backend('math')"
        )
    of_all = [at in DIFFERENTIABLE and wanted[DIFFERENTIABLE.index(at)] for at in range(_ARRAY_COUNT)]
    again = gradients_by_torch(lambda *arrays: Math().run(spec, AttentionInputs(*arrays)), arrays, of_all, back)
    return [again[at] for at in DIFFERENTIABLE]


#: The result and the logarithms of the arrays of :class:`AttentionInputs`, in its order, and of what
#: :func:`constants` gives.
attention_forward = Operator(
    f"attention_forward({_ARRAYS}, {_CONSTANTS}) -> (Tensor, Tensor)",
    _compute,
    _shapes,
    _setup,
    _backward,
    flops=lambda *all_: attention_flops(spec_of(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT:])),
).traced

#: Gradients of q, k, v, the bias and the sinks; empty tensors for those that aren't wanted.
attention_backward = Operator(
    f"attention_backward(Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, {_ARRAYS}, bool[] wanted, {_CONSTANTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _gradients,
    _gradient_shapes,
    flops=lambda out, lse, d_out, d_lse, *all_: gradient_flops(spec_of(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT + 1 :])),
).traced
