"""Attention in float64, written out: what the kernels are tested against."""

from __future__ import annotations

import math
from typing import Any

import torch

from einops_fast.attention.spec import AttentionInputs, AttentionSpec


def oracle(spec: AttentionSpec, inputs: AttentionInputs, kept: Any = None) -> tuple[Any, Any]:
    """The result and the logarithms in float64, differentiable; of sequences packed along positions, likewise.

    Args:
        spec: what to compute.
        inputs: tensors of any floating dtype.
        kept: of which weights dropout leaves, shape ``(*batch, q_len, kv_len)``.
    """
    if spec.page_size:
        inputs = _unpaged(spec, inputs)
    q, k, v = (each.double() for each in (inputs.q, inputs.k, inputs.v))
    count = len(spec.batch)
    whole = (*spec.batch, spec.q_len, spec.kv_len)
    bias = None if inputs.bias is None else inputs.bias.double().expand(whole)
    mask = None if inputs.mask is None else inputs.mask.expand(whole)
    slopes = None if inputs.alibi_slopes is None else inputs.alibi_slopes.double().expand(spec.batch)
    sinks = None if inputs.sinks is None else inputs.sinks.double().expand(spec.batch)
    segments = None
    if inputs.q_segments is not None:
        q_segments = inputs.q_segments.expand(*spec.batch, spec.q_len)
        segments = q_segments[..., :, None] == inputs.kv_segments.expand(*spec.batch, spec.kv_len)[..., None, :]
    if not (spec.varlen or spec.cache):
        return _one(spec, q, k, v, bias, mask, slopes, sinks, segments, kept, spec.q_len, spec.kv_len)
    outs, logs = [], []
    for at in range(spec.batch[0]):
        q_start, q_len, kv_start, kv_len = 0, spec.q_len, 0, spec.kv_len
        if inputs.cu_seqlens_q is not None:
            q_start = int(inputs.cu_seqlens_q[at])
            q_len = int(inputs.cu_seqlens_q[at + 1]) - q_start
        if inputs.cu_seqlens_kv is not None:
            kv_start = int(inputs.cu_seqlens_kv[at])
            kv_len = int(inputs.cu_seqlens_kv[at + 1]) - kv_start
        if inputs.cache_seqlens is not None:
            kv_len = min(kv_len, int(inputs.cache_seqlens[at]))
        rows, keys = slice(q_start, q_start + q_len), slice(kv_start, kv_start + kv_len)
        own = [each[min(at, each.shape[0] - 1)] for each in (q, k, v)]
        scores = [None if each is None else each[at][..., :q_len, :kv_len] for each in (bias, mask, segments, kept)]
        out, log = _one(
            spec, own[0][..., rows, :], own[1][..., keys, :], own[2][..., keys, :], scores[0], scores[1],
            None if slopes is None else slopes[at], None if sinks is None else sinks[at], scores[2], scores[3],
            q_len, kv_len,
        )  # fmt: skip
        batch = spec.batch[1:]
        outs.append(out.expand(*batch, q_len, spec.v_head_dim))
        logs.append(log.expand(*batch, q_len))
    if inputs.cu_seqlens_q is not None:
        return torch.cat(outs, -2)[None], torch.cat(logs, -1)[None]
    assert count
    return torch.stack(outs), torch.stack(logs)


def _one(
    spec: AttentionSpec,
    q: Any,
    k: Any,
    v: Any,
    bias: Any,
    mask: Any,
    slopes: Any,
    sinks: Any,
    segments: Any,
    kept: Any,
    q_len: int,
    kv_len: int,
) -> tuple[Any, Any]:
    score = spec.scale * (q @ k.mT)
    if spec.softcap:
        score = spec.softcap * torch.tanh(score / spec.softcap)
    i = torch.arange(q_len, device=q.device)[:, None]
    j = torch.arange(kv_len, device=q.device)[None, :]
    shift = kv_len - q_len if spec.alignment == "bottom_right" or spec.cache else 0
    if bias is not None:
        score = score + bias
    if slopes is not None:
        score = score - slopes[..., None, None] * (i + shift - j).abs()
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device)
    if spec.causal:
        seen = seen & (j <= i + shift)
    left, right = spec.window
    if left is not None:
        seen = seen & (j >= i + shift - left)
    if right is not None:
        seen = seen & (j <= i + shift + right)
    for each in (mask, segments):
        if each is not None:
            seen = seen & each
    batch = spec.batch[1:] if spec.varlen or spec.cache else spec.batch
    score = score.expand(*batch, q_len, kv_len)
    score = torch.where(seen, score, -math.inf)
    joined = score
    if sinks is not None:
        joined = torch.cat([score, sinks[..., None, None].expand(*batch, q_len, 1)], -1)
    empty = (joined == -math.inf).all(-1)
    # Rows without a key are computed from other scores, which no gradient reaches.
    safe = torch.where(empty[..., None], 0.0, joined)
    lse = torch.logsumexp(safe, -1) if joined.shape[-1] else joined.sum(-1)
    hidden = score == -math.inf
    weights = torch.where(hidden, 0.0, torch.exp(torch.where(hidden, 0.0, score) - lse[..., None]))
    if spec.dropout_p:
        weights = weights * kept / (1 - spec.dropout_p)
    return weights @ v, torch.where(empty, -math.inf, lse)


def _unpaged(spec: AttentionSpec, inputs: AttentionInputs) -> AttentionInputs:
    """With k and v of every sequence gathered from its pages."""

    def gathered(array: Any) -> Any:
        pages = array[inputs.block_table.long()]  # (n, pages, *heads, page_size, features)
        pages = pages.movedim(1, -3)
        return pages.reshape(*pages.shape[:-3], spec.kv_len, pages.shape[-1])

    return AttentionInputs(**{**vars(inputs), "k": gathered(inputs.k), "v": gathered(inputs.v), "block_table": None})
