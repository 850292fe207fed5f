"""The backward kernels: weights are computed again from the logarithms of their sums, nothing is added atomically.

After FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 2, in two kernels: one whose programs
own a tile of keys, for the gradients of k and v, and one whose programs own a tile of queries, for that of q.
With p the weights, the gradient of a score is ``p * (do @ v.T - delta)``, ``delta = sum(o * do) - dlse`` for each row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.blocks import narrowed, seeing_queries, seen_keys, segment_range
from einops_fast.backends.triton.attention.loading import (
    counted,
    head_of,
    kept_type,
    load_keys,
    load_rows,
    product,
    query_rows,
    shared_size,
    store_rows,
    task,
    width,
)
from einops_fast.backends.triton.attention.score import (
    LOG2E,
    allowed,
    dropped,
    factor_of,
    scale_of,
    scored,
    segments_at,
)
from einops_fast.backends.triton.indexing import field

__all__ = ["delta_kernel", "keys_kernel", "log_and_delta", "queries_kernel", "score_gradients"]


@triton.jit(do_not_specialize=["rows"])
def delta_kernel(
    out, d_out, lse, d_lse, delta, strides, sizes, rows, f: tl.constexpr, block: tl.constexpr, columns: tl.constexpr
):
    """Write ``delta`` of a tile of rows; 0 for a row that has seen no key. All sequences together are one here."""
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    zero = tl.full((), 0, tl.int64)
    tiles = tl.cdiv(rows, block)
    element = tl.program_id(0) // tiles
    start = tl.program_id(0) % tiles * block
    run = (tl.arange(0, block) + zero)[:, None]
    exists = start + run < rows
    column = tl.arange(0, columns)[None, :]
    inside = exists & (column < field(f, "v_head_dim"))
    place = counted(element, sizes, strides.out, 0, axes) + (start + run) * (zero + strides.out[axes])
    o = tl.load(out + place + column * strides.out[axes + 1], mask=inside, other=0).to(acc)
    place = counted(element, sizes, strides.d_out, 0, axes) + (start + run) * (zero + strides.d_out[axes])
    do = tl.load(d_out + place + column * strides.d_out[axes + 1], mask=inside, other=0).to(acc)
    total = tl.sum(o * do, 1)[:, None]
    place = counted(element, sizes, strides.lse, 0, axes) + (start + run) * (zero + strides.lse[axes])
    if d_lse is not None:
        total -= tl.load(d_lse + place, mask=exists, other=0)
    total = tl.where(tl.load(lse + place, mask=exists, other=0) == float("-inf"), 0.0, total)
    tl.store(delta + place, total, mask=exists)


@triton.jit
def score_gradients(
    products,
    d_weights,
    log,
    delta,
    i,
    j,
    q_segments,
    kv_segments,
    seed,
    head,
    strides,
    lengths,
    numbers,
    f: tl.constexpr,
    masked: tl.constexpr,
):
    """Weights (after dropping some), the gradient of scores, and that of scaled products; in either orientation.

    ``log`` is that of the row's sum as a power of two, infinite where the row has seen no key or doesn't exist.
    """
    score, derivative = scored(products, i, j, head, strides, numbers, f)
    weights = tl.exp2(score * factor_of(numbers, f) - log)
    if masked:
        weights = tl.where(allowed(i, j, q_segments, kv_segments, head, strides, numbers, f), weights, 0.0)
    kept = weights
    if field(f, "dropout"):
        kept = dropped(weights, i, j, seed, head, lengths, numbers)
        gradient = kept * d_weights - weights * delta
    else:
        gradient = weights * (d_weights - delta)
    return kept, gradient, gradient * derivative


@triton.jit
def log_and_delta(lse, delta, strides, sizes, head, start, i, exists, f: tl.constexpr):
    """Of rows, in the shape of ``i``."""
    log = tl.load(query_rows(lse, strides.lse, sizes, head, start, i, f, False), mask=exists, other=float("-inf"))
    log = tl.where(log == float("-inf"), float("inf"), log * LOG2E)
    return log, tl.load(query_rows(delta, strides.lse, sizes, head, start, i, f, False), mask=exists, other=0)


@triton.jit
def _keys_step(
    dk,
    more_dk,
    dv,
    more_dv,
    keys,
    more_keys,
    values,
    more_values,
    start,
    j,
    kv_segments,
    seed,
    arrays,
    head,
    strides,
    sizes,
    lengths,
    numbers,
    f: tl.constexpr,
    block: tl.constexpr,
    masked: tl.constexpr,
):
    """One block of queries: the gradients of a tile of keys and values with it. Tiles have keys along their rows."""
    axes: tl.constexpr = field(f, "axes")
    q, d_out, lse, delta = arrays
    acc: tl.constexpr = kept_type(f)
    start = tl.multiple_of(start, block)
    column = (start + tl.arange(0, block))[:, None]
    exists = column < head.q_len
    queries, more_queries = load_rows(
        query_rows(q, strides.q, sizes, head, start, column, f, False),
        exists, strides.q[axes + 1], field(f, "head"), field(f, "head_dim"), masked,
    )  # fmt: skip
    i = (start + tl.arange(0, block))[None, :]
    log, row_delta = log_and_delta(lse, delta, strides, sizes, head, start, i, i < head.q_len, f)
    products = product(keys, tl.trans(queries), tl.zeros((keys.shape[0], block), acc), f)
    if field(f, "in_two"):
        products = product(more_keys, tl.trans(more_queries), products, f)
    d_rows, more_d_rows = load_rows(
        query_rows(d_out, strides.d_out, sizes, head, start, column, f, False),
        exists, strides.d_out[axes + 1], field(f, "v_head"), field(f, "v_head_dim"), masked,
    )  # fmt: skip
    d_weights = product(values, tl.trans(d_rows), tl.zeros((keys.shape[0], block), acc), f)
    if field(f, "v_in_two"):
        d_weights = product(more_values, tl.trans(more_d_rows), d_weights, f)
    q_segments = 0
    if field(f, "segments"):
        q_segments = segments_at(head.q_segments, strides.q_segments[axes], i, head.q_len)
    weights, _, gradient = score_gradients(
        products, d_weights, log, row_delta, i, j, q_segments, kv_segments, seed,
        head, strides, lengths, numbers, f, masked,
    )  # fmt: skip
    weights = weights.to(d_rows.dtype)
    dv = product(weights, d_rows, dv, f)
    if field(f, "v_in_two"):
        more_dv = product(weights, more_d_rows, more_dv, f)
    gradient = gradient.to(queries.dtype)
    dk = product(gradient, queries, dk, f)
    if field(f, "in_two"):
        more_dk = product(gradient, more_queries, more_dk, f)
    return dk, more_dk, dv, more_dv


@triton.jit(do_not_specialize=RUNTIME)
def keys_kernel(
    q,
    k,
    v,
    d_out,
    lse,
    delta,
    dk,
    dv,
    extras,
    strides,
    sizes,
    q_len,
    kv_len,
    heads,
    together,
    scale,
    cap,
    left,
    right,
    drop,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """Write a tile of the gradients of k and v: sums over queries, and over the batch elements that share k and v."""
    lengths = Lengths(q_len, kv_len, heads, together)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    outer: tl.constexpr = axes - field(f, "shared")
    acc: tl.constexpr = kept_type(f)
    share = shared_size(sizes, f)
    # The first keys are seen by the most queries.
    tile, element = task(tl.cdiv(lengths.kv, block_n), lengths.heads, lengths.together, False)
    anchor = head_of(element * share, element * share, extras, strides, sizes, lengths, f)
    start = tile * block_n
    # Keys beyond those that a sequence has may be there, in a cache: their gradient is 0.
    held = anchor.kv_len
    if extras.cached is not None:
        held = lengths.kv
    if start < held:
        seed = 0
        if field(f, "dropout"):
            seed = tl.load(extras.seed)
        j = (start + tl.arange(0, block_n))[:, None]
        k_base = k + counted(element, sizes, strides.k, 0, outer)
        v_base = v + counted(element, sizes, strides.v, 0, outer)
        keys, more_keys = load_keys(
            k_base, strides.k, 0, start, anchor, strides.pages, field(f, "head"), field(f, "head_dim"), f, block_n, True
        )
        values, more_values = load_keys(
            v_base, strides.v, 0, start, anchor, strides.pages, field(f, "v_head"), field(f, "v_head_dim"),
            f, block_n, True,
        )  # fmt: skip
        d_keys = tl.zeros((block_n, width(field(f, "head"), 0)), acc)
        more_d_keys = tl.zeros((block_n, width(field(f, "head"), 1)), acc)
        d_values = tl.zeros((block_n, width(field(f, "v_head"), 0)), acc)
        more_d_values = tl.zeros((block_n, width(field(f, "v_head"), 1)), acc)
        last = min(start + block_n, anchor.kv_len) - 1
        for member in range(0, share):
            number = element * share + member
            head = head_of(number, number, extras, strides, sizes, lengths, f)
            kv_segments = 0
            if field(f, "segments"):
                kv_segments = segments_at(head.kv_segments, strides.kv_segments[axes], j, head.kv_len)
            begin, full_begin, full_end, end = seeing_queries(start, last, head, numbers, f, block_m)
            if field(f, "segments"):
                low, high = segment_range(kv_segments, j < head.kv_len)
                begin, end = narrowed(begin, end, head.q_segments, strides.q_segments[axes], low, high, block_m)
                full_begin = begin
                full_end = begin
            if field(f, "right"):
                for at in range(begin, min(full_begin, end), block_m):
                    d_keys, more_d_keys, d_values, more_d_values = _keys_step(
                        d_keys, more_d_keys, d_values, more_d_values, keys, more_keys, values, more_values,
                        at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, lengths, numbers,
                        f, block_m, True,
                    )  # fmt: skip
            if not field(f, "irregular"):
                for at in range(full_begin, full_end, block_m):
                    d_keys, more_d_keys, d_values, more_d_values = _keys_step(
                        d_keys, more_d_keys, d_values, more_d_values, keys, more_keys, values, more_values,
                        at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, lengths, numbers,
                        f, block_m, False,
                    )  # fmt: skip
            for at in range(full_end, end, block_m):
                d_keys, more_d_keys, d_values, more_d_values = _keys_step(
                    d_keys, more_d_keys, d_values, more_d_values, keys, more_keys, values, more_values,
                    at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, lengths, numbers,
                    f, block_m, True,
                )  # fmt: skip
        d_keys *= scale_of(numbers, f)
        more_d_keys *= scale_of(numbers, f)
        if extras.cached is not None:
            d_keys = tl.where(j < anchor.kv_len, d_keys, 0.0)
            more_d_keys = tl.where(j < anchor.kv_len, more_d_keys, 0.0)
            d_values = tl.where(j < anchor.kv_len, d_values, 0.0)
            more_d_values = tl.where(j < anchor.kv_len, more_d_values, 0.0)
        zero = tl.full((), 0, tl.int64)
        rows = anchor.kv_start + start + tl.arange(0, block_n)[:, None] + zero
        exists = j < held
        store_rows(
            dk + counted(element, sizes, strides.dk, 0, outer) + rows * strides.dk[axes], exists,
            strides.dk[axes + 1], d_keys, more_d_keys, field(f, "head"), field(f, "head_dim"),
        )  # fmt: skip
        store_rows(
            dv + counted(element, sizes, strides.dv, 0, outer) + rows * strides.dv[axes], exists,
            strides.dv[axes + 1], d_values, more_d_values, field(f, "v_head"), field(f, "v_head_dim"),
        )  # fmt: skip


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
    lengths,
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
        k, strides.k, 0, start, head, strides.pages, field(f, "head"), field(f, "head_dim"), f, block, masked
    )
    values, more_values = load_keys(
        v, strides.v, 0, start, head, strides.pages, field(f, "v_head"), field(f, "v_head_dim"), f, block, masked
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
        products, d_weights, log, delta, i, j, q_segments, kv_segments, seed, head, strides, lengths, numbers, f, masked
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
    lengths = Lengths(q_len, kv_len, heads, together)
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
                    at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, lengths, numbers,
                    f, block_n, True,
                )  # fmt: skip
        if not field(f, "irregular"):
            for at in range(full_begin, full_end, block_n):
                d_queries, more_d_queries = _queries_step(
                    d_queries, more_d_queries, queries, more_queries, d_rows, more_d_rows, log, row_delta,
                    at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, lengths, numbers,
                    f, block_n, False,
                )  # fmt: skip
        for at in range(full_end, end, block_n):
            d_queries, more_d_queries = _queries_step(
                d_queries, more_d_queries, queries, more_queries, d_rows, more_d_rows, log, row_delta,
                at, i, q_segments, seed, k_base, v_base, bias_base, head, strides, lengths, numbers,
                f, block_n, True,
            )  # fmt: skip
        scale = scale_of(numbers, f)
        store_rows(
            query_rows(dq, strides.dq, sizes, head, start, i, f, False), exists, strides.dq[axes + 1],
            d_queries * scale, more_d_queries * scale, field(f, "head"), field(f, "head_dim"),
        )  # fmt: skip
