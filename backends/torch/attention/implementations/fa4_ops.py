"""FlashAttention-4 as operators of torch: one call each, with known results, so that torch.compile can trace them.

Its functions by themselves import and compile while they are called, which torch.compile refuses to trace. Of packed
sequences, they leave what belongs to no sequence as they find it: here it is zeros, in results and gradients. Importing
this module registers the operators; the library is imported by the first call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import torch

from einops_fast.attention.choice import is_refusal, refusals, remember_refusal, warn_of_refusals
from einops_fast.attention.prediction import attention_flops
from einops_fast.backends.torch.operator import Operator
from einops_fast.backends.triton_support import why_unusable

__all__ = ["fa4_forward"]

_ARRAYS = (
    "Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor? cu_seqlens_q, Tensor? cu_seqlens_kv, "
    "Tensor? cache_seqlens, Tensor? block_table"
)
_CONSTANTS = "float scale, bool causal, int? left, int? right, float softcap, SymInt? longest_q, SymInt? longest_kv"
_ARRAY_COUNT = 8

_ORDER = 0, 3, 1, 2, 4
"""Order of axes of the canonical result, whose heads are two axes: batch, positions, heads, features."""


def _unless_refused(
    name: str, arrays: tuple[Any, ...], constants: tuple[Any, ...], run: Callable[[], Any], instead: Callable[[], Any]
) -> Any:
    """Call ``run``, or ``instead``, by our own kernels, where the library refuses such calls.

    What is compiled has chosen the operator already, and can't choose again.
    """
    if refusals and _kind(name, arrays, constants) in refusals:
        return instead()
    try:
        with _on_device_of(arrays[0]):
            return run()
    except Exception as error:
        if not is_refusal(error, Exception):
            raise
        if why_unusable() is not None:
            # Not every error of the library's is one, by which callers know that another library may do the call.
            raise RuntimeError(f"FlashAttention-4 refuses this call: {error}") from error
        kind = _kind(name, arrays, constants)
        remember_refusal(kind, "fa4", error)
        warn_of_refusals(kind, "triton")
    return instead()


def _kind(name: str, arrays: tuple[Any, ...], constants: tuple[Any, ...]) -> Hashable:
    tensors = [None if each is None else (each.shape, each.stride(), each.dtype, each.device) for each in arrays]
    return name, *tensors, *constants


class _Canonical:
    """An operator's call as our kernels see it: heads that share keys, and heads that share none, are two axes."""

    def __init__(self, arrays: tuple[Any, ...], constants: tuple[Any, ...]) -> None:
        q, k, v, sinks, starts, kv_starts, cached, table = arrays
        scale, causal, left, right, softcap, longest_q, longest_kv = constants
        self._packed = starts is not None
        self._share = q.shape[-2] // k.shape[-2]
        if not self._packed:
            longest_q, longest_kv = q.shape[1], k.shape[1] * (1 if table is None else table.shape[1])
        found = [self.of(q), self.of(k, 1), self.of(v, 1)]
        own_sinks = None if sinks is None else sinks.detach().reshape(1, *found[0].shape[1:3])
        self.arrays = *found, None, None, None, own_sinks, None, None, starts, kv_starts, cached, table, None
        self.numbers = scale, causal, "bottom_right", left, right, softcap, 0.0, _ORDER, False, longest_q, longest_kv

    def of(self, array: Any, share: int | None = None) -> Any:
        """Return an array with axes (batch, positions, heads, features), or without batch where packed, so."""
        array = array.detach()
        if self._packed:
            array = array[None]
        return array.unflatten(2, (-1, self._share if share is None else share)).permute(0, 2, 3, 1, 4)

    def of_rows(self, array: Any) -> Any:
        """Return an array with axes (batch, heads, positions), likewise."""
        return (array[None] if self._packed else array).unflatten(1, (-1, self._share))

    def back(self, array: Any) -> Any:
        array = array.permute(0, 3, 1, 2, 4).flatten(2, 3)
        return array[0] if self._packed else array

    def back_rows(self, array: Any) -> Any:
        array = array.flatten(1, 2)
        return array[0] if self._packed else array


def _result_instead(arrays: tuple[Any, ...], constants: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the result and its logarithms as the forward operator does."""
    # Imported here because it registers operators of kernels that a call needs only where the library refuses.
    from einops_fast.backends.torch.attention.ops import attention_forward

    call = _Canonical(arrays, constants)
    out, lse = attention_forward(*call.arrays, *call.numbers)
    return call.back(out).contiguous(), call.back_rows(lse).contiguous()


def _gradients_instead(
    arrays: tuple[Any, ...], constants: tuple[Any, ...], results: tuple[Any, Any], cotangents: tuple[Any, Any]
) -> tuple[Any, ...]:
    """Return the gradients of q, k, v and the sinks as the backward operator does."""
    from einops_fast.backends.torch.attention.ops import attention_backward

    call = _Canonical(arrays, constants)
    (out, lse), (d_out, d_lse), sinks = results, cotangents, arrays[3]
    seeds = None if d_out is None else call.of(d_out), None if d_lse is None else call.of_rows(d_lse)
    wanted = [True, True, True, False, sinks is not None]
    *found, _, d_sinks = attention_backward(
        call.of(out), call.of_rows(lse).contiguous(), *seeds, *call.arrays, wanted, *call.numbers
    )
    # Copied, to lie as the operator's results are said to.
    copies = [torch.empty_like(like).copy_(call.back(each)) for like, each in zip(arrays, found, strict=False)]
    return (*copies, None if sinks is None else d_sinks.reshape(sinks.shape).to(sinks.dtype))


def _shapes(q: Any, v: Any, packed: bool) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the shapes of the result and of the logarithms."""
    *batch, length, heads, _ = q.shape
    assert packed is not bool(batch)
    return (*batch, length, heads, v.shape[-1]), (*batch, heads, length)


def _library() -> Any:
    return import_module("flash_attn.cute.interface")


def _on_device_of(q: Any) -> AbstractContextManager[Any]:
    # The library asks the current device what it is.
    return torch.cuda.device(q.device) if q.is_cuda else nullcontext()


_OPTIONS = (
    "softmax_scale", "causal", "window_size_left", "window_size_right", "softcap", "max_seqlen_q", "max_seqlen_k"
)  # fmt: skip
"""What the library calls the constants."""


def _compute(
    q: Any, k: Any, v: Any, sinks: Any, starts: Any, kv_starts: Any, cached: Any, table: Any, *constants: Any
) -> tuple[Any, Any]:
    shape, lse_shape = _shapes(q, v, starts is not None)

    def run() -> tuple[Any, Any]:
        memory = {}
        if starts is not None:
            memory["out"] = q.new_zeros(shape)
            memory["lse"] = q.new_full(lse_shape, float("-inf"), dtype=torch.float32)
        out, lse, *_ = _library()._flash_attn_fwd(
            q.detach(), k.detach(), v.detach(), cu_seqlens_q=starts, cu_seqlens_k=kv_starts, seqused_k=cached,
            page_table=table, learnable_sink=None if sinks is None else sinks.detach(), return_lse=True, **memory,
            **dict(zip(_OPTIONS, constants, strict=True)),
        )  # fmt: skip
        return out, lse

    arrays = q, k, v, sinks, starts, kv_starts, cached, table
    found: tuple[Any, Any] = _unless_refused(
        "forward", arrays, constants, run, lambda: _result_instead(arrays, constants)
    )
    return found


def _fake(q: Any, k: Any, v: Any, sinks: Any, starts: Any, *others: Any) -> tuple[Any, Any]:
    shape, lse_shape = _shapes(q, v, starts is not None)
    return q.new_empty(shape), q.new_empty(lse_shape, dtype=torch.float32)


def _gradients(
    out: Any, lse: Any, d_out: Any, d_lse: Any, q: Any, k: Any, v: Any, sinks: Any, starts: Any, kv_starts: Any,
    cached: Any, table: Any, *constants: Any,
) -> tuple[Any, ...]:  # fmt: skip
    assert cached is None
    assert table is None

    def run() -> tuple[Any, ...]:
        memory = {}
        if starts is not None:
            memory = {f"d{name}": torch.zeros_like(each) for name, each in (("q", q), ("k", k), ("v", v))}
        d_q, d_k, d_v, *rest = _library()._flash_attn_bwd(
            q, k, v, out, torch.zeros_like(out) if d_out is None else d_out, lse, cu_seqlens_q=starts,
            cu_seqlens_k=kv_starts, dlse=d_lse, learnable_sink=sinks, **memory,
            **dict(zip(_OPTIONS, constants, strict=True)),
        )  # fmt: skip
        return d_q, d_k, d_v, rest[0] if rest else None

    arrays, results, cotangents = (q, k, v, sinks, starts, kv_starts, cached, table), (out, lse), (d_out, d_lse)
    found: tuple[Any, ...] = _unless_refused(
        "backward", arrays, constants, run,
        lambda: _gradients_instead(arrays, constants, results, cotangents),
    )  # fmt: skip
    return found


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


def _flops(arrays: tuple[Any, ...], constants: tuple[Any, ...], forward: bool) -> int:
    from einops_fast.backends.torch.attention.ops import gradient_flops, spec_of

    call = _Canonical(arrays, constants)
    spec = spec_of(call.arrays, call.numbers)
    return attention_flops(spec) if forward else gradient_flops(spec)


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
    flops=lambda *all_: _flops(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT:], True),
).traced

#: Gradients of q, k, v and the sinks; an empty one where there are no sinks.
fa4_backward = Operator(
    f"fa4_backward(Tensor out, Tensor lse, Tensor? d_out, Tensor? d_lse, {_ARRAYS}, {_CONSTANTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _gradients,
    _gradient_shapes,
    lambda ctx, inputs, output: None,
    _no_more,
    flops=lambda out, lse, d_out, d_lse, *all_: _flops(all_[:_ARRAY_COUNT], all_[_ARRAY_COUNT:], False),
).traced
