"""What einops_fast calls of flash-attn-4, by torch on any device: its conventions, and memory full of NaN."""

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch


def _one(q: Any, k: Any, v: Any, sinks: Any, scale: float, causal: bool, softcap: float, sides: Any) -> Any:
    """One sequence, (positions, heads, features); the last query faces the last key."""
    shared = q.shape[1] // k.shape[1]
    k, v = (each.double().repeat_interleave(shared, 1) for each in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q.double(), k) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    left, right = sides
    right = 0 if causal else right
    ahead = torch.arange(k.shape[0]) - torch.arange(q.shape[0])[:, None] - (k.shape[0] - q.shape[0])
    hidden = torch.zeros(ahead.shape, dtype=torch.bool)
    if left is not None:
        hidden |= ahead < -left
    if right is not None:
        hidden |= ahead > right
    scores = scores.masked_fill(hidden, -math.inf)
    sinks = torch.full((q.shape[1],), -math.inf) if sinks is None else sinks
    whole = torch.cat([scores, sinks.double()[:, None, None].expand(-1, q.shape[0], 1)], -1)
    lse = whole.logsumexp(-1)
    empty = lse == -math.inf
    weights = torch.where(empty[..., None], 0.0, (scores - lse.masked_fill(empty, 0.0)[..., None]).exp())
    return torch.einsum("hij,jhe->ihe", weights, v), lse


def _sequences(q: Any, k: Any, v: Any, starts: Any, kv_starts: Any, used: Any, table: Any) -> list[Any]:
    """Each sequence's q, k and v, and where it is in the result."""
    if starts is not None:
        ends, kv_ends = starts.tolist(), kv_starts.tolist()
        places = [slice(a, b) for a, b in pairwise(ends)]
        kv_places = [slice(a, b) for a, b in pairwise(kv_ends)]
        return [(q[at], k[of], v[of], at) for at, of in zip(places, kv_places, strict=True)]
    found = []
    for at in range(q.shape[0]):
        own_k, own_v = (each[at] if table is None else each[table[at].long()].flatten(0, 1) for each in (k, v))
        end = own_k.shape[0] if used is None else int(used[at])
        found.append((q[at], own_k[:end], own_v[:end], at))
    return found


def _flash_attn_fwd(
    q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool, softcap: float, window_size_left: Any,
    window_size_right: Any, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, seqused_k: Any = None,
    page_table: Any = None, learnable_sink: Any = None, max_seqlen_q: Any = None, max_seqlen_k: Any = None,
    return_lse: bool = False, out: Any = None, lse: Any = None,
) -> Any:  # fmt: skip
    packed = cu_seqlens_q is not None
    assert q.dim() == k.dim() == v.dim() == (3 if packed else 4)
    assert q.shape[-2] % k.shape[-2] == 0
    assert (max_seqlen_q is not None) is packed
    for each in (q, k, v):
        assert each.stride(-1) == 1
        assert all(stride % 8 == 0 for stride in each.stride()[:-1])
    for each in (cu_seqlens_q, cu_seqlens_k, seqused_k, page_table):
        assert each is None or (each.dtype == torch.int32 and each.is_contiguous())
    if learnable_sink is not None:
        assert learnable_sink.shape == (q.shape[-2],)
        assert learnable_sink.is_contiguous()
    nan, shape = float("nan"), (*q.shape[:-3], q.shape[-2], q.shape[-3])
    out = q.new_full((*q.shape[:-1], v.shape[-1]), nan) if out is None else out
    lse = q.new_full(shape, nan, dtype=torch.float32) if lse is None else lse
    options = softmax_scale, causal, softcap, (window_size_left, window_size_right)
    for own_q, own_k, own_v, at in _sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, seqused_k, page_table):
        own, logs = _one(own_q, own_k, own_v, learnable_sink, *options)
        out[at] = own.to(out.dtype)
        lse[(slice(None), at) if packed else at] = logs.to(lse.dtype)
    return out, lse, None, None, None


def _gradients(own: Any, sinks: Any, options: Any, d_out: Any, d_lse: Any) -> list[Any]:
    """Of q, k, v and the sinks of one sequence."""
    leaves = [None if each is None else each.detach().double().requires_grad_() for each in (*own, sinks)]
    with torch.enable_grad():
        result, logs = _one(*leaves, *options)
        total = (result * d_out.double()).sum()
        if d_lse is not None:
            total = total + torch.where(logs == -math.inf, 0.0, logs * d_lse.double()).sum()
    there = [each for each in leaves if each is not None]
    found = torch.autograd.grad(total, there, allow_unused=True)
    zeros = [
        torch.zeros_like(each) if one is None else one.nan_to_num(0.0) for each, one in zip(there, found, strict=True)
    ]
    return [*zeros, *[None] * (len(leaves) - len(zeros))]


def _flash_attn_bwd(
    q: Any, k: Any, v: Any, out: Any, dout: Any, lse: Any, *, softmax_scale: float, causal: bool, softcap: float,
    window_size_left: Any, window_size_right: Any, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None, dlse: Any = None, learnable_sink: Any = None,
    dq: Any = None, dk: Any = None, dv: Any = None,
) -> Any:  # fmt: skip
    packed = cu_seqlens_q is not None
    nan = float("nan")
    given = dq, dk, dv
    found = [torch.full_like(x, nan) if one is None else one for x, one in zip((q, k, v), given, strict=True)]
    d_sinks = None if learnable_sink is None else torch.zeros_like(learnable_sink)
    options = softmax_scale, causal, softcap, (window_size_left, window_size_right)
    kv_ends = [] if cu_seqlens_k is None else cu_seqlens_k.tolist()
    for number, (*own, at) in enumerate(_sequences(q, k, v, cu_seqlens_q, cu_seqlens_k, None, None)):
        of_logs = None if dlse is None else dlse[(slice(None), at) if packed else at]
        # In an operator of torch nothing is recorded, but in threads of one's own.
        with ThreadPoolExecutor(1) as thread:
            work = thread.submit(_gradients, own, learnable_sink, options, dout[at], of_logs)
            *gradients, of_sinks = work.result()
        kv_at = slice(kv_ends[number], kv_ends[number + 1]) if packed else at
        for whole, place, gradient in zip(found, (at, kv_at, kv_at), gradients, strict=True):
            whole[place] = gradient.to(whole.dtype)
        if d_sinks is not None:
            d_sinks += of_sinks.to(d_sinks.dtype)
    return tuple(found) if d_sinks is None else (*found, d_sinks)
