"""The gradient of softmax along rows, in the ways and the steps of :mod:`kernel`."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import kept_type
from einops_fast.backends.triton.rows.softmax.kernel import scaled, store_edges
from einops_fast.backends.triton.rows.tiles import (
    body_place,
    cut_row,
    edges,
    exponential,
    last_block,
    load_tile,
    own_rows,
    piece_columns,
    pieces_exist,
    row_place,
    store_tile,
    total_of,
    within,
)


@triton.jit
def softmax_pair(out, d_out, places, column, exists, strides, f: tl.constexpr):
    """A tile of the result and of its gradient; ``places`` are where their columns count from."""
    if f.log:
        nothing = float("-inf")
    else:
        nothing = 0.0
    y = load_tile(out, places[0], column, strides.out, exists, nothing, f)
    d = load_tile(d_out, places[1], column, strides.d_out, exists, 0.0, f)
    if f.log and f.masked:
        # What is hidden is -inf whatever the scores are.
        d = tl.where(y == float("-inf"), 0.0, d)
    return y, d


@triton.jit
def _edge_pair(out, d_out, places, head, body, columns, begin, strides, f: tl.constexpr):
    """The same on both sides of a row's body."""
    column, exists = edges(head, body, columns, f)
    return softmax_pair(out, d_out, places, column, exists & (begin == 0), strides, f)


@triton.jit
def softmax_summand(y, d, f: tl.constexpr):
    """What each place adds to the sum of its row."""
    if f.log:
        found = d
    else:
        found = y * d
    return found


@triton.jit
def softmax_gradient_tile(y, d, total, scale, f: tl.constexpr):
    """The gradient of a tile of scores."""
    if f.log:
        gradient = d - exponential(y) * total[:, None]
    else:
        gradient = y * (d - total[:, None])
    return scaled(gradient, scale, f)


@triton.jit(do_not_specialize=["rows"])
def softmax_gradient_kernel(
    out,
    d_out,
    dx,
    totals,
    sizes,
    strides,
    rows,
    columns,
    part,
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
    """Write the gradient of the scores: ``y * (dy - sum(y * dy))``, of the logarithm ``dy - exp(y) * sum(dy)``.

    What a mask hides has none; that shows in ``y``. The steps are those of
    :func:`~einops_fast.backends.triton.rows.softmax.kernel.softmax_kernel`. ``strides.x`` are those of ``dx``.
    """
    acc: tl.constexpr = kept_type(f)
    row, there, columns = own_rows(rows, columns, f, together)
    run = tl.arange(0, block)
    place = row_place(row, sizes, strides.x, f)
    places = row_place(row, sizes, strides.out, f), row_place(row, sizes, strides.d_out, f)
    total = tl.zeros((together,), acc)
    if whole:
        exists = pieces_exist(there, columns, block, pieces)
        pairs = ()
        summands = ()
        for at in tl.static_range(pieces):
            pairs += (softmax_pair(out, d_out, places, piece_columns(at, block), exists[at], strides, f),)
            summands += (softmax_summand(pairs[at][0], pairs[at][1], f),)
        total = tl.sum(total_of(summands), 1)
        for at in tl.static_range(pieces):
            gradient = softmax_gradient_tile(pairs[at][0], pairs[at][1], total, scale, f)
            store_tile(dx, gradient, place, piece_columns(at, block), strides.x, exists[at], f)
    else:
        head, body = cut_row(place, columns, f)
        from_head = body_place(places[0], head, f), body_place(places[1], head, f)
        begin = tl.program_id(1) * part
        end = min(begin + part, body)
        if step < 2:
            sums = tl.zeros((together, block), acc)
            last = last_block(begin, end, block)
            for back in tl.range(0, end - begin, block, num_stages=stages):
                column = last - back + run
                exists = there[:, None] & within(column, end, f)
                y, d = softmax_pair(out, d_out, from_head, column, exists, strides, f)
                sums += softmax_summand(y, d, f)
            total = tl.sum(sums, 1)
            if f.vector > 0:
                edge, d_edge = _edge_pair(out, d_out, places, head, body, columns, begin, strides, f)
                total += tl.sum(softmax_summand(edge, d_edge, f), 1)
        else:
            for at in range(0, parts):
                total += tl.load(totals + row * parts + at, mask=there, other=0)
        if step == 1:
            tl.store(totals + row * parts + tl.program_id(1), total, mask=there)
        else:
            last = last_block(begin, end, block)
            for back in tl.range(0, end - begin, block, num_stages=stages):
                column = last - back + run
                exists = there[:, None] & within(column, end, f)
                y, d = softmax_pair(out, d_out, from_head, column, exists, strides, f)
                to = body_place(place, head, f)
                store_tile(dx, softmax_gradient_tile(y, d, total, scale, f), to, column, strides.x, exists, f)
            if f.vector > 0:
                edge, d_edge = _edge_pair(out, d_out, places, head, body, columns, begin, strides, f)
                found = softmax_gradient_tile(edge, d_edge, total, scale, f)
                store_edges(dx, found, place, head, body, columns, begin, strides.x, f)
