"""The gradient of a bias that lacks axes: a program owns a tile of it and sums over what it lacks, in one order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import seen_keys
from einops_fast.backends.triton.attention.general.loading import (
    head_of,
    load_keys,
    load_rows,
    product,
    query_rows,
    shared_size,
)
from einops_fast.backends.triton.attention.general.score import segments_at
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["bias_kernel", "store_sum"]


@triton.constexpr_function
def _varies(features, at):
    return features.bias[at]


@triton.jit
def _tile(
    total,
    start,
    key,
    number,
    seed,
    arrays,
    extras,
    strides,
    sizes,
    lengths,
    numbers,
    f: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
):
    """``total`` with the gradient of one tile of one batch element's scores."""
    axes: tl.constexpr = field(f, "axes")
    outer: tl.constexpr = axes - field(f, "shared")
    acc: tl.constexpr = kept_type(f)
    q, k, v, d_out, lse, delta = arrays
    head = head_of(number, number, extras, strides, sizes, lengths, f)
    last = min(start + block_m, head.q_len) - 1
    seen = seen_keys(start, last, head, numbers, f, block_n)
    if (start < head.q_len) & (key >= seen[0]) & (key < seen[3]):
        element = number // shared_size(sizes, f)
        i = (start + tl.arange(0, block_m))[:, None]
        j = (key + tl.arange(0, block_n))[None, :]
        exists = i < head.q_len
        queries, more_queries = load_rows(
            query_rows(q, strides.q, sizes, head, start, i, f, False),
            exists, strides.q[axes + 1], field(f, "head"), field(f, "head_dim"), True,
        )  # fmt: skip
        keys, more_keys = load_keys(
            k + counted(element, sizes, strides.k, 0, outer), strides.k, 0, key, head, strides.pages[3],
            field(f, "head"), field(f, "head_dim"), f, block_n, True,
        )  # fmt: skip
        products = product(queries, tl.trans(keys), tl.zeros((block_m, block_n), acc), f)
        if field(f, "in_two"):
            products = product(more_queries, tl.trans(more_keys), products, f)
        d_rows, more_d_rows = load_rows(
            query_rows(d_out, strides.d_out, sizes, head, start, i, f, False),
            exists, strides.d_out[axes + 1], field(f, "v_head"), field(f, "v_head_dim"), True,
        )  # fmt: skip
        values, more_values = load_keys(
            v + counted(element, sizes, strides.v, 0, outer), strides.v, 0, key, head, strides.pages[3],
            field(f, "v_head"), field(f, "v_head_dim"), f, block_n, True,
        )  # fmt: skip
        d_weights = product(d_rows, tl.trans(values), tl.zeros((block_m, block_n), acc), f)
        if field(f, "v_in_two"):
            d_weights = product(more_d_rows, tl.trans(more_values), d_weights, f)
        log, row_delta = log_and_delta(lse, delta, strides, sizes, head, start, i, exists, f)
        q_segments = 0
        kv_segments = 0
        if field(f, "segments"):
            q_segments = segments_at(head.q_segments, strides.q_segments[axes], i, head.q_len)
            kv_segments = segments_at(head.kv_segments, strides.kv_segments[axes], j, head.kv_len)
        found = score_gradients(
            products, d_weights, log, row_delta, i, j, q_segments, kv_segments, seed,
            head, strides, numbers, f, True,
        )  # fmt: skip
        total += found[1]
    return total


@triton.jit
def store_sum(d_bias, total, first_row, first_column, strides, lengths, f: tl.constexpr):
    """Write a tile of the gradient of a bias, summed up along positions that the bias lacks."""
    if not _varies(f, 0):
        total = tl.sum(total, 0, keep_dims=True)
    if not _varies(f, 1):
        total = tl.sum(total, 1, keep_dims=True)
    axes: tl.constexpr = field(f, "axes")
    zero = tl.full((), 0, tl.int64)
    row = first_row + tl.arange(0, total.shape[0])[:, None]
    column = first_column + tl.arange(0, total.shape[1])[None, :]
    exists = tl.full(total.shape, True, tl.int1)
    if _varies(f, 0):
        exists = exists & (row < lengths.q)
    if _varies(f, 1):
        exists = exists & (column < lengths.kv)
    offsets = (row + zero) * strides.d_bias[axes] + (column + zero) * strides.d_bias[axes + 1]
    tl.store(d_bias + offsets, total.to(d_bias.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=[*RUNTIME, "query_tiles", "key_tiles", "summed", "parts"])
def bias_kernel(
    q,
    k,
    v,
    d_out,
    lse,
    delta,
    d_bias,
    extras,
    strides,
    sizes,
    kept_sizes,
    summed_sizes,
    place,
    query_tiles,
    key_tiles,
    summed,
    parts,
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
    """Write a tile of the bias's gradient, or of part number ``program_id(1)`` of it.

    Args:
        kept_sizes: of the batch axes that the bias has; 1 for the others.
        summed_sizes: of those that it lacks; 1 for the others.
        place: row-major strides of the batch axes.
        query_tiles, key_tiles: of the bias.
        summed: batch elements to sum over.
        parts: in how many parts to sum.
    """
    lengths = Lengths(q_len, kv_len, heads, together, q_rows, kv_rows)
    numbers = Numbers(scale, cap, left, right, drop)
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    program = tl.program_id(0)
    part = tl.program_id(1)
    key_tile = program % key_tiles
    query_tile = program // key_tiles % query_tiles
    first_number = counted(program // (key_tiles * query_tiles), kept_sizes, place, 0, axes)
    seed = 0
    if field(f, "dropout"):
        seed = tl.load(extras.seed)
    total = tl.zeros((block_m, block_n), acc)
    # What there is to sum over: batch elements × tiles of queries × tiles of keys, as far as the bias lacks them.
    rows = 1
    columns = 1
    if not _varies(f, 0):
        rows = tl.cdiv(q_len, block_m)
    if not _varies(f, 1):
        columns = tl.cdiv(kv_len, block_n)
    steps = summed * rows * columns
    length = tl.cdiv(steps, parts)
    for step in range(part * length, min((part + 1) * length, steps)):
        number = first_number + counted(step // (rows * columns), summed_sizes, place, 0, axes)
        start = query_tile
        if not _varies(f, 0):
            start = step // columns % rows
        key = key_tile
        if not _varies(f, 1):
            key = step % columns
        total = _tile(
            total, start * block_m, key * block_n, number, seed, (q, k, v, d_out, lse, delta), extras, strides,
            sizes, lengths, numbers, f, block_m, block_n,
        )  # fmt: skip
    zero = tl.full((), 0, tl.int64)
    d_bias += counted(first_number, sizes, strides.d_bias, 0, axes) + part * (zero + strides.parts[0])
    store_sum(d_bias, total, query_tile * block_m, key_tile * block_n, strides, lengths, f)
