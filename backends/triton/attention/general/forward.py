"""The forward kernel: a tile of queries against the keys that it sees, with a running maximum and sum of its rows.

After FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 1.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.blocks import narrowed, part_of, seen_keys, segment_range
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
from einops_fast.backends.triton.attention.general.score import (
    LN2,
    LOG2E,
    allowed,
    dropped,
    factor_of,
    scored,
    segments_at,
)
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["forward_kernel"]


@triton.jit
def _step(
    first,
    rest,
    total,
    most,
    queries,
    more_queries,
    start,
    i,
    q_segments,
    seed,
    k,
    v,
    head,
    strides,
    numbers,
    f: tl.constexpr,
    block: tl.constexpr,
    masked: tl.constexpr,
):
    """One block of keys: the sums with it."""
    axes: tl.constexpr = field(f, "axes")
    rows: tl.constexpr = i.shape[0]
    start = tl.multiple_of(start, block)
    j = (start + tl.arange(0, block))[None, :]
    keys, more_keys = load_keys(
        k,
        strides.k,
        strides.pages[0],
        start,
        head,
        strides.pages[3],
        field(f, "head"),
        field(f, "head_dim"),
        f,
        block,
        masked,
    )
    products = product(queries, tl.trans(keys), tl.zeros((rows, block), kept_type(f)), f)
    if field(f, "in_two"):
        products = product(more_queries, tl.trans(more_keys), products, f)
    score, _ = scored(products, i, j, head, strides, numbers, f)
    if masked:
        kv_segments = 0
        if field(f, "segments"):
            kv_segments = segments_at(head.kv_segments, strides.kv_segments[axes], j, head.kv_len)
        score = tl.where(allowed(i, j, q_segments, kv_segments, head, strides, numbers, f), score, float("-inf"))
    factor = factor_of(numbers, f)
    new_most = tl.maximum(most, tl.max(score, 1) * factor)
    # A row that has seen nothing yet, or weights of -inf only.
    reference = tl.where(new_most == float("-inf"), 0.0, new_most)
    weights = tl.exp2(score * factor - reference[:, None])
    fade = tl.exp2(most - reference)
    total = total * fade + tl.sum(weights, 1)
    if field(f, "dropout"):
        weights = dropped(weights, i, j, seed, head, numbers, f)
    values, more_values = load_keys(
        v,
        strides.v,
        strides.pages[1],
        start,
        head,
        strides.pages[3],
        field(f, "v_head"),
        field(f, "v_head_dim"),
        f,
        block,
        masked,
    )
    weights = weights.to(values.dtype)
    first = product(weights, values, first * fade[:, None], f)
    if field(f, "v_in_two"):
        rest = product(weights, more_values, rest * fade[:, None], f)
    return first, rest, total, new_most


@triton.jit
def _tile(
    q,
    k,
    v,
    out,
    lse,
    extras,
    strides,
    sizes,
    numbers,
    head,
    start,
    i,
    exists,
    first_query,
    last_query,
    part,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    packed: tl.constexpr,
    parts: tl.constexpr,
):
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    queries, more_queries = load_rows(
        query_rows(q, strides.q, sizes, head, start, i, f, packed),
        exists,
        strides.q[axes + 1],
        field(f, "head"),
        field(f, "head_dim"),
        True,
    )
    q_segments = 0
    if field(f, "segments"):
        q_segments = segments_at(head.q_segments, strides.q_segments[axes], i, head.q_len)
    seed = 0
    if field(f, "dropout"):
        seed = tl.load(extras.seed)

    most = tl.full((block_m,), float("-inf"), acc)
    total = tl.zeros((block_m,), acc)
    if field(f, "sinks"):
        sink = tl.load(extras.sinks + counted(head.number, sizes, strides.sinks, 0, axes)).to(acc) * LOG2E
        if parts > 1:
            sink = tl.where(part == 0, sink, float("-inf"))
        most = tl.reshape(tl.zeros((block_m, 1), acc) + sink, (block_m,))
        total = tl.where(most == float("-inf"), 0.0, 1.0).to(acc)
    first = tl.zeros((block_m, width(field(f, "v_head"), 0)), acc)
    rest = tl.zeros((block_m, width(field(f, "v_head"), 1)), acc)

    begin, full_begin, full_end, end = seen_keys(first_query, last_query, head, numbers, f, block_n)
    if field(f, "segments"):
        low, high = segment_range(q_segments, i < head.q_len)
        begin, end = narrowed(begin, end, head.kv_segments, strides.kv_segments[axes], low, high, block_n)
        full_begin = begin
        full_end = begin
    if parts > 1:
        begin, end = part_of(begin, end, part, parts, block_n)
        full_begin = max(full_begin, begin)
        full_end = max(min(full_end, end), full_begin)
    if field(f, "left"):
        for at in range(begin, min(full_begin, end), block_n):
            first, rest, total, most = _step(
                first, rest, total, most, queries, more_queries, at, i, q_segments, seed, k, v,
                head, strides, numbers, f, block_n, True,
            )  # fmt: skip
    if not field(f, "irregular"):
        for at in range(full_begin, full_end, block_n):
            first, rest, total, most = _step(
                first, rest, total, most, queries, more_queries, at, i, q_segments, seed, k, v,
                head, strides, numbers, f, block_n, False,
            )  # fmt: skip
    for at in range(full_end, end, block_n):
        first, rest, total, most = _step(
            first, rest, total, most, queries, more_queries, at, i, q_segments, seed, k, v,
            head, strides, numbers, f, block_n, True,
        )  # fmt: skip

    divisor = tl.where(total == 0, 1.0, total)
    inverse = 1.0 / divisor
    zero = tl.full((), 0, tl.int64)
    if parts > 1:
        out += part * (zero + strides.parts[0])
        lse += part * (zero + strides.parts[1])
    store_rows(
        query_rows(out, strides.out, sizes, head, start, i, f, packed),
        exists,
        strides.out[axes + 1],
        first * inverse[:, None],
        rest * inverse[:, None],
        field(f, "v_head"),
        field(f, "v_head_dim"),
    )
    logs = tl.where(total == 0, float("-inf"), (most + tl.log2(divisor)) * LN2)
    tl.store(query_rows(lse, strides.lse, sizes, head, start, i, f, packed), logs[:, None], mask=exists)


@triton.jit(do_not_specialize=RUNTIME)
def forward_kernel(
    q,
    k,
    v,
    out,
    lse,
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
    packed: tl.constexpr,
    parts: tl.constexpr,
):
    """Write a tile of the result and of the logarithms of its rows' sums.

    If ``packed``, a tile's rows are of all batch elements that share k and v, so that these are read once. Of several
    ``parts`` of the keys each writes a result of its own, in ``out`` and ``lse`` one after the other.
    """
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    outer: tl.constexpr = axes - field(f, "shared")
    part = tl.program_id(1)
    if packed:
        share = shared_size(sizes, f)
        tile, element = task(tl.cdiv(lengths.q * share, block_m), lengths.heads, lengths.together, field(f, "right"))
        anchor = element * share
        row = (tile * block_m + tl.arange(0, block_m))[:, None]
        i = row // share
        head = head_of(anchor + row % share, anchor, extras, strides, sizes, lengths, f)
        start = tile * block_m // share
        last = min(((tile + 1) * block_m - 1) // share, head.q_len - 1)
    else:
        tile, anchor = task(tl.cdiv(lengths.q, block_m), lengths.heads, lengths.together, field(f, "right"))
        element = anchor // shared_size(sizes, f)
        head = head_of(anchor, anchor, extras, strides, sizes, lengths, f)
        start = tile * block_m
        i = (start + tl.arange(0, block_m))[:, None]
        last = min(start + block_m, head.q_len) - 1
    # Beyond the end of a short sequence there is nothing to do.
    if start < head.q_len:
        k += counted(element, sizes, strides.k, 0, outer)
        v += counted(element, sizes, strides.v, 0, outer)
        _tile(
            q, k, v, out, lse, extras, strides, sizes, numbers, head, start, i, i < head.q_len, start, last,
            part, f, block_m, block_n, packed, parts,
        )  # fmt: skip
