"""The forward kernel: a tile of queries against the keys that it sees, with a running maximum and sum of its rows.

After FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 1.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Tile
from einops_fast.backends.triton.attention.general.blocks import blocks_met, part_of, spans_of, visited
from einops_fast.backends.triton.attention.general.loading import (
    added,
    head_of,
    load_keys,
    load_queries,
    no_sums,
    of_element,
    products,
    query_rows,
    shared_size,
    store_queries,
    task,
)
from einops_fast.backends.triton.attention.general.score import (
    LN2,
    LOG2E,
    allowed,
    dropped,
    factor_of,
    key_segments,
    query_segments,
    scored,
    seed_of,
)
from einops_fast.backends.triton.device.offsets import counted, kept_type


class _State(NamedTuple):
    """The highest scores, sums of weights, and sums of values, of the keys so far."""

    most: Any
    total: Any
    sums: Any


@triton.jit
def _step(state, start, tile, call, f: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """Add one block of keys to the sums."""
    i, head, strides = tile.positions, tile.head, call.strides
    start = tl.multiple_of(start, block)
    j = (start + tl.arange(0, block))[None, :]
    keys = load_keys(tile.others[0], strides.k, strides.pages[0], start, head, call, f, "head", block, masked)
    score, _ = scored(products(tile.own, keys, f, "head"), i, j, head, call, f)
    if masked:
        segments = tile.segments, key_segments(j, head, call, f)
        score = tl.where(allowed(i, j, segments, head, call, f), score, float("-inf"))
    factor = factor_of(call, f)
    most = tl.maximum(state.most, tl.max(score, 1) * factor)
    # A row that has seen nothing yet, or weights of -inf only.
    reference = tl.where(most == float("-inf"), 0.0, most)
    weights = tl.exp2(score * factor - reference[:, None])
    fade = tl.exp2(state.most - reference)
    total = state.total * fade + tl.sum(weights, 1)
    if f.dropout:
        weights = dropped(weights, i, j, tile.seed, head, call, f)
    values = load_keys(tile.others[1], strides.v, strides.pages[1], start, head, call, f, "v_head", block, masked)
    sums = added(state.sums, weights.to(values[0].dtype), values, f, "v_head", fade[:, None])
    return _State(most, total, sums)


@triton.jit
def _blocks(
    tile, first, last, part, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, parts: tl.constexpr
):
    """Return the sums of all blocks of keys that queries ``first`` to ``last`` see, or of one part of them."""
    head = tile.head
    most = tl.full((block_m,), float("-inf"), kept_type(f))
    total = tl.zeros((block_m,), kept_type(f))
    if f.sinks:
        place = counted(head.number, call.sizes, call.strides.sinks, 0, f.axes)
        sink = tl.load(call.extras.sinks + place).to(kept_type(f)) * LOG2E
        if parts > 1:
            sink = tl.where(part == 0, sink, float("-inf"))
        most = tl.reshape(tl.zeros((block_m, 1), kept_type(f)) + sink, (block_m,))
        total = tl.where(most == float("-inf"), 0.0, 1.0).to(kept_type(f))
    state = _State(most, total, no_sums(block_m, f, "v_head"))
    exists = tile.positions < head.q_len
    begin, full_begin, full_end, end = blocks_met(first, last, head, tile.segments, exists, call, f, block_n)
    if parts > 1:
        begin, end = part_of(begin, end, part, parts, block_n)
        full_begin = max(full_begin, begin)
        full_end = max(min(full_end, end), full_begin)
    spans = spans_of(begin, full_begin, full_end, end)
    for side in tl.static_range(3):
        if visited(f, side, "left"):
            for at in range(spans[side][0], spans[side][1], block_n):
                state = _step(state, at, tile, call, f, block_n, side != 1)
    return state


@triton.jit(do_not_specialize=RUNTIME)
def forward_kernel(
    q, k, v, out, lse, extras, strides, sizes, lengths, numbers,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, packed: tl.constexpr, parts: tl.constexpr,
):  # fmt: skip
    """Write a tile of the result and of the logarithms of its rows' sums.

    If ``packed``, a tile's rows are of all batch elements that share k and v, so that these are read once. Of several
    ``parts`` of the keys each writes a result of its own, in ``out`` and ``lse`` one after the other.
    """
    call = Call(extras, strides, sizes, lengths, numbers)
    part = tl.program_id(1)
    if packed:
        share = shared_size(sizes, f)
        tile, element = task(tl.cdiv(lengths.q * share, block_m), lengths.heads, lengths.together, f.right)
        anchor = element * share
        row = (tile * block_m + tl.arange(0, block_m))[:, None]
        i = row // share
        head = head_of(anchor + row % share, anchor, call, f)
        start = tile * block_m // share
        last = min(((tile + 1) * block_m - 1) // share, head.q_len - 1)
    else:
        tile, anchor = task(tl.cdiv(lengths.q, block_m), lengths.heads, lengths.together, f.right)
        element = anchor // shared_size(sizes, f)
        head = head_of(anchor, anchor, call, f)
        start = tile * block_m
        i = (start + tl.arange(0, block_m))[:, None]
        last = min(start + block_m, head.q_len) - 1
    # Beyond the end of a short sequence there is nothing to do.
    if start < head.q_len:
        k = of_element(k, strides.k, element, call, f)
        v = of_element(v, strides.v, element, call, f)
        exists = i < head.q_len
        queries = load_queries(q, strides.q, head, start, i, exists, call, f, "head", True, packed)
        own = Tile(queries, i, query_segments(i, head, call, f), seed_of(call, f), head, (k, v))
        state = _blocks(own, start, last, part, call, f, block_m, block_n, parts)
        divisor = tl.where(state.total == 0, 1.0, state.total)
        inverse = 1.0 / divisor
        zero = tl.full((), 0, tl.int64)
        if parts > 1:
            out += part * (zero + strides.parts[0])
            lse += part * (zero + strides.parts[1])
        store_queries(out, strides.out, head, start, i, state.sums, inverse[:, None], call, f, "v_head", packed)
        logs = tl.where(state.total == 0, float("-inf"), (state.most + tl.log2(divisor)) * LN2)
        rows = query_rows(lse, strides.lse, head, start, i, call, f, packed)
        tl.store(rows, logs[:, None], mask=i < head.q_len)


@triton.jit(do_not_specialize=["q_len"])
def combine_kernel(
    parts_out, parts_lse, out, lse, strides, sizes, q_len,
    f: tl.constexpr, parts: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Write one row of the result: that of each part counts by its share in the sum of all weights.

    ``parts_out`` and ``parts_lse`` lie in row-major order, part by part.
    """
    acc: tl.constexpr = kept_type(f)
    zero = tl.full((), 0, tl.int64)
    row = tl.program_id(0) + zero
    element = row // q_len
    i = row % q_len
    rows = strides.parts[1] + zero
    part = tl.arange(0, parts)
    logs = tl.load(parts_lse + row + part * rows)
    most = tl.max(logs, 0)
    reference = tl.where(most == float("-inf"), 0.0, most)
    shares = tl.exp(logs - reference)
    total = tl.sum(shares, 0)
    column = tl.arange(0, columns)
    exists = column < f.v_head_dim
    places = (row + part * rows)[:, None] * f.v_head_dim + column[None, :]
    found = tl.load(parts_out + places, mask=exists[None, :], other=0)
    divisor = tl.where(total == 0, 1.0, total)
    value = tl.sum(found * (shares / divisor)[:, None], 0).to(acc)
    place = out + counted(element, sizes, strides.out, 0, f.axes) + i * (zero + strides.out[f.axes])
    tl.store(place + column * strides.out[f.axes + 1], value.to(out.dtype.element_ty), mask=exists)
    log = tl.where(total == 0, float("-inf"), reference + tl.log(divisor))
    tl.store(lse + counted(element, sizes, strides.lse, 0, f.axes) + i * (zero + strides.lse[f.axes]), log)
