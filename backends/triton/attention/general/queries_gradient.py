"""The gradient of q: a program owns a tile of queries and goes through the keys that it sees."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import narrowed, seen_keys, segment_range
from einops_fast.backends.triton.attention.general.loading import (
    head_of,
    load_keys,
    load_rows,
    product,
    query_rows,
    shared_size,
    store_rows,
    task,
    width,
)
from einops_fast.backends.triton.attention.general.score import scale_of, segments_at
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["queries_kernel"]


@triton.jit
def _queries_step(
    dq,
    more_dq,
    queries,
    more_queries,
    d_rows,
    more_d_rows,
    log,
    delta,
    start,
    i,
    q_segments,
    seed,
    k,
    v,
    d_bias,
    head,
    strides,
    numbers,
    f: tl.constexpr,
    block: tl.constexpr,
    masked: tl.constexpr,
):
    """One block of keys: the gradient of a tile of queries with it."""
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    start = tl.multiple_of(start, block)
    j = (start + tl.arange(0, block))[None, :]
    keys, more_keys = load_keys(
        k, strides.k, 0, start, head, strides.pages[3], field(f, "head"), field(f, "head_dim"), f, block, masked
    )
    values, more_values = load_keys(
        v, strides.v, 0, start, head, strides.pages[3], field(f, "v_head"), field(f, "v_head_dim"), f, block, masked
    )
    products = product(queries, tl.trans(keys), tl.zeros((queries.shape[0], block), acc), f)
    if field(f, "in_two"):
        products = product(more_queries, tl.trans(more_keys), products, f)
    d_weights = product(d_rows, tl.trans(values), tl.zeros((queries.shape[0], block), acc), f)
    if field(f, "v_in_two"):
        d_weights = product(more_d_rows, tl.trans(more_values), d_weights, f)
    kv_segments = 0
    if masked and field(f, "segments"):
        kv_segments = segments_at(head.kv_segments, strides.kv_segments[axes], j, head.kv_len)
    _, d_score, gradient = score_gradients(
        products, d_weights, log, delta, i, j, q_segments, kv_segments, seed, head, strides, numbers, f, masked
    )
    if d_bias is not None:
        place = i * (tl.full((), 0, tl.int64) + strides.d_bias[axes]) + j * strides.d_bias[axes + 1]
        tl.store(d_bias + place, d_score.to(d_bias.dtype.element_ty), mask=(i < head.q_len) & (j < head.kv_len))
    gradient = gradient.to(keys.dtype)
    dq = product(gradient, keys, dq, f)
    if field(f, "in_two"):
        more_dq = product(gradient, more_keys, more_dq, f)
    return dq, more_dq


@triton.jit(do_not_specialize=RUNTIME)
def queries_kernel(
    q,
    k,
    v,
    d_out,
    lse,
    delta,
    dq,
    d_bias,
    extras,
    strides,
    sizes,
    q_len,
    kv_len,
    heads,
    together,
    q_rows,
    kv_rows,
    scale,
    cap,
    left,
    right,
    drop,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Write a tile of the gradient of q; and, but for blocks that aren't seen, of that of a bias with all axes."""
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    outer: tl.constexpr = axes - field(f, "shared")
    acc: tl.constexpr = kept_type(f)
    tile, number = task(tl.cdiv(lengths.q, block_m), lengths.heads, lengths.together, field(f, "right"))
    element = number // shared_size(sizes, f)
    head = head_of(number, number, extras, strides, sizes, lengths, f)
    start = tile * block_m
    if start < head.q_len:
        seed = 0
        if field(f, "dropout"):
            seed = tl.load(extras.seed)
        i = (start + tl.arange(0, block_m))[:, None]
        exists = i < head.q_len
        k_base = k + counted(element, sizes, strides.k, 0, outer)
        v_base = v + counted(element, sizes, strides.v, 0, outer)
        if d_bias is not None:
            bias_base = d_bias + counted(number, sizes, strides.d_bias, 0, axes)
        else:
            bias_base = None
        queries, more_queries = load_rows(
            query_rows(q, strides.q, sizes, head, start, i, f, False),
            exists, strides.q[axes + 1], field(f, "head"), field(f, "head_dim"), True,
        )  # fmt: skip
        d_rows, more_d_rows = load_rows(
            query_rows(d_out, strides.d_out, sizes, head, start, i, f, False),
            exists, strides.d_out[axes + 1], field(f, "v_head"), field(f, "v_head_dim"), True,
        )  # fmt: skip
        log, row_delta = log_and_delta(lse, delta, strides, sizes, head, start, i, exists, f)
        q_segments = 0
        if field(f, "segments"):
            q_segments = segments_at(head.q_segments, strides.q_segments[axes], i, head.q_len)
        d_queries = tl.zeros((block_m, width(field(f, "head"), 0)), acc)
        more_d_queries = tl.zeros((block_m, width(field(f, "head"), 1)), acc)
        last = min(start + block_m, head.q_len) - 1
        begin, full_begin, full_end, end = seen_keys(start, last, head, numbers, f, block_n)
        if field(f, "segments"):
            low, high = segment_range(q_segments, exists)
            begin, end = narrowed(begin, end, head.kv_segments, strides.kv_segments[axes], low, high, block_n)
            full_begin = begin
            full_end = begin
        if field(f, "left"):
            for at in range(begin, min(full_begin, end), block_n):
                d_queries, more_d_queries = _queries_step(
                    d_queries, more_d_queries, queries, more_queries, d_rows, more_d_rows, log, row_delta,
                    at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, numbers,
                    f, block_n, True,
                )  # fmt: skip
        if not field(f, "irregular"):
            for at in range(full_begin, full_end, block_n):
                d_queries, more_d_queries = _queries_step(
                    d_queries, more_d_queries, queries, more_queries, d_rows, more_d_rows, log, row_delta,
                    at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, numbers,
                    f, block_n, False,
                )  # fmt: skip
        for at in range(full_end, end, block_n):
            d_queries, more_d_queries = _queries_step(
                d_queries, more_d_queries, queries, more_queries, d_rows, more_d_rows, log, row_delta,
                at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, numbers,
                f, block_n, True,
            )  # fmt: skip
        factor = scale_of(numbers, f)
        store_rows(
            query_rows(dq, strides.dq, sizes, head, start, i, f, False), exists, strides.dq[axes + 1],
            d_queries * factor, more_d_queries * factor, field(f, "head"), field(f, "head_dim"),
        )  # fmt: skip
