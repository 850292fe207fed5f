"""Softmax along rows, with masks, in one of three ways.

A whole row in one block is read once. A longer one is read twice: first for its maximum and the sum of its
exponentials, both kept up to date while it is read (Milakov and Gimelshein, 2018, https://arxiv.org/abs/1805.02867),
then for the result. Where there are too few rows for all processors, parts of a row have programs of their own, which
the second kernel brings together in a fixed order.
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
    body_place,
    cut_row,
    edges,
    element_place,
    exponential,
    exponentials,
    exponentials_of_rows,
    last_block,
    load_tile,
    lowest,
    most_of,
    own_rows,
    piece_columns,
    pieces_exist,
    row_place,
    store_tile,
    total_of,
    within,
)


@dataclass(frozen=True)
class SoftmaxFeatures(RowFeatures):
    """What the kernels are specialised for, apart from the tiles.

    One mask is ``added`` to the scores, or one is ``hiding`` elements; the scale is for float64 only.
    """

    log: bool = False
    added: bool = False
    hiding: bool = False
    causal: bool = False
    scale: float = 1.0

    @property
    def masked(self) -> bool:
        """Whether a row in which nothing takes part gives zeros; without a mask it is NaN, as in torch."""
        return self.added or self.hiding or self.causal


class SoftmaxStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the columns. ``position``: 1 along the queries."""

    x: Any
    out: Any
    mask: Any
    position: Any
    d_out: Any


@triton.jit
def scaled(value, scale, f: tl.constexpr):
    """Scores, or their gradient, times the factor of the scores."""
    # Arguments are float32, and so is what a function returns: in float64 the number itself has to stand here.
    if f.double:
        value = value * f.scale
    else:
        value = value * scale
    return value


@triton.jit
def _seen(row, column, mask, exists, sizes, strides, shift, f: tl.constexpr):
    """Which elements of a tile take part."""
    seen = exists
    if f.hiding:
        place = element_place(row_place(row, sizes, strides.mask, f), column, strides.mask, f)
        seen = seen & (tl.load(mask + place, mask=exists, other=0) != 0)
    if f.causal:
        position = row_place(row, sizes, strides.position, f)
        seen = seen & (column[None, :] <= position[:, None] + shift)
    return seen


@triton.jit
def softmax_scores(x, mask, place, row, column, exists, sizes, strides, shift, scale, f: tl.constexpr):
    """A tile of scores, ``-inf`` where an element takes no part; ``place`` is where columns count from in ``x``."""
    readable = exists
    if f.causal:
        # What is hidden isn't read, but for what is loaded together with something else.
        seen_up_to = (row_place(row, sizes, strides.position, f) + shift).to(tl.int32)
        readable = exists & ((column // f.group * f.group)[None, :] <= seen_up_to[:, None])
    score = load_tile(x, place, column, strides.x, readable, float("-inf"), f)
    score = scaled(score, scale, f)
    if f.added:
        score += load_tile(mask, row_place(row, sizes, strides.mask, f), column, strides.mask, exists, 0.0, f)
    if f.masked:
        score = tl.where(_seen(row, column, mask, exists, sizes, strides, shift, f), score, float("-inf"))
    return score


@triton.jit
def softmax_reference(most):
    """What is taken off before exponentials: the maximum, but 0 of rows in which nothing takes part."""
    return tl.where(most == float("-inf"), 0.0, most)


@triton.jit
def softmax_finished(e, score, reference, total, f: tl.constexpr):
    """Softmax of a tile, from ``e = exp(score - reference)`` or from ``score``, and the sums of its rows."""
    if f.masked:
        total = tl.where(total == 0, 1.0, total)
    if f.log:
        found = score - reference[:, None] - tl.log(total)[:, None]
    else:
        found = e * (1.0 / total)[:, None]
    return found


@triton.jit
def softmax_of_tile(score, most, total, f: tl.constexpr):
    """Softmax of a tile from the maxima and sums of its rows."""
    reference = softmax_reference(most)
    return softmax_finished(exponential(score - reference[:, None]), score, reference, total, f)


@triton.jit
def _merged(most, total, new_most, new_total):
    """Maximum and sum of two parts of a row."""
    both = tl.maximum(most, new_most)
    reference = tl.where(both == float("-inf"), 0.0, both)
    return both, total * tl.exp(most - reference) + new_total * tl.exp(new_most - reference)


@triton.jit
def _edge_scores(x, place, head, body, columns, begin, strides, scale, f: tl.constexpr):
    """The scores on both sides of a row's body, which go with the first part of it."""
    column, exists = edges(head, body, columns, f)
    return scaled(load_tile(x, place, column, strides.x, exists & (begin == 0), float("-inf"), f), scale, f)


@triton.jit
def store_edges(out, value, place, head, body, columns, begin, strides, f: tl.constexpr):
    """Write what is on both sides of a row's body."""
    column, exists = edges(head, body, columns, f)
    store_tile(out, value, place, column, strides, exists & (begin == 0), f)


@triton.jit(do_not_specialize=["rows", "shift"])
def softmax_kernel(
    x,
    mask,
    out,
    maxima,
    sums,
    sizes,
    strides,
    rows,
    columns,
    part,
    shift,
    scale,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    whole: tl.constexpr,
    pieces: tl.constexpr,
    parts: tl.constexpr,
    step: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the softmax of ``together`` rows, or of a part of them.

    Whole rows are kept in so many pieces of a block each. With several parts there are two steps: the first writes the
    maximum and the sum of every part, ``(rows, parts)`` each, the second reads them.
    """
    acc: tl.constexpr = kept_type(f)
    row, there, columns = own_rows(rows, columns, f, together)
    run = tl.arange(0, block)
    most = tl.full((together,), float("-inf"), acc)
    total = tl.zeros((together,), acc)
    place = row_place(row, sizes, strides.x, f)
    out_place = row_place(row, sizes, strides.out, f)
    if whole:
        exists = pieces_exist(there, columns, block, pieces)
        scores = ()
        for at in tl.static_range(pieces):
            column = piece_columns(at, block)
            scores += (softmax_scores(x, mask, place, row, column, exists[at], sizes, strides, shift, scale, f),)
        reference = softmax_reference(tl.max(most_of(scores), 1))
        e = ()
        for at in tl.static_range(pieces):
            e += (exponential(scores[at] - reference[:, None]),)
        total = tl.sum(total_of(e), 1)
        for at in tl.static_range(pieces):
            result = softmax_finished(e[at], scores[at], reference, total, f)
            store_tile(out, result, out_place, piece_columns(at, block), strides.out, exists[at], f)
    else:
        head, body = cut_row(place, columns, f)
        from_head = body_place(place, head, f)
        begin = tl.program_id(1) * part
        end = min(begin + part, body)
        if step < 2:
            reach = end
            if f.causal:
                seen_up_to = row_place(row, sizes, strides.position, f) + shift
                reach = min(end, tl.max(tl.where(there, seen_up_to, -1), 0).to(tl.int32) + 1)
            totals = tl.zeros((together, block // f.group), acc)
            most_of_groups = totals + lowest(f)
            for start in tl.range(begin, reach, block, num_stages=stages):
                column = start + run
                exists = there[:, None] & within(column, end, f)
                score = softmax_scores(x, mask, from_head, row, column, exists, sizes, strides, shift, scale, f)
                most_of_groups, totals = exponentials(score, most_of_groups, totals)
            most, total = exponentials_of_rows(most_of_groups, totals)
            if f.vector > 0:
                scores = _edge_scores(x, place, head, body, columns, begin, strides, scale, f)
                nothing = tl.zeros((together, 2 * f.vector), acc)
                found, more = exponentials(scores, nothing + lowest(f), nothing)
                found, more = exponentials_of_rows(found, more)
                most, total = _merged(most, total, found, more)
        else:
            for at in range(0, parts):
                found = tl.load(maxima + row * parts + at, mask=there, other=float("-inf"))
                most, total = _merged(most, total, found, tl.load(sums + row * parts + at, mask=there, other=0))
        if step == 1:
            tl.store(maxima + row * parts + tl.program_id(1), most, mask=there)
            tl.store(sums + row * parts + tl.program_id(1), total, mask=there)
        else:
            # Backwards, since what was read last is still in the caches.
            last = last_block(begin, end, block)
            for back in tl.range(0, end - begin, block, num_stages=stages):
                column = last - back + run
                exists = there[:, None] & within(column, end, f)
                score = softmax_scores(x, mask, from_head, row, column, exists, sizes, strides, shift, scale, f)
                to = body_place(out_place, head, f)
                store_tile(out, softmax_of_tile(score, most, total, f), to, column, strides.out, exists, f)
            if f.vector > 0:
                scores = _edge_scores(x, place, head, body, columns, begin, strides, scale, f)
                found = softmax_of_tile(scores, most, total, f)
                store_edges(out, found, out_place, head, body, columns, begin, strides.out, f)
