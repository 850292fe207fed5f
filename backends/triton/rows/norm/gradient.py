"""Gradients of layer norm and RMS norm, with those of weight and bias.

These are sums down the columns: every program writes a sum of its own rows, and the sums are added in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import kept_type
from einops_fast.backends.triton.rows.tiles import (
    dropped_tile,
    in_runs,
    in_units,
    kept_tile,
    load_parameter,
    load_parameters,
    load_tile,
    own_rows,
    piece_columns,
    pieces_exist,
    row_place,
    store_tile,
    sums_of_two,
    total_of,
)


@triton.jit
def normalised_tile(h, means, rstds, row, column, there, exists, sizes, strides, f: tl.constexpr):
    """A tile of ``(h - mean) * rstd``, anything where there is no element, and ``rstd``."""
    place = row_place(row, sizes, strides.row, f)
    rstd = tl.load(rstds + place, mask=there, other=0)
    found = load_tile(h, row_place(row, sizes, strides.x, f), column, strides.x, exists, 0.0, f)
    if f.centred:
        mean = tl.load(means + place, mask=there, other=0)
        found -= mean[:, None]
    return found * rstd[:, None], rstd


@triton.jit
def weighted(d, weight, w, f: tl.constexpr):
    """A tile of the gradient of the result, times the weight if there is one."""
    if weight is not None:
        d *= w.to(kept_type(f))
    return d


@triton.jit
def store_norm_gradient(dx, d_residual, gradient, kept, row, column, exists, sizes, strides, drop, f: tl.constexpr):
    """Write a tile of the gradients, from that of what was normalised.

    ``kept`` are the elements of the input that weren't dropped.
    """
    if d_residual is not None:
        place = row_place(row, sizes, strides.d_residual, f)
        store_tile(d_residual, gradient, place, column, strides.d_residual, exists, f)
    if dx is not None:
        if f.dropout:
            gradient = dropped_tile(gradient, kept, drop, f)
        # `out` has the strides of the gradient of the result, `summed` those of the one written here.
        store_tile(dx, gradient, row_place(row, sizes, strides.summed, f), column, strides.summed, exists, f)


@triton.jit
def _store_gradient(
    dx, d_residual, d_summed, normalised, d, inner, mean, rstd, seed, row, start, exists, sizes, strides, drop,
    f: tl.constexpr,
):  # fmt: skip
    """The same from column ``start`` on, from ``inner`` and ``mean``, the means of ``normalised * d`` and of ``d``."""
    block: tl.constexpr = exists.shape[1]
    gradient = d - normalised * inner[:, None]
    if f.centred:
        gradient -= mean[:, None]
    gradient *= rstd[:, None]
    kept = exists
    if f.dropout and dx is not None:
        kept = kept_tile(row_place(row, sizes, strides.place, f), start, strides.place, seed, drop, f, block)
    column = start + tl.arange(0, block)
    if d_summed is not None:
        place = row_place(row, sizes, strides.d_summed, f)
        gradient += load_tile(d_summed, place, column, strides.d_summed, exists, 0.0, f)
    store_norm_gradient(dx, d_residual, gradient, kept, row, column, exists, sizes, strides, drop, f)


@triton.jit
def gradient_tile(d_out, row, column, exists, sizes, strides, f: tl.constexpr):
    """A tile of the gradient of the result."""
    return load_tile(d_out, row_place(row, sizes, strides.out, f), column, strides.out, exists, 0.0, f)


@triton.jit
def _nothing(rows: tl.constexpr, block: tl.constexpr, pieces: tl.constexpr, f: tl.constexpr):
    """Sums of columns that begin with 0, in pieces."""
    found = ()
    for _ in tl.static_range(pieces):
        found += (tl.zeros((rows, block), kept_type(f)),)
    return found


@triton.jit
def _added(sums, tile):
    """One more tile for sums of columns: those of all its rows, or of each of them apart."""
    if sums.shape[0] < tile.shape[0]:
        tile = tl.sum(tile, 0, keep_dims=True)
    return sums + tile


@triton.jit(do_not_specialize=["rows", "tiles"])
def norm_gradient_kernel(
    h,
    means,
    rstds,
    weight,
    seed,
    d_out,
    d_summed,
    dx,
    d_residual,
    part_weight,
    part_bias,
    sizes,
    strides,
    rows,
    columns,
    drop,
    tiles,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    pieces: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the gradient of what was normalised: ``rstd * (d - normalised * mean(normalised * d) - mean(d))``.

    A program has several tiles of whole rows, each in so many pieces, and writes what these add to the gradients of
    weight and bias.
    """
    columns = in_units(columns, f)
    rows = in_runs(rows, f)
    # Threads that have several short rows in pieces exchange what these add up to at the end.
    apart: tl.constexpr = together if pieces > 1 else 1
    to_weight = _nothing(apart, block, pieces, f)
    to_bias = _nothing(apart, block, pieces, f)
    w = load_parameters(weight, strides.weight, columns, block, pieces)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), num_stages=stages):
        row = tile * together + tl.arange(0, together)
        there = row < rows
        exists = pieces_exist(there, columns, block, pieces)
        back = ()
        normalised = ()
        for at in tl.static_range(pieces):
            run = piece_columns(at, block)
            back += (gradient_tile(d_out, row, run, exists[at], sizes, strides, f),)
            found, rstd = normalised_tile(h, means, rstds, row, run, there, exists[at], sizes, strides, f)
            normalised += (found,)
        d = ()
        inners = ()
        more_weight = ()
        more_bias = ()
        for at in tl.static_range(pieces):
            if part_weight is not None:
                more_weight += (_added(to_weight[at], back[at] * normalised[at]),)
            if part_bias is not None:
                more_bias += (_added(to_bias[at], back[at]),)
            d += (weighted(back[at], weight, w[at], f),)
            inners += (normalised[at] * d[at],)
        if part_weight is not None:
            to_weight = more_weight
        if part_bias is not None:
            to_bias = more_bias
        inner = total_of(inners)
        mean = total_of(d)
        if f.centred:
            inner, mean = sums_of_two(inner, mean)
        else:
            inner = tl.sum(inner, 1)
            mean = inner
        inner /= columns
        mean /= columns
        for at in tl.static_range(pieces):
            _store_gradient(
                dx, d_residual, d_summed, normalised[at], d[at], inner, mean, rstd, seed, row, at * block, exists[at],
                sizes, strides, drop, f,
            )  # fmt: skip
    for at in tl.static_range(pieces):
        run = piece_columns(at, block)
        place = tl.program_id(0).to(tl.int64) * columns + run
        if part_weight is not None:
            tl.store(part_weight + place, tl.sum(to_weight[at], 0), mask=run < columns)
        if part_bias is not None:
            tl.store(part_bias + place, tl.sum(to_bias[at], 0), mask=run < columns)


@triton.jit(do_not_specialize=["rows"])
def norm_row_sums_kernel(
    h,
    means,
    rstds,
    weight,
    d_out,
    part_inner,
    part_mean,
    sizes,
    strides,
    rows,
    columns,
    part,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the sums of ``normalised * d`` and of ``d`` over a part of each row, ``(rows, parts)`` each."""
    row, there, columns = own_rows(rows, columns, f, together)
    begin = tl.program_id(1) * part
    end = min(begin + part, columns)
    inner = tl.zeros((together, block), kept_type(f))
    mean = tl.zeros((together, block), kept_type(f))
    for start in tl.range(begin, end, block, num_stages=stages):
        column = start + tl.arange(0, block)
        exists = there[:, None] & (column < end)[None, :]
        back = gradient_tile(d_out, row, column, exists, sizes, strides, f)
        normalised, _ = normalised_tile(h, means, rstds, row, column, there, exists, sizes, strides, f)
        d = weighted(back, weight, load_parameter(weight, strides.weight, column, columns), f)
        inner += normalised * d
        mean += d
    place = row.to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    tl.store(part_inner + place, tl.sum(inner, 1), mask=there)
    tl.store(part_mean + place, tl.sum(mean, 1), mask=there)


@triton.jit(do_not_specialize=["rows", "tiles"])
def norm_columns_kernel(
    h,
    means,
    rstds,
    weight,
    seed,
    d_out,
    d_summed,
    dx,
    d_residual,
    part_weight,
    part_bias,
    part_inner,
    part_mean,
    sizes,
    strides,
    rows,
    columns,
    drop,
    tiles,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    parts: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the gradient of what was normalised in some tiles of rows, and what these add to those of weight and bias.

    For rows too long for the other kernel: their sums have been made, in ``parts``. Any result may be ``None``.
    """
    acc: tl.constexpr = kept_type(f)
    columns = in_units(columns, f)
    rows = in_runs(rows, f)
    start = tl.program_id(0) * block
    column = start + tl.arange(0, block)
    to_weight = tl.zeros((together, block), acc)
    to_bias = tl.zeros((together, block), acc)
    w = load_parameter(weight, strides.weight, column, columns)
    # The last rows first, since the other kernel has left them in the cache.
    for tile in tl.range(tl.program_id(1), tiles, tl.num_programs(1), num_stages=stages):
        row = (tiles - 1 - tile) * together + tl.arange(0, together)
        there = row < rows
        exists = there[:, None] & (column < columns)[None, :]
        back = gradient_tile(d_out, row, column, exists, sizes, strides, f)
        if part_bias is not None:
            to_bias += back
        if part_weight is not None or part_inner is not None:
            normalised, rstd = normalised_tile(h, means, rstds, row, column, there, exists, sizes, strides, f)
            if part_weight is not None:
                to_weight += back * normalised
            if part_inner is not None:
                inner = tl.zeros((together,), acc)
                mean = tl.zeros((together,), acc)
                for at in range(0, parts):
                    place = row.to(tl.int64) * parts + at
                    inner += tl.load(part_inner + place, mask=there, other=0)
                    mean += tl.load(part_mean + place, mask=there, other=0)
                inner /= columns
                mean /= columns
                d = weighted(back, weight, w, f)
                _store_gradient(
                    dx, d_residual, d_summed, normalised, d, inner, mean, rstd, seed, row, start, exists, sizes,
                    strides, drop, f,
                )  # fmt: skip
    place = tl.program_id(1).to(tl.int64) * columns + column
    if part_weight is not None:
        tl.store(part_weight + place, tl.sum(to_weight, 0), mask=column < columns)
    if part_bias is not None:
        tl.store(part_bias + place, tl.sum(to_bias, 0), mask=column < columns)
