"""The gradient of a bias that lacks axes: a program owns a tile of it and sums over what it lacks, in one order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import RUNTIME, Call, Lengths, Numbers
from einops_fast.backends.triton.attention.general.backward import log_and_delta, score_gradients
from einops_fast.backends.triton.attention.general.blocks import seen_keys
from einops_fast.backends.triton.attention.general.loading import (
    head_of,
    load_keys,
    load_queries,
    of_element,
    products,
    shared_size,
)
from einops_fast.backends.triton.attention.general.score import key_segments, query_segments, seed_of
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["bias_kernel", "store_sum"]


@triton.constexpr_function
def _varies(features, at):
    return features.bias[at]


@triton.jit
def _tile(total, start, key, number, arrays, call, f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr):
    """Add the gradient of one tile of one batch element's scores to ``total``."""
    q, k, v, d_out, lse, delta, seed = arrays
    strides = call.strides
    head = head_of(number, number, call, f)
    last = min(start + block_m, head.q_len) - 1
    seen = seen_keys(start, last, head, call.numbers, f, block_n)
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
        rows = log_and_delta(lse, delta, head, start, i, call, f)
        segments = query_segments(i, head, call, f), key_segments(j, head, call, f)
        _, d_score, _ = score_gradients(scores, d_weights, rows, i, j, segments, seed, head, call, f)
        total += d_score
    return total


@triton.jit
def store_sum(d_bias, total, first_row, first_column, call, f: tl.constexpr):
    """Write a tile of the gradient of a bias, summed up along positions that the bias lacks."""
    if not _varies(f, 0):
        total = tl.sum(total, 0, keep_dims=True)
    if not _varies(f, 1):
        total = tl.sum(total, 1, keep_dims=True)
    axes: tl.constexpr = field(f, "axes")
    strides = call.strides.d_bias
    zero = tl.full((), 0, tl.int64)
    row = first_row + tl.arange(0, total.shape[0])[:, None]
    column = first_column + tl.arange(0, total.shape[1])[None, :]
    exists = tl.full(total.shape, True, tl.int1)
    if _varies(f, 0):
        exists = exists & (row < call.lengths.q)
    if _varies(f, 1):
        exists = exists & (column < call.lengths.kv)
    offsets = (row + zero) * strides[axes] + (column + zero) * strides[axes + 1]
    tl.store(d_bias + offsets, total.to(d_bias.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=[*RUNTIME, "query_tiles", "key_tiles", "summed", "parts"])
def bias_kernel(
    q, k, v, d_out, lse, delta, d_bias, extras, strides, sizes,
    kept_sizes, summed_sizes, place, query_tiles, key_tiles, summed, parts,
    q_len, kv_len, heads, together, q_rows, kv_rows, scale, cap, left, right, drop,
    f: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
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
    call = Call(extras, strides, sizes, lengths, Numbers(scale, cap, left, right, drop))
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    program = tl.program_id(0)
    part = tl.program_id(1)
    key_tile = program % key_tiles
    query_tile = program // key_tiles % query_tiles
    first_number = counted(program // (key_tiles * query_tiles), kept_sizes, place, 0, axes)
    arrays = q, k, v, d_out, lse, delta, seed_of(call, f)
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
        total = _tile(total, start * block_m, key * block_n, number, arrays, call, f, block_m, block_n)
    zero = tl.full((), 0, tl.int64)
    d_bias += counted(first_number, sizes, strides.d_bias, 0, axes) + part * (zero + strides.parts[0])
    store_sum(d_bias, total, query_tile * block_m, key_tile * block_n, call, f)
