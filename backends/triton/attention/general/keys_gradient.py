"""The gradients of k and v: a program owns a tile of keys and goes through the queries that see it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import seeing_queries, visited
from einops_fast.backends.triton.attention.general.loading import (
    added,
    head_of,
    load_keys,
    load_queries,
    no_sums,
    of_element,
    products,
    shared_size,
    store_keys,
    task,
)
from einops_fast.backends.triton.attention.general.score import key_segments, query_segments, scale_of, seed_of

__all__ = ["keys_kernel"]


class _Tile(NamedTuple):
    """What a program knows of its keys: features of both kinds, positions and segments; and what else it needs."""

    k: Any
    v: Any
    j: Any
    segments: Any
    seed: Any
    head: Any
    rows: Any


@triton.jit
def _step(dk, dv, start, tile, call, f: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """Add one block of queries to the gradients of a tile of keys and values. Tiles have keys along their rows."""
    q, d_out, lse, delta = tile.rows
    head, strides = tile.head, call.strides
    start = tl.multiple_of(start, block)
    column = (start + tl.arange(0, block))[:, None]
    exists = column < head.q_len
    queries = load_queries(q, strides.q, head, start, column, exists, call, f, "head", masked)
    i = (start + tl.arange(0, block))[None, :]
    rows = log_and_delta(lse, delta, head, start, i, call, f)
    scores = products(tile.k, queries, f, "head")
    d_rows = load_queries(d_out, strides.d_out, head, start, column, exists, call, f, "v_head", masked)
    d_weights = products(tile.v, d_rows, f, "v_head")
    segments = query_segments(i, head, call, f), tile.segments
    weights, _, gradient = score_gradients(
        scores, d_weights, rows, i, tile.j, segments, tile.seed, head, call, f, masked
    )
    dv = added(dv, weights.to(d_rows[0].dtype), d_rows, f, "v_head")
    return added(dk, gradient.to(queries[0].dtype), queries, f, "head"), dv


@triton.jit
def _existing(sums, exists):
    return tl.where(exists, sums[0], 0.0), tl.where(exists, sums[1], 0.0)


@triton.jit(do_not_specialize=RUNTIME)
def keys_kernel(
    q, k, v, d_out, lse, delta, dk, dv, extras, strides, sizes,
    q_len, kv_len, heads, together, q_rows, kv_rows, scale, cap, left, right, drop,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradients of k and v: sums over queries, and over the batch elements that share k and v."""
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    call = Call(extras, strides, sizes, lengths, Numbers(scale, cap, left, right, drop))
    share = shared_size(sizes, f)
    # The first keys are seen by the most queries.
    tile, element = task(tl.cdiv(kv_len, block_n), heads, together, False)
    anchor = head_of(element * share, element * share, call, f)
    start = tile * block_n
    # Keys beyond those that a sequence has may be there, in a cache: their gradient is 0.
    held = anchor.kv_len
    if extras.cached is not None:
        held = kv_len
    if start < held:
        seed = seed_of(call, f)
        j = (start + tl.arange(0, block_n))[:, None]
        k_base = of_element(k, strides.k, element, call, f)
        v_base = of_element(v, strides.v, element, call, f)
        keys = load_keys(k_base, strides.k, 0, start, anchor, call, f, "head", block_n)
        values = load_keys(v_base, strides.v, 0, start, anchor, call, f, "v_head", block_n)
        d_keys = no_sums(block_n, f, "head")
        d_values = no_sums(block_n, f, "v_head")
        last = min(start + block_n, anchor.kv_len) - 1
        # What doesn't depend on the member stays where it is: outside the loop, it would take registers.
        for member in tl.range(0, share, disable_licm=True):
            number = element * share + member
            head = head_of(number, number, call, f)
            own = _Tile(keys, values, j, key_segments(j, head, call, f), seed, head, (q, d_out, lse, delta))
            begin, full_begin, full_end, end = seeing_queries(
                start, last, head, own.segments, j < head.kv_len, call, f, block_m
            )
            spans = (begin, min(full_begin, end)), (full_begin, full_end), (full_end, end)
            for side in tl.static_range(3):
                if visited(f, side, "right"):
                    for at in range(spans[side][0], spans[side][1], block_m):
                        d_keys, d_values = _step(d_keys, d_values, at, own, call, f, block_m, side != 1)
        d_keys = d_keys[0] * scale_of(call, f), d_keys[1] * scale_of(call, f)
        if extras.cached is not None:
            d_keys = _existing(d_keys, j < anchor.kv_len)
            d_values = _existing(d_values, j < anchor.kv_len)
        rows = anchor.kv_start + start + tl.arange(0, block_n)[:, None]
        exists = j < held
        store_keys(of_element(dk, strides.dk, element, call, f), strides.dk, rows, exists, d_keys, f, "head")
        store_keys(of_element(dv, strides.dv, element, call, f), strides.dv, rows, exists, d_values, f, "v_head")
