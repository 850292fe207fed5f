"""FlashAttention-4 as operators of torch: one call each, with known results, so that torch.compile can trace them.

Its functions by themselves import and compile while they are called, which torch.compile refuses to trace. Of packed
sequences, they leave what belongs to no sequence as they find it: here it is zeros, in results and gradients. Importing
this module registers the operators; the library is imported by the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import torch

from einops_fast.attention.prediction import attention_flops, gradient_flops
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.operator import Operator
from einops_fast.dtypes import dtype_name

_ARRAYS = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, "
    "Tensor? cache_seqlens, Tensor? block_table"
)
_CONSTANTS = "float scale, bool causal, int? left, int? right, float softcap, SymInt? longest_q, SymInt? longest_kv"
_ARRAY_COUNT = 8


def _shapes(q: Any, v: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    *batch, length, heads, _ = q.shape
    return (*batch, length, heads, v.shape[-1]), (*batch, heads, length)


@contextmanager
def _library(q: Any) -> Iterator[Any]:
    """Give the library, which asks the current device what it is, and make a RuntimeError of what it refuses with."""
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        try:
            yield import_module("flash_attn.cute.interface")
        except (MemoryError, RuntimeError):
            raise
        except Exception as error:
            raise RuntimeError(f"FlashAttention-4 refuses this call: {error}") from error


_OPTIONS = (
    "softmax_scale", "causal", "window_size_left", "window_size_right", "softcap", "max_seqlen_q", "max_seqlen_k"
)  # fmt: skip
"""What the library calls the constants."""


def _compute(
    q: Any, k: Any, v: Any, sinks: Any, starts: Any, kv_starts: Any, cached: Any, table: Any, *constants: Any
) -> tuple[Any, Any]:
    memory = {}
    if starts is not None:
        shape, lse_shape = _shapes(q, v)
        memory["out"] = q.new_zeros(shape)
        memory["lse"] = q.new_full(lse_shape, float("-inf"), dtype=torch.float32)
    with _library(q) as library:
        out, lse, *_ = library._flash_attn_fwd(
            q.detach(), k.detach(), v.detach(), cu_seqlens_q=starts, cu_seqlens_k=kv_starts, seqused_k=cached,
            page_table=table, learnable_sink=None if sinks is None else sinks.detach(), return_lse=True, **memory,
            **dict(zip(_OPTIONS, constants, strict=True)),
        )  # fmt: skip
    return out, lse


def _fake(q: Any, k: Any, v: Any, *others: Any) -> tuple[Any, Any]:
    shape, lse_shape = _shapes(q, v)
    return q.new_empty(shape), q.new_empty(lse_shape, dtype=torch.float32)


def _gradients(
    out: Any, lse: Any, d_out: Any, d_lse: Any, q: Any, k: Any, v: Any, sinks: Any, starts: Any, kv_starts: Any,
    cached: Any, table: Any, *constants: Any,
) -> tuple[Any, ...]:  # fmt: skip
    assert cached is None
    assert table is None
    memory = {}
    if starts is not None:
        memory = {f"d{name}": torch.zeros_like(each) for name, each in (("q", q), ("k", k), ("v", v))}
    with _library(q) as library:
        d_q, d_k, d_v, *rest = library._flash_attn_bwd(
            q, k, v, out, torch.zeros_like(out) if d_out is None else d_out, lse, cu_seqlens_q=starts,
            cu_seqlens_k=kv_starts, dlse=d_lse, learnable_sink=sinks, **memory,
            **dict(zip(_OPTIONS, constants, strict=True)),
        )  # fmt: skip
    return d_q, d_k, d_v, rest[0] if rest else None


def _gradient_shapes(
    out: Any, lse: Any, d_out: Any, d_lse: Any, q: Any, k: Any, v: Any, sinks: Any, *others: Any
) -> tuple[Any, ...]:
    return tuple([None if each is None else torch.empty_like(each) for each in (q, k, v, sinks)])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    ctx.constants = inputs[_ARRAY_COUNT:]
    ctx.save_for_backward(*inputs[:_ARRAY_COUNT], *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, d_out: Any, d_lse: Any) -> tuple[Any, ...]:
    *arrays, out, lse = ctx.saved_tensors
    if d_out is None and d_lse is None:
        return (None,) * _ARRAY_COUNT
    d_q, d_k, d_v, d_sinks = fa4_backward(out, lse, d_out, d_lse, *arrays, *ctx.constants)
    return (d_q, d_k, d_v, None if arrays[3] is None else d_sinks, *(None,) * (_ARRAY_COUNT - 4))


def _flops(arrays: tuple[Any, ...], constants: tuple[Any, ...], count: Callable[[AttentionSpec], int]) -> int:
    q, k, v, _, starts, _, _, table = arrays
    scale, causal, left, right, _, longest_q, longest_kv = constants
    if starts is None:
        longest_q, longest_kv = q.shape[1], k.shape[1] * (1 if table is None else table.shape[1])
    batch = q.shape[0] if starts is None else starts.shape[0] - 1, q.shape[-2]
    return count(
        AttentionSpec(
            batch, batch, batch, batch, longest_q, longest_kv, q.shape[-1], v.shape[-1], dtype_name(q.dtype), scale,
            causal, "bottom_right", (left, right),
        )
    )  # fmt: skip


def _no_more(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError("FlashAttention-4 has no second derivatives: use attention_backend('math') for them")


#: The result, like q, and the logarithms, per head and position, of q, k and v with axes ``(batch, positions, heads,
#: features)``, or without the first one of packed sequences; of k and v ``(pages, positions, heads, features)`` with a
#: block table.
fa4_forward = Operator(
    f"fa4_forward({_ARRAYS}, {_CONSTANTS}) -> (Tensor, Tensor)",
    _compute,
    _fake,
    _setup,
    _backward,
    flops=lambda *all_: _flops(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT:], attention_flops),
).traced

#: Gradients of q, k, v and the sinks; an empty one where there are no sinks.
fa4_backward = Operator(
    f"fa4_backward(Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, {_ARRAYS}, {_CONSTANTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _gradients,
    _gradient_shapes,
    lambda ctx, inputs, output: None,
    _no_more,
    flops=lambda out, lse, d_out, d_lse, *all_: _flops(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT:], gradient_flops),
).traced
