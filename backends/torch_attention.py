"""Attention by our Triton kernels on torch's tensors, with gradients of q, k, v, the bias and the sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch_attention_runs import Arrays, backward, forward
from einops_fast.backends.torch_function import recorded

__all__ = ["differentiated_twice", "second_order", "triton_attention", "unsupported"]

_DTYPES = ("float16", "bfloat16", "float32", "float64")

_MOST_FEATURES = 256

_DIFFERENTIABLE = (0, 1, 2, 3, 6)
"""Where q, k, v, the bias and the sinks are among the arrays."""

second_order: Callable[[AttentionSpec, AttentionInputs], tuple[Any, Any]] | None = None
"""An attention that torch can differentiate twice, for gradients of gradients; set it to have these."""


def unsupported(spec: AttentionSpec) -> str | None:
    """Why the kernels can't compute this, in one sentence; ``None`` if they can."""
    if spec.dtype not in _DTYPES:
        return f"the kernels compute on {', '.join(_DTYPES)}, not {spec.dtype}"
    if spec.transforms:
        return "the kernels have no forward mode and no transforms of functions"
    for name, features in (("head_dim", spec.head_dim), ("v_head_dim", spec.v_head_dim)):
        if not 1 <= features <= _MOST_FEATURES:
            return f"the kernels take 1 to {_MOST_FEATURES} features, {name} is {features}"
    if spec.page_size and spec.gradients:
        return "the kernels have no gradients of a cache in pages"
    return None


def triton_attention(spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
    """``softmax(scale * q @ k.T + …) @ v`` for tensors in canonical order with any strides; nothing is copied.

    Differentiable in q, k, v, the bias and the sinks, through the result and through the logarithms.

    Args:
        spec: what to compute; see :func:`unsupported`.
        inputs: the tensors.

    Returns:
        The result ``(*batch, q_len, v_head_dim)``, contiguous in ``spec.order`` of its axes, and where ``spec.lse`` the
        logarithms of the rows' sums ``(*batch, q_len)``, float32 or, of float64, float64.

    Raises:
        NotImplementedError: from backward, where gradients are differentiated again.
    """
    arrays = _arrays(inputs)
    if torch.compiler.is_compiling() or not _in_memory(arrays):
        # Imported here because it registers operators that are made of these functions.
        from einops_fast.backends.torch_attention_ops import attention_forward, constants

        out, lse = attention_forward(*arrays, *constants(spec))
        return out, lse if spec.lse else None
    differentiable = (*arrays[:4], inputs.sinks)
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in differentiable):
        out, lse = _recorded((spec, *arrays[4:6], *arrays[7:]), *differentiable)
    else:
        out, lse = forward(spec, arrays)
    return out, lse if spec.lse else None


def _in_memory(arrays: Arrays) -> bool:
    """Whether all are what is in memory: no tensors of another kind, no views that stand for the negative of it."""
    for each in arrays:
        if each is not None:
            kind = type(each)
            if (kind is not torch.Tensor and kind is not torch.nn.Parameter) or each.is_neg():
                return False
    return True


def _arrays(inputs: AttentionInputs) -> Arrays:
    return (
        inputs.q, inputs.k, inputs.v, inputs.bias, inputs.mask, inputs.alibi_slopes, inputs.sinks, inputs.q_segments,
        inputs.kv_segments, inputs.cu_seqlens_q, inputs.cu_seqlens_kv, inputs.cache_seqlens, inputs.block_table,
        inputs.seed,
    )  # fmt: skip


class _Attention(torch.autograd.Function):
    """What autograd sees, without ``setup_context``, which takes longer.

    The spec and what has no gradients are one argument for it, as each takes time.
    """

    @staticmethod
    def forward(ctx: Any, fixed: tuple[Any, ...], q: Any, k: Any, v: Any, bias: Any, sinks: Any) -> tuple[Any, Any]:
        spec, mask, slopes, *rest = fixed
        arrays = (q, k, v, bias, mask, slopes, sinks, *rest)
        out, lse = forward(spec, arrays)
        ctx.spec = spec
        ctx.save_for_backward(*arrays, out, lse)
        ctx.set_materialize_grads(False)
        # A result takes autograd time even if nobody gets it.
        return out, lse if spec.lse else None

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        *arrays, out, lse = ctx.saved_tensors
        wanted = ctx.needs_input_grad[1:]
        if d_out is None and d_lse is None:
            return (None,) * (1 + len(wanted))
        if torch.is_grad_enabled():
            found = _recorded_gradients(ctx.spec, wanted, d_out, d_lse, out, lse, *arrays)
        else:
            found = backward(ctx.spec, tuple(arrays), out, lse, d_out, d_lse, wanted)
        return None, *found


class _Gradients(torch.autograd.Function):
    """The gradients, to be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, spec: AttentionSpec, wanted: Sequence[bool], d_out: Any, d_lse: Any, out: Any, lse: Any, *arrays: Any
    ) -> Any:
        ctx.spec, ctx.wanted = spec, wanted
        ctx.save_for_backward(d_out, d_lse, *arrays)
        ctx.set_materialize_grads(False)
        return backward(spec, arrays, out, lse, d_out, d_lse, wanted)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        d_out, d_lse, *arrays = ctx.saved_tensors
        again = differentiated_twice(ctx.spec, tuple(arrays), d_out, d_lse, ctx.wanted, gradients)
        return None, None, *again[:2], None, None, *again[2:]


def differentiated_twice(
    spec: AttentionSpec, arrays: Arrays, d_out: Any, d_lse: Any, wanted: Sequence[bool], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """Gradients of gradients, through :data:`second_order`: of ``d_out``, ``d_lse`` and each array."""
    if second_order is None or spec.dropout_p:
        raise NotImplementedError(
            "attention by the Triton kernels can't be differentiated twice: use attention_backend('math')"
        )
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() if at in _DIFFERENTIABLE and each is not None else each
                  for at, each in enumerate(arrays)]  # fmt: skip
        seeds = [None if each is None else each.detach().requires_grad_() for each in (d_out, d_lse)]
        results = second_order(spec, AttentionInputs(*leaves))
        ways = [(result, seed) for result, seed in zip(results, seeds, strict=True) if seed is not None]
        of = [leaves[at] for at, is_wanted in zip(_DIFFERENTIABLE, wanted, strict=True) if is_wanted]
        first = torch.autograd.grad([way[0] for way in ways], of, [way[1] for way in ways], create_graph=True)
        back = [each for each, is_wanted in zip(gradients, wanted, strict=True) if is_wanted]
        pairs = [(each, seed) for each, seed in zip(first, back, strict=True) if seed is not None]
        inputs = [each for each in (*seeds, *leaves) if each is not None and each.requires_grad]
        found = iter(
            torch.autograd.grad([pair[0] for pair in pairs], inputs, [pair[1] for pair in pairs], allow_unused=True)
        )
    return tuple(next(found) if each is not None and each.requires_grad else None for each in (*seeds, *leaves))


_recorded = recorded(_Attention)
_recorded_gradients: Callable[..., Any] = _Gradients.apply
