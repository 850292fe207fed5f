"""What torch's attention on a CPU has no gradients of: the log of the denominator, and gradients themselves.

All tensors have four axes here, batch, heads, positions and features; heads of q may be a multiple of those of k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.functional import pad

from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.memory import current_score_memory
from einops_fast.attention.reference import reference_attention
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.gradients import gradients_by_torch
from einops_fast.backends.torch.types import PLAIN, is_jit_tracing, may_read_values
from einops_fast.dtypes import dtype_name

_torch: Any = torch

#: torch's own function, also while that is patched.
native: Callable[..., Any] = torch._C._nn.scaled_dot_product_attention

_flash = _torch._scaled_dot_product_flash_attention_for_cpu
_flash_backward = _torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default

#: Whether the operator is one of those that were tried: an older one may take no mask, or no groups of heads.
TRIED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)

_NODE = "ScaledDotProductFlashAttentionForCpuBackward0"
"""What autograd calls the one of torch's ways whose gradients it can't differentiate."""

_FEW = 1 << 14
"""Elements of a head's keys up to which gradients in bfloat16 take longer than those in float32 and all conversions."""

_LEAST = {torch.bfloat16: 1 << 11, torch.float16: 1 << 9}
"""Scores from which on conversions take less time than is gained."""


def attention_with_log(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """Return the result and the log of the denominator, both with gradients of q, k and v.

    A mask of numbers, which have no gradient, is added to the scores; else it is True where a key is seen. A causal
    call has no mask. There is at least one query and one key.
    """
    if mask is not None and mask.dtype == torch.bool:
        mask = added_mask(mask, q.dtype)
    if is_jit_tracing():  # which records no function of autograd that isn't torch's own
        return _by_reference(q, k, v, mask, causal, scale)
    of_values = v.shape[-1]
    q, k, v = even_features(q, k, v)
    # What isn't side by side would be read as if it were.
    q, k, v = (each if each.stride(-1) == 1 else each.contiguous() for each in (q, k, v))
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _recorded((mask, causal, scale), q, k, v)
    else:
        out, lse = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        lse = _logs(lse, mask)
    return out if out.shape[-1] == of_values else out[..., :of_values], lse


def added_mask(mask: Any, dtype: Any) -> Any:
    """Return what to add to scores in place of a mask: 0 where a key is seen, else -inf."""
    return mask.to(dtype).reciprocal_().neg_().add_(1.0)  # where and masked_fill take more than twice as long


def even_features(*operands: Any) -> list[Any]:
    """Return the operands with as many features each, which the operator wants: zeros change no product."""
    widest = max(each.shape[-1] for each in operands)
    return [each if each.shape[-1] == widest else pad(each, (0, widest - each.shape[-1])) for each in operands]


def differentiable_twice(*operands: Any, **options: Any) -> Any:
    """Call torch's function, with gradients that can be differentiated, whichever way it goes."""
    result = native(*operands, **options)
    node = result.grad_fn
    if type(node).__name__ == _NODE:
        node.register_hook(_again)
    return result


def with_wide_gradients(
    q: Any, k: Any, v: Any, mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False, **options: Any
) -> Any:
    """Call torch's function on plain tensors in low precision, with faster gradients that can be differentiated.

    For what :func:`attention_with_log` can do; else it is :func:`differentiable_twice`.
    """
    plain = not is_jit_tracing() and q.is_cpu and type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN
    if not plain or dropout_p or not _is_wide(q, k) or (mask is not None and mask.requires_grad):
        return differentiable_twice(q, k, v, mask, dropout_p, is_causal, **options)
    scale = options.get("scale")
    return attention_with_log(q, k, v, mask, is_causal, q.shape[-1] ** -0.5 if scale is None else scale)[0]


def in_float32(q: Any, k: Any, v: Any, mask: Any = None, *others: Any, **options: Any) -> Any:
    """Call torch's function on tensors in low precision as on float32: gradients go by a result with all its digits."""
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    return differentiable_twice(q.float(), k.float(), v.float(), mask, *others, **options).to(q.dtype)


def _is_wide(q: Any, k: Any) -> bool:
    """Return whether gradients are computed in float32, where the operator's own in low precision take longer."""
    if q.shape[:-1].numel() * k.shape[-2] < _LEAST.get(q.dtype, 0):
        return False
    few = k.shape[-2] * q.shape[-1] <= _FEW
    return bool(q.dtype == torch.float16 or (q.dtype == torch.bfloat16 and few))


def _logs(lse: Any, mask: Any) -> Any:
    """Return what the operator calls logarithms, with -inf where a query sees no key."""
    if mask is None:
        return lse
    # The operator says 0 there, which others may have, too, but seldom.
    zeros = lse == 0
    if may_read_values(zeros) and not zeros.any():
        return lse
    empty = (mask == float("-inf")).all(-1)
    return lse.masked_fill(zeros & empty, float("-inf"))


class _WithLog(torch.autograd.Function):
    """The operator, with a gradient of its logarithms, too."""

    @staticmethod
    def forward(ctx: Any, fixed: tuple[Any, bool, float], q: Any, k: Any, v: Any) -> Any:
        mask, causal, scale = fixed
        out, raw = _flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        lse = _logs(raw, mask)
        ctx.options = causal, scale
        ctx.save_for_backward(q, k, v, mask, out, raw, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Any, d_lse: Any) -> Any:
        if d_out is None and d_lse is None:
            return None, None, None, None
        q, k, v, mask, out, raw, lse = ctx.saved_tensors
        causal, scale = ctx.options
        if d_lse is not None and lse is not raw:
            d_lse = d_lse.masked_fill(lse == float("-inf"), 0.0)
        if torch.is_grad_enabled():
            again = partial(_by_reference, mask=mask, causal=causal, scale=scale)
            return None, *gradients_by_torch(again, (q, k, v), ctx.needs_input_grad[1:], (d_out, d_lse))
        return None, *_gradients(q, k, v, mask, out, raw, causal, scale, d_out, d_lse)


_recorded = recorded(_WithLog)


def _gradients(
    q: Any, k: Any, v: Any, mask: Any, out: Any, lse: Any, causal: bool, scale: float, d_out: Any, d_lse: Any
) -> tuple[Any, Any, Any]:
    if d_out is None:
        d_out = torch.zeros_like(out)
    operands = [q, k, v]
    if d_lse is not None:
        # The gradient of a score is its weight times (d_out · v - d_out · out + d_lse). With one feature more, 1 in
        # d_out, -d_lse in out and 0 in all others, the operator, which makes the products, makes this sum. In low
        # precision d_lse would lose digits there.
        wide = torch.promote_types(q.dtype, torch.float32)
        d_out = pad(d_out.to(wide), (0, 1), value=1.0)
        # Padding keeps an order of axes that doesn't show where they have one element; the operator goes by strides.
        operands = [pad(each.to(wide), (0, 1)).clone(memory_format=torch.contiguous_format) for each in operands]
        out = torch.cat((out.to(wide), -d_lse.to(wide).unsqueeze(-1)), -1)
    elif _is_wide(q, k):
        d_out, out, *operands = [each.float() for each in (d_out, out, *operands)]
    if d_out.stride(-1) != 1:
        d_out = d_out.contiguous()
    if mask is not None and mask.dtype != torch.float32:
        mask = mask.to(operands[0].dtype)
    found = _flash_backward(d_out, *operands, out, lse, 0.0, causal, attn_mask=mask, scale=scale)
    d_q, d_k, d_v = ((each if d_lse is None else each[..., :-1]).to(q.dtype) for each in found)
    return d_q, d_k, d_v


def _again(gradients: Sequence[Any], seeds: Sequence[Any]) -> tuple[Any, ...] | None:
    """Give the gradients of the reference in place of torch's, where somebody may differentiate them: a hook."""
    if not torch.is_grad_enabled():
        return None
    # What can't be differentiated knows what it was made from, the result of this node last of all.
    made = next(each for each in gradients if each is not None).grad_fn
    node: Any = made.next_functions[-1][0] if made is not None and made.next_functions else None
    if type(node).__name__ != _NODE:
        return None
    try:
        operands = node._saved_query, node._saved_key, node._saved_value
    except torch.utils.checkpoint.CheckpointError:  # it hands them out once only
        return None
    scale = node._saved_scale
    if scale is None:
        scale = operands[0].shape[-1] ** -0.5
    wanted = [each is not None for each in gradients]
    again = partial(_by_reference, mask=node._saved_attn_mask, causal=node._saved_is_causal, scale=scale)
    return gradients_by_torch(again, operands, wanted, (seeds[0], None))


def _by_reference(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """Return the result and the log of the denominator, which torch can differentiate as often as it's asked to."""
    batch, heads, shared = q.shape[0], k.shape[1], q.shape[1] // k.shape[1]
    if mask is not None:
        mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
        mask = mask.unsqueeze(2) if mask.shape[1] == 1 else mask.unflatten(1, (heads, shared))
    spec = AttentionSpec(
        batch=(batch, heads, shared),
        q_batch=(batch, heads, shared),
        k_batch=(batch, heads, 1),
        v_batch=(batch, heads, 1),
        q_len=q.shape[2],
        kv_len=k.shape[2],
        head_dim=q.shape[3],
        v_head_dim=v.shape[3],
        dtype=dtype_name(q.dtype),
        scale=scale,
        causal=causal,
        bias=None if mask is None else tuple(mask.shape),
        lse=True,
        gradients=True,
    )
    inputs = AttentionInputs(q.unflatten(1, (heads, shared)), k.unsqueeze(2), v.unsqueeze(2), mask)
    out, lse = reference_attention(spec, inputs, arrays_of("torch"), current_score_memory())
    return out.flatten(1, 2), lse.flatten(1, 2)
