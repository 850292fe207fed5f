"""What an attention costs: FLOPs, bytes, and the time that follows from a device's ceilings."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from einops_fast.attention.spec import AttentionSpec
from einops_fast.planning.cost import ITEM_SIZES, Ceilings

_BACKWARD = 2.5
"""FLOPs of the backward over those of the forward: five products in place of two."""

_TILE = 64
"""Queries that fused kernels take at a time, those of all heads that share keys together: fewer cost as much."""

_WIDENED = 5
"""How many times the bytes of half precision are moved where they are read, written in float32, and read again."""


def attention_flops(spec: AttentionSpec) -> int:
    """Count the FLOPs of the products that have to be made: half where causal, a band with a window.

    Sequences that are packed count as if each were the longest.
    """
    return int(spec.flops * _seen(spec) * (1 + _BACKWARD if spec.gradients else 1))


def gradient_flops(spec: AttentionSpec) -> int:
    """Count the FLOPs of the backward pass alone."""
    return attention_flops(replace(spec, gradients=True)) - attention_flops(spec)


def _seen(spec: AttentionSpec) -> float:
    """Return the share of the pairs of a query and a key that are looked at."""
    if not spec.q_len or not spec.kv_len:
        return 0.0
    before, after = spec.window
    if spec.causal:
        after = 0 if after is None else min(after, 0)
    shift = spec.kv_len - spec.q_len if spec.alignment == "bottom_right" else 0
    # In the middle of each of a few bands of queries.
    bands = min(spec.q_len, 64)
    seen = 0.0
    for band in range(bands):
        facing = (band + 0.5) * spec.q_len / bands + shift
        first = 0.0 if before is None else min(max(0.0, facing - before - 0.5), spec.kv_len)
        last = float(spec.kv_len) if after is None else min(max(0.0, facing + after + 0.5), spec.kv_len)
        seen += max(0.0, last - first)
    return seen / (bands * spec.kv_len)


def attention_bytes(spec: AttentionSpec) -> int:
    """Count the bytes of all operands and of the result, each once; with gradients, of these also."""
    item = ITEM_SIZES.get(spec.dtype, 8)
    elements = prod(spec.q_batch) * spec.q_len * spec.head_dim + prod(spec.batch) * spec.q_len * spec.v_head_dim
    elements += spec.kv_len * (prod(spec.k_batch) * spec.head_dim + prod(spec.v_batch) * spec.v_head_dim)
    moved = elements * item
    if spec.gradients:
        moved *= 3
    if spec.bias is not None:
        moved += prod(spec.bias) * item * (3 if spec.bias_gradient else 1)
    return moved + (prod(spec.mask) if spec.mask is not None else 0)


def fused_seconds(spec: AttentionSpec, on: Ceilings, efficiency: float) -> float:
    """Predict the seconds of one kernel that reaches this share of the peak; of a few for the backward."""
    passes = 3 if spec.gradients else 1
    rows = max(spec.q_len, 1) * spec.group
    padded = -(-rows // _TILE) * _TILE / rows
    arithmetic = attention_flops(spec) * padded / (on.gemm_rate(spec.dtype) * efficiency)
    return passes * on.call + max(arithmetic, attention_bytes(spec) / on.bandwidth)


def unfused_seconds(spec: AttentionSpec, on: Ceilings) -> float:
    """Predict the seconds where scores are written, read and written again, in float32 at least."""
    item = max(4, ITEM_SIZES.get(spec.dtype, 8))
    wide = "float64" if spec.dtype == "float64" else "float32"
    scores = prod(spec.batch) * spec.q_len * spec.kv_len * item
    passes = 10 if spec.gradients else 6
    flops = spec.flops * (1 + _BACKWARD if spec.gradients else 1)
    moved = passes * 2 * scores + attention_bytes(spec) * (_WIDENED if ITEM_SIZES.get(spec.dtype, 8) < 4 else 1)
    return 8 * on.call * (3 if spec.gradients else 1) + moved / on.bandwidth + flops / on.gemm_rate(wide)
