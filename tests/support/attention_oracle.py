"""Attention in float64, written out: what the kernels are tested against."""

import math
from typing import Any

import torch

from einops_fast.attention.spec import AttentionInputs, AttentionSpec


def oracle(spec: AttentionSpec, inputs: AttentionInputs, kept: Any = None) -> tuple[Any, Any]:
    """Return the result and the logarithms in float64, differentiable; of sequences packed along positions, likewise.

    Args:
        spec: what to compute.
        inputs: tensors of any floating dtype.
        kept: of which weights dropout leaves, shape ``(*batch, q_len, kv_len)``.
    """
    if spec.page_size:
        inputs = _unpaged(spec, inputs)
    scores = (*spec.batch, spec.q_len, spec.kv_len)
    further = {
        "bias": _expanded(inputs.bias, scores),
        "mask": _expanded(inputs.mask, scores),
        "slopes": _expanded(inputs.alibi_slopes, spec.batch),
        "sinks": _expanded(inputs.sinks, spec.batch),
        "segments": _same_segment(spec, inputs),
        "kept": kept,
    }
    operands = [each.double() for each in (inputs.q, inputs.k, inputs.v)]
    if not (spec.varlen or spec.cache):
        return _one(spec, *operands, further)
    outs, logs = [], []
    for at in range(spec.batch[0]):
        rows, keys = _span(inputs.cu_seqlens_q, at, spec.q_len), _span(inputs.cu_seqlens_kv, at, spec.kv_len)
        if inputs.cache_seqlens is not None:
            keys = slice(keys.start, min(keys.stop, keys.start + int(inputs.cache_seqlens[at])))
        q, k, v = (
            each[min(at, each.shape[0] - 1)][..., span, :]
            for each, span in zip(operands, (rows, keys, keys), strict=True)
        )
        out, log = _one(spec, q, k, v, {name: None if each is None else each[at] for name, each in further.items()})
        outs.append(out.expand(*spec.batch[1:], *out.shape[-2:]))
        logs.append(log.expand(*spec.batch[1:], log.shape[-1]))
    if inputs.cu_seqlens_q is not None:
        return torch.cat(outs, -2)[None], torch.cat(logs, -1)[None]
    return torch.stack(outs), torch.stack(logs)


def _expanded(array: Any, shape: Any) -> Any:
    if array is None:
        return None
    return (array.double() if array.is_floating_point() else array).expand(shape)


def _same_segment(spec: AttentionSpec, inputs: AttentionInputs) -> Any:
    """Return which keys are in the segment of a query."""
    if inputs.q_segments is None:
        return None
    q_segments = inputs.q_segments.expand(*spec.batch, spec.q_len)
    return q_segments[..., :, None] == inputs.kv_segments.expand(*spec.batch, spec.kv_len)[..., None, :]


def _span(ends: Any, at: int, length: int) -> slice:
    """Return the positions of one sequence, of the whole length where none are packed."""
    return slice(0, length) if ends is None else slice(int(ends[at]), int(ends[at + 1]))


def _one(spec: AttentionSpec, q: Any, k: Any, v: Any, further: dict[str, Any]) -> tuple[Any, Any]:
    """Attention of one sequence, or of a batch with the same lengths; ``further`` arrays may be for more positions."""
    q_len, kv_len = q.shape[-2], k.shape[-2]
    bias, mask, segments, kept = (
        None if (each := further[name]) is None else each[..., :q_len, :kv_len]
        for name in ("bias", "mask", "segments", "kept")
    )
    slopes, sinks = further["slopes"], further["sinks"]
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
