"""The gradients of k and v: a program owns a tile of keys and goes through the queries that see it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import narrowed, seeing_queries, segment_range
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

__all__ = ["keys_kernel"]


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
        head, strides, numbers, f, masked,
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
    """Write a tile of the gradients of k and v: sums over queries, and over the batch elements that share k and v."""
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
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
            k_base, strides.k, 0, start, anchor, strides.pages[3], field(f, "head"), field(f, "head_dim"),
            f, block_n, True,
        )  # fmt: skip
        values, more_values = load_keys(
            v_base, strides.v, 0, start, anchor, strides.pages[3], field(f, "v_head"), field(f, "v_head_dim"),
            f, block_n, True,
        )  # fmt: skip
        d_keys = tl.zeros((block_n, width(field(f, "head"), 0)), acc)
        more_d_keys = tl.zeros((block_n, width(field(f, "head"), 1)), acc)
        d_values = tl.zeros((block_n, width(field(f, "v_head"), 0)), acc)
        more_d_values = tl.zeros((block_n, width(field(f, "v_head"), 1)), acc)
        last = min(start + block_n, anchor.kv_len) - 1
        # What doesn't depend on the member stays where it is: outside the loop, it would take registers.
        for member in tl.range(0, share, disable_licm=True):
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
                        at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, numbers,
                        f, block_m, True,
                    )  # fmt: skip
            if not field(f, "irregular"):
                for at in range(full_begin, full_end, block_m):
                    d_keys, more_d_keys, d_values, more_d_values = _keys_step(
                        d_keys, more_d_keys, d_values, more_d_values, keys, more_keys, values, more_values,
                        at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, numbers,
                        f, block_m, False,
                    )  # fmt: skip
            for at in range(full_end, end, block_m):
                d_keys, more_d_keys, d_values, more_d_values = _keys_step(
                    d_keys, more_d_keys, d_values, more_d_values, keys, more_keys, values, more_values,
                    at, j, kv_segments, seed, (q, d_out, lse, delta), head, strides, sizes, numbers,
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
