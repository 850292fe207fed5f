"""The backward kernels: weights are computed again from the logarithms of their sums, nothing is added atomically.

After FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 2, in two kernels: a program owns a tile
of keys and goes through the queries that see it, or the other way round. Before them comes a kernel for sums of rows.
A bias that lacks axes has one whose programs own a tile of its gradient and sum over what it lacks, in one order.
With p the weights, the gradient of a score is ``p * (do @ v.T - delta)``, ``delta = sum(o * do) - dlse`` for each row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Tile
from einops_fast.backends.triton.attention.general.blocks import blocks_by_position, blocks_met, spans_of, visited
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
    store_keys,
    store_queries,
    task,
)
from einops_fast.backends.triton.attention.general.score import (
    LOG2E,
    allowed,
    dropped,
    factor_of,
    key_segments,
    query_segments,
    scale_of,
    scored,
    seed_of,
)
from einops_fast.backends.triton.device.offsets import counted, kept_type


@triton.jit(do_not_specialize=["rows", "length"])
def delta_kernel(
    out, d_out, lse, d_lse, delta, padded, strides, sizes, rows, length,
    f: tl.constexpr, block: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Write ``delta`` of a tile of rows; 0 for a row that has seen no key. All sequences together are one here.

    If there is ``padded``, also the rows' logarithms as powers of two, infinite where no key was seen, and ``delta``
    once more, for each batch element; both go on to ``length`` as for rows that have seen none.
    """
    acc: tl.constexpr = kept_type(f)
    zero = tl.full((), 0, tl.int64)
    tiles = tl.cdiv(length, block)
    element = tl.program_id(0) // tiles
    start = tl.program_id(0) % tiles * block
    run = (tl.arange(0, block) + zero)[:, None]
    exists = start + run < rows
    column = tl.arange(0, columns)[None, :]
    inside = exists & (column < f.v_head_dim)
    place = counted(element, sizes, strides.out, 0, f.axes) + (start + run) * (zero + strides.out[f.axes])
    o = tl.load(out + place + column * strides.out[f.axes + 1], mask=inside, other=0).to(acc)
    place = counted(element, sizes, strides.d_out, 0, f.axes) + (start + run) * (zero + strides.d_out[f.axes])
    do = tl.load(d_out + place + column * strides.d_out[f.axes + 1], mask=inside, other=0).to(acc)
    total = tl.sum(o * do, 1)[:, None]
    place = counted(element, sizes, strides.lse, 0, f.axes) + (start + run) * (zero + strides.lse[f.axes])
    if d_lse is not None:
        total -= tl.load(d_lse + place, mask=exists, other=0)
    log = tl.load(lse + place, mask=exists, other=float("-inf"))
    total = tl.where(log == float("-inf"), 0.0, total)
    tl.store(delta + place, total, mask=exists)
    if padded is not None:
        into = padded + (element + zero) * 2 * length + start + run
        tl.store(into, tl.where(log == float("-inf"), float("inf"), log * LOG2E))
        tl.store(into + length, total)


@triton.jit
def weights_again(
    products, log, i, j, segments, seed, head, call, f: tl.constexpr, masked: tl.constexpr = True, bias=None
):
    """Return weights, what dropout leaves of them, and the derivative of scores by scaled products.

    ``log`` is what :func:`row_logs` loads, for ``bias`` see :func:`scored`. Tiles have queries along either axis.
    """
    score, derivative = scored(products, i, j, head, call, f, bias)
    weights = tl.exp2(score * factor_of(call, f) - log)
    if masked:
        weights = tl.where(allowed(i, j, segments, head, call, f), weights, 0.0)
    kept = weights
    if f.dropout:
        kept = dropped(weights, i, j, seed, head, call, f)
    return weights, kept, derivative


@triton.jit
def score_gradient(weights, kept, d_weights, delta, f: tl.constexpr):
    """Return the gradient of scores, from what :func:`weights_again` returns and the gradient of the kept weights."""
    if f.dropout:
        gradient = kept * d_weights - weights * delta
    else:
        gradient = weights * (d_weights - delta)
    return gradient


@triton.jit
def score_gradients(
    products, d_weights, rows, i, j, segments, seed, head, call, f: tl.constexpr, masked: tl.constexpr = True
):
    """Return weights (after dropping some), the gradient of scores, and that of scaled products."""
    log, delta = rows
    weights, kept, derivative = weights_again(products, log, i, j, segments, seed, head, call, f, masked)
    gradient = score_gradient(weights, kept, d_weights, delta, f)
    return kept, gradient, gradient * derivative


@triton.jit
def row_logs(lse, head, start, i, exists, call, f: tl.constexpr):
    """Load the logarithms of rows as powers of two, in the shape of ``i``; infinite where no key was seen."""
    log = tl.load(query_rows(lse, call.strides.lse, head, start, i, call, f), mask=exists, other=float("-inf"))
    return tl.where(log == float("-inf"), float("inf"), log * LOG2E)


@triton.jit
def _log_and_delta(lse, delta, head, start, i, call, f: tl.constexpr):
    """Load :func:`row_logs` and ``delta`` of rows."""
    exists = i < head.q_len
    log = row_logs(lse, head, start, i, exists, call, f)
    return log, tl.load(query_rows(delta, call.strides.lse, head, start, i, call, f), mask=exists, other=0)


@triton.jit
def _keys_step(dk, dv, start, tile, call, f: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """Add one block of queries to the gradients of a tile of keys and values. Tiles have keys along their rows."""
    q, d_out, lse, delta = tile.others
    head, strides = tile.head, call.strides
    start = tl.multiple_of(start, block)
    column = (start + tl.arange(0, block))[:, None]
    exists = column < head.q_len
    queries = load_queries(q, strides.q, head, start, column, exists, call, f, "head", masked)
    i = (start + tl.arange(0, block))[None, :]
    rows = _log_and_delta(lse, delta, head, start, i, call, f)
    scores = products(tile.own[0], queries, f, "head")
    d_rows = load_queries(d_out, strides.d_out, head, start, column, exists, call, f, "v_head", masked)
    d_weights = products(tile.own[1], d_rows, f, "v_head")
    segments = query_segments(i, head, call, f), tile.segments
    weights, _, gradient = score_gradients(
        scores, d_weights, rows, i, tile.positions, segments, tile.seed, head, call, f, masked
    )
    dv = added(dv, weights.to(d_rows[0].dtype), d_rows, f, "v_head")
    return added(dk, gradient.to(queries[0].dtype), queries, f, "head"), dv


@triton.jit
def _existing(sums, exists):
    return tl.where(exists, sums[0], 0.0), tl.where(exists, sums[1], 0.0)


@triton.jit(do_not_specialize=RUNTIME)
def keys_kernel(
    q, k, v, d_out, lse, delta, dk, dv, extras, strides, sizes, lengths, numbers,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradients of k and v: sums over queries, and over the batch elements that share k and v."""
    call = Call(extras, strides, sizes, lengths, numbers)
    share = shared_size(sizes, f)
    # The first keys are seen by the most queries.
    tile, element = task(tl.cdiv(lengths.kv, block_n), lengths.heads, lengths.together, False)
    anchor = head_of(element * share, element * share, call, f)
    start = tile * block_n
    # Keys beyond those that a sequence has may be there, in a cache: their gradient is 0.
    held = anchor.kv_len
    if extras.cached is not None:
        held = lengths.kv
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
            own = Tile((keys, values), j, key_segments(j, head, call, f), seed, head, (q, d_out, lse, delta))
            met = blocks_met(start, last, head, own.segments, j < head.kv_len, call, f, block_m, True)
            spans = spans_of(met[0], met[1], met[2], met[3])
            for side in tl.static_range(3):
                if visited(f, side, "right"):
                    for at in range(spans[side][0], spans[side][1], block_m):
                        d_keys, d_values = _keys_step(d_keys, d_values, at, own, call, f, block_m, side != 1)
        d_keys = d_keys[0] * scale_of(call, f), d_keys[1] * scale_of(call, f)
        if extras.cached is not None:
            d_keys = _existing(d_keys, j < anchor.kv_len)
            d_values = _existing(d_values, j < anchor.kv_len)
        rows = anchor.kv_start + start + tl.arange(0, block_n)[:, None]
        exists = j < held
        store_keys(of_element(dk, strides.dk, element, call, f), strides.dk, rows, exists, d_keys, f, "head")
        store_keys(of_element(dv, strides.dv, element, call, f), strides.dv, rows, exists, d_values, f, "v_head")


@triton.jit
def _queries_step(dq, start, tile, d_bias, call, f: tl.constexpr, block: tl.constexpr, masked: tl.constexpr):
    """Add one block of keys to the gradient of a tile of queries."""
    i, head, strides = tile.positions, tile.head, call.strides
    start = tl.multiple_of(start, block)
    j = (start + tl.arange(0, block))[None, :]
    keys = load_keys(tile.others[0], strides.k, 0, start, head, call, f, "head", block, masked)
    values = load_keys(tile.others[1], strides.v, 0, start, head, call, f, "v_head", block, masked)
    scores = products(tile.own[0], keys, f, "head")
    d_weights = products(tile.own[1], values, f, "v_head")
    segments = tile.segments, 0
    if masked:
        segments = tile.segments, key_segments(j, head, call, f)
    _, d_score, gradient = score_gradients(
        scores, d_weights, tile.own[2], i, j, segments, tile.seed, head, call, f, masked
    )
    if d_bias is not None:
        place = i * (tl.full((), 0, tl.int64) + strides.d_bias[f.axes]) + j * strides.d_bias[f.axes + 1]
        tl.store(d_bias + place, d_score.to(d_bias.dtype.element_ty), mask=(i < head.q_len) & (j < head.kv_len))
    return added(dq, gradient.to(keys[0].dtype), keys, f, "head")


@triton.jit(do_not_specialize=RUNTIME)
def queries_kernel(
    q, k, v, d_out, lse, delta, dq, d_bias, extras, strides, sizes, lengths, numbers,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradient of q; and, but for blocks that aren't seen, of that of a bias with all axes."""
    call = Call(extras, strides, sizes, lengths, numbers)
    tile, number = task(tl.cdiv(lengths.q, block_m), lengths.heads, lengths.together, f.right)
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
            bias_base = d_bias + counted(number, sizes, strides.d_bias, 0, f.axes)
        else:
            bias_base = None
        features = (
            load_queries(q, strides.q, head, start, i, exists, call, f, "head"),
            load_queries(d_out, strides.d_out, head, start, i, exists, call, f, "v_head"),
            _log_and_delta(lse, delta, head, start, i, call, f),
        )
        own = Tile(features, i, query_segments(i, head, call, f), seed, head, (k_base, v_base))
        d_queries = no_sums(block_m, f, "head")
        last = min(start + block_m, head.q_len) - 1
        met = blocks_met(start, last, head, own.segments, exists, call, f, block_n)
        spans = spans_of(met[0], met[1], met[2], met[3])
        for side in tl.static_range(3):
            if visited(f, side, "left"):
                for at in range(spans[side][0], spans[side][1], block_n):
                    d_queries = _queries_step(d_queries, at, own, bias_base, call, f, block_n, side != 1)
        store_queries(dq, strides.dq, head, start, i, d_queries, scale_of(call, f), call, f, "head")


@triton.jit
def _bias_tile(total, start, key, number, arrays, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Add the gradient of one tile of one batch element's scores to ``total``."""
    q, k, v, d_out, lse, delta, seed = arrays
    strides = call.strides
    head = head_of(number, number, call, f)
    last = min(start + block_m, head.q_len) - 1
    seen = blocks_by_position(start, last, head, call.numbers, f, block_n)
    if (start < head.q_len) & (key >= seen[0]) & (key < seen[3]):
        element = number // shared_size(call.sizes, f)
        i = (start + tl.arange(0, block_m))[:, None]
        j = (key + tl.arange(0, block_n))[None, :]
        exists = i < head.q_len
        queries = load_queries(q, strides.q, head, start, i, exists, call, f, "head")
        keys = load_keys(of_element(k, strides.k, element, call, f), strides.k, 0, key, head, call, f, "head", block_n)
        scores = products(queries, keys, f, "head")
        d_rows = load_queries(d_out, strides.d_out, head, start, i, exists, call, f, "v_head")
        values = load_keys(
            of_element(v, strides.v, element, call, f), strides.v, 0, key, head, call, f, "v_head", block_n
        )
        d_weights = products(d_rows, values, f, "v_head")
        rows = _log_and_delta(lse, delta, head, start, i, call, f)
        segments = query_segments(i, head, call, f), key_segments(j, head, call, f)
        _, d_score, _ = score_gradients(scores, d_weights, rows, i, j, segments, seed, head, call, f)
        total += d_score
    return total


@triton.jit
def store_sum(d_bias, total, first_row, first_column, call, f: tl.constexpr):
    """Write a tile of the gradient of a bias, summed up along positions that the bias lacks."""
    if not f.bias[0]:
        total = tl.sum(total, 0, keep_dims=True)
    if not f.bias[1]:
        total = tl.sum(total, 1, keep_dims=True)
    strides = call.strides.d_bias
    zero = tl.full((), 0, tl.int64)
    row = first_row + tl.arange(0, total.shape[0])[:, None]
    column = first_column + tl.arange(0, total.shape[1])[None, :]
    exists = tl.full(total.shape, True, tl.int1)
    if f.bias[0]:
        exists = exists & (row < call.lengths.q)
    if f.bias[1]:
        exists = exists & (column < call.lengths.kv)
    offsets = (row + zero) * strides[f.axes] + (column + zero) * strides[f.axes + 1]
    tl.store(d_bias + offsets, total.to(d_bias.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=[*RUNTIME, "query_tiles", "key_tiles", "summed", "parts"])
def bias_kernel(
    q, k, v, d_out, lse, delta, d_bias, extras, strides, sizes,
    kept_sizes, summed_sizes, place, query_tiles, key_tiles, summed, parts,
    lengths, numbers, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    """Write a tile of the bias's gradient, or of part number ``program_id(1)`` of it.

    ``kept_sizes`` are those of the batch axes that the bias has, ``summed_sizes`` of those that it lacks, 1 for the
    others; ``place`` has row-major strides of all. ``summed`` is how many elements share a tile.
    """
    call = Call(extras, strides, sizes, lengths, numbers)
    acc: tl.constexpr = kept_type(f)
    program = tl.program_id(0)
    part = tl.program_id(1)
    key_tile = program % key_tiles
    query_tile = program // key_tiles % query_tiles
    first_number = counted(program // (key_tiles * query_tiles), kept_sizes, place, 0, f.axes)
    arrays = q, k, v, d_out, lse, delta, seed_of(call, f)
    total = tl.zeros((block_m, block_n), acc)
    # What there is to sum over: batch elements × tiles of queries × tiles of keys, as far as the bias lacks them.
    rows = 1
    columns = 1
    if not f.bias[0]:
        rows = tl.cdiv(lengths.q, block_m)
    if not f.bias[1]:
        columns = tl.cdiv(lengths.kv, block_n)
    steps = summed * rows * columns
    length = tl.cdiv(steps, parts)
    for step in range(part * length, min((part + 1) * length, steps)):
        number = first_number + counted(step // (rows * columns), summed_sizes, place, 0, f.axes)
        start = query_tile
        if not f.bias[0]:
            start = step // columns % rows
        key = key_tile
        if not f.bias[1]:
            key = step % columns
        total = _bias_tile(total, start * block_m, key * block_n, number, arrays, call, f, block_m, block_n)
    zero = tl.full((), 0, tl.int64)
    d_bias += counted(first_number, sizes, strides.d_bias, 0, f.axes) + part * (zero + strides.parts[0])
    store_sum(d_bias, total, query_tile * block_m, key_tile * block_n, call, f)
