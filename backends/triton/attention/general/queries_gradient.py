"""The gradient of q: a program owns a tile of queries and goes through the keys that it sees."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import seen_keys_of_segments, visited
from einops_fast.backends.triton.attention.general.loading import (
    added,
    head_of,
    load_keys,
    load_queries,
    no_sums,
    of_element,
    products,
    shared_size,
    store_queries,
    task,
)
from einops_fast.backends.triton.attention.general.score import key_segments, query_segments, scale_of, seed_of
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted

__all__ = ["queries_kernel"]


class _Tile(NamedTuple):
    """What a program knows of its queries: features of both kinds, numbers, positions; and where keys are."""

    queries: Any
    d_rows: Any
    rows: Any
    i: Any
    segments: Any
    seed: Any
    head: Any
    k: Any
    v: Any


@triton.jit
def _step(dq, start, tile, d_bias, call, f: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """Add one block of keys to the gradient of a tile of queries."""
    axes: tl.constexpr = field(f, "axes")
    i, head, strides = tile.i, tile.head, call.strides
    start = tl.multiple_of(start, block)
    j = (start + tl.arange(0, block))[None, :]
    keys = load_keys(tile.k, strides.k, 0, start, head, call, f, "head", block, masked)
    values = load_keys(tile.v, strides.v, 0, start, head, call, f, "v_head", block, masked)
    scores = products(tile.queries, keys, f, "head")
    d_weights = products(tile.d_rows, values, f, "v_head")
    segments = tile.segments, 0
    if masked:
        segments = tile.segments, key_segments(j, head, call, f)
    _, d_score, gradient = score_gradients(
        scores, d_weights, tile.rows, i, j, segments, tile.seed, head, call, f, masked
    )
    if d_bias is not None:
        place = i * (tl.full((), 0, tl.int64) + strides.d_bias[axes]) + j * strides.d_bias[axes + 1]
        tl.store(d_bias + place, d_score.to(d_bias.dtype.element_ty), mask=(i < head.q_len) & (j < head.kv_len))
    return added(dq, gradient.to(keys[0].dtype), keys, f, "head")


@triton.jit(do_not_specialize=RUNTIME)
def queries_kernel(
    q, k, v, d_out, lse, delta, dq, d_bias, extras, strides, sizes,
    q_len, kv_len, heads, together, q_rows, kv_rows, scale, cap, left, right, drop,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradient of q; and, but for blocks that aren't seen, of that of a bias with all axes."""
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    call = Call(extras, strides, sizes, lengths, Numbers(scale, cap, left, right, drop))
    tile, number = task(tl.cdiv(q_len, block_m), heads, together, field(f, "right"))
    element = number // shared_size(sizes, f)
    head = head_of(number, number, call, f)
    start = tile * block_m
    if start < head.q_len:
        seed = seed_of(call, f)
        i = (start + tl.arange(0, block_m))[:, None]
        exists = i < head.q_len
        k_base = of_element(k, strides.k, element, call, f)
        v_base = of_element(v, strides.v, element, call, f)
        if d_bias is not None:
            bias_base = d_bias + counted(number, sizes, strides.d_bias, 0, field(f, "axes"))
        else:
            bias_base = None
        own = _Tile(
            load_queries(q, strides.q, head, start, i, exists, call, f, "head"),
            load_queries(d_out, strides.d_out, head, start, i, exists, call, f, "v_head"),
            log_and_delta(lse, delta, head, start, i, call, f),
            i,
            query_segments(i, head, call, f),
            seed,
            head,
            k_base,
            v_base,
        )
        d_queries = no_sums(block_m, f, "head")
        last = min(start + block_m, head.q_len) - 1
        begin, full_begin, full_end, end = seen_keys_of_segments(
            start, last, head, own.segments, exists, call, f, block_n
        )
        spans = (begin, min(full_begin, end)), (full_begin, full_end), (full_end, end)
        for side in tl.static_range(3):
            if visited(f, side, "left"):
                for at in range(spans[side][0], spans[side][1], block_n):
                    d_queries = _step(d_queries, at, own, bias_base, call, f, block_n, side != 1)
        store_queries(dq, strides.dq, head, start, i, d_queries, scale_of(call, f), call, f, "head")
