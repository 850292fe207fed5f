"""Layer norm and RMS norm along rows, after dropout and the sum with a residual if need be.

With ``h = dropout(x) + residual``, ``y = (h - mean) * rstd * weight + bias``; RMS norm has no mean. A whole row in one
block is read once; of a longer one, each place of a block keeps a mean and squares of its own, by the formula of
Welford (1962, https://doi.org/10.1080/00401706.1962.10490022), and these are brought together by that of Chan, Golub
and LeVeque (1983, https://doi.org/10.1080/00031305.1983.10483115).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import kept_type
from einops_fast.backends.triton.rows.rows import RowFeatures
from einops_fast.backends.triton.rows.tiles import (
    dropped_tile,
    kept_tile,
    last_block,
    load_parameter,
    load_parameters,
    load_tile,
    own_rows,
    piece_columns,
    pieces_exist,
    row_place,
    store_tile,
    total_of,
)


@dataclass(frozen=True)
class NormFeatures(RowFeatures):
    """What the kernels are specialised for, apart from the tiles; the mean is taken off if ``centred``."""

    eps: float = 0.0
    centred: bool = True


class NormStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the columns; ``weight`` and ``bias`` along columns.

    ``row`` are those of the statistics, ``place`` those of the number of an element in C order.
    """

    x: Any
    out: Any
    row: Any
    residual: Any
    summed: Any
    place: Any
    d_summed: Any
    d_residual: Any
    weight: tuple[int]
    bias: tuple[int]


@triton.jit
def norm_sum(h, more, residual, summed, kept, drop, f: tl.constexpr):
    """What is normalised, rounded as it is kept, from tiles of ``x`` and, if there is one, of the residual.

    ``kept`` are the elements of ``x`` that aren't dropped.
    """
    h = h.to(kept_type(f))
    if f.dropout:
        h = dropped_tile(h, kept, drop, f)
    if residual is not None:
        h += more.to(kept_type(f))
    if summed is not None:
        h = h.to(summed.dtype.element_ty).to(kept_type(f))
    return h


@triton.jit
def _inputs(x, residual, summed, seed, row, start, exists, sizes, strides, drop, f: tl.constexpr):
    """A tile of what is normalised, from column ``start`` on."""
    block: tl.constexpr = exists.shape[1]
    kept = exists
    if f.dropout:
        kept = kept_tile(row_place(row, sizes, strides.place, f), start, strides.place, seed, drop, f, block)
    column = start + tl.arange(0, block)
    h = load_tile(x, row_place(row, sizes, strides.x, f), column, strides.x, exists, 0.0, f)
    more = h
    if residual is not None:
        place = row_place(row, sizes, strides.residual, f)
        more = load_tile(residual, place, column, strides.residual, exists, 0.0, f)
    return norm_sum(h, more, residual, summed, kept, drop, f)


@triton.jit
def store_norm(out, h, mean, rstd, weight, bias, w, b, row, column, exists, sizes, strides, f: tl.constexpr):
    """Write a tile of the result; ``w`` and ``b`` are what there is of weight and bias for it."""
    y = (h - mean[:, None]) * rstd[:, None]
    if weight is not None:
        y *= w.to(kept_type(f))
    if bias is not None:
        y += b.to(kept_type(f))
    store_tile(out, y, row_place(row, sizes, strides.out, f), column, strides.out, exists, f)


@triton.jit
def _merged(count, mean, squares, new_count, new_mean, new_squares, f: tl.constexpr):
    """Number, mean and sum of squares (about the mean, if centred) of two parts of a row."""
    both = count + new_count
    squares += new_squares
    if f.centred:
        apart = new_mean - mean
        share = (new_count / both).to(kept_type(f))
        squares += apart * apart * (share * count)
        mean += apart * share
    return both, mean, squares


@triton.jit
def _mean(total, count, f: tl.constexpr):
    """Sums of so many elements, divided exactly.

    An approximate division would be fused with a subtraction of the mean where the mean isn't stored as well, and the
    result would have other bits.
    """
    if f.double:
        found = total / count
    else:
        found = tl.div_rn(total, tl.cast(count, tl.float32))
    return found


@triton.jit
def norm_statistics(h, exists, count, zeros, f: tl.constexpr):
    """Mean and sum of squares of ``count`` elements in each row; the mean is ``zeros`` if not centred.

    ``h`` and ``exists`` are tuples of tiles, side by side.
    """
    mean = zeros
    if f.centred:
        mean = _mean(tl.sum(total_of(h), 1), count, f)
    squares = ()
    for at in tl.static_range(len(h)):
        apart = h[at]
        if f.centred:
            apart = tl.where(exists[at], apart - mean[:, None], 0.0)
        squares += (apart * apart,)
    return mean, tl.sum(total_of(squares), 1)


@triton.jit
def _one_more(h, exists, count, mean, squares, f: tl.constexpr):
    """Means and sums of squares of each place of a tile, of which this is number ``count``."""
    if f.centred:
        apart = tl.where(exists, h - mean, 0.0)
        mean += apart / count
        squares += apart * (h - mean)
    else:
        squares += h * h
    return mean, squares


@triton.jit
def _of_rows(mean, squares, begin, end, f: tl.constexpr):
    """Mean and sum of squares of rows from those of the places of their tiles."""
    if f.centred:
        block: tl.constexpr = squares.shape[1]
        counts = (tl.maximum(end - begin - tl.arange(0, block) + (block - 1), 0) // block).to(kept_type(f))[None, :]
        of_rows = _mean(tl.sum(mean * counts, 1), end - begin, f)
        apart = mean - of_rows[:, None]
        total = tl.sum(squares + apart * apart * counts, 1)
    else:
        of_rows = tl.zeros((squares.shape[0],), kept_type(f))
        total = tl.sum(squares, 1)
    return of_rows, total


@triton.jit
def _of_whole_rows(
    x, residual, weight, bias, seed, out, summed, row, there, sizes, strides, columns, drop, f: tl.constexpr,
    block: tl.constexpr, pieces: tl.constexpr,
):  # fmt: skip
    """Write the norm of rows that are kept, in tiles side by side; gives their means and ``rstd``."""
    # Before anything waits; of long rows there is no room for them.
    early: tl.constexpr = block * pieces <= 4096
    exists = pieces_exist(there, columns, block, pieces)
    w = ()
    b = ()
    if early:
        w = load_parameters(weight, strides.weight, columns, block, pieces)
        b = load_parameters(bias, strides.bias, columns, block, pieces)
    h = ()
    for at in tl.static_range(pieces):
        h += (_inputs(x, residual, summed, seed, row, at * block, exists[at], sizes, strides, drop, f),)
    if summed is not None:
        for at in tl.static_range(pieces):
            column = piece_columns(at, block)
            place = row_place(row, sizes, strides.summed, f)
            store_tile(summed, h[at], place, column, strides.summed, exists[at], f)
    mean, squares = norm_statistics(h, exists, columns, tl.zeros(there.shape, kept_type(f)), f)
    rstd = 1.0 / tl.sqrt(squares / columns + f.eps)
    if not early:
        w = load_parameters(weight, strides.weight, columns, block, pieces)
        b = load_parameters(bias, strides.bias, columns, block, pieces)
    for at in tl.static_range(pieces):
        column = piece_columns(at, block)
        store_norm(
            out, h[at], mean, rstd, weight, bias, w[at], b[at], row, column, exists[at], sizes, strides, f
        )  # fmt: skip
    return mean, rstd


@triton.jit(do_not_specialize=["rows"])
def norm_kernel(
    x,
    residual,
    weight,
    bias,
    seed,
    out,
    summed,
    means,
    rstds,
    part_means,
    part_squares,
    sizes,
    strides,
    rows,
    columns,
    part,
    drop,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    whole: tl.constexpr,
    pieces: tl.constexpr,
    parts: tl.constexpr,
    step: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the norm of ``together`` rows or of a part of them, what was normalised, and the statistics of each row.

    What nobody wants of these is ``None``.

    Whole rows are kept in so many pieces of a block each. With several parts there are two steps: the first writes the
    mean and the squares of every part, ``(rows, parts)`` each, the second reads them.
    """
    acc: tl.constexpr = kept_type(f)
    row, there, columns = own_rows(rows, columns, f, together)
    run = tl.arange(0, block)
    mean = tl.zeros((together,), acc)
    squares = tl.zeros((together,), acc)
    begin = tl.program_id(1) * part
    end = min(begin + part, columns)
    if whole:
        mean, rstd = _of_whole_rows(
            x, residual, weight, bias, seed, out, summed, row, there, sizes, strides, columns, drop, f, block, pieces
        )
    else:
        count = tl.zeros((1,), acc)
        if step < 2:
            means_of_places = tl.zeros((together, block), acc)
            squares_of_places = tl.zeros((together, block), acc)
            for start in tl.range(begin, end, block, num_stages=stages):
                column = start + run
                exists = there[:, None] & (column < end)[None, :]
                h = _inputs(x, residual, summed, seed, row, start, exists, sizes, strides, drop, f)
                if summed is not None:
                    place = row_place(row, sizes, strides.summed, f)
                    store_tile(summed, h, place, column, strides.summed, exists, f)
                count += 1.0
                means_of_places, squares_of_places = _one_more(
                    h, exists, count[:, None], means_of_places, squares_of_places, f
                )
            mean, squares = _of_rows(means_of_places, squares_of_places, begin, end, f)
        else:
            for at in range(0, parts):
                here = min(part, columns - at * part)
                new_mean = tl.load(part_means + row * parts + at, mask=there, other=0)
                new_squares = tl.load(part_squares + row * parts + at, mask=there, other=0)
                count, mean, squares = _merged(count, mean, squares, here, new_mean, new_squares, f)
        rstd = 1.0 / tl.sqrt(squares / columns + f.eps)
        if step == 1:
            tl.store(part_means + row * parts + tl.program_id(1), mean, mask=there)
            tl.store(part_squares + row * parts + tl.program_id(1), squares, mask=there)
        else:
            if summed is not None:
                # Other threads may read what these have written.
                tl.debug_barrier()
            # Backwards, since what was read last is still in the caches.
            last = last_block(begin, end, block)
            for back in tl.range(0, end - begin, block, num_stages=stages):
                column = last - back + run
                exists = there[:, None] & (column < end)[None, :]
                w = load_parameter(weight, strides.weight, column, columns)
                b = load_parameter(bias, strides.bias, column, columns)
                if summed is not None:
                    place = row_place(row, sizes, strides.summed, f)
                    h = load_tile(summed, place, column, strides.summed, exists, 0.0, f)
                else:
                    h = _inputs(x, residual, summed, seed, row, last - back, exists, sizes, strides, drop, f)
                store_norm(out, h, mean, rstd, weight, bias, w, b, row, column, exists, sizes, strides, f)
    if step != 1 and rstds is not None:
        # Of parts, the first.
        once = there & (tl.program_id(1) == 0)
        place = row_place(row, sizes, strides.row, f)
        tl.store(rstds + place, rstd, mask=once)
        if means is not None:
            tl.store(means + place, mean, mask=once)
