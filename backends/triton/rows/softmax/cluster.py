"""Softmax without a mask, and its gradient, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.rows.cluster`. A cluster has a row in registers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.exchange import again, heard, meet, notes_here, tell
from einops_fast.backends.triton.rows.cluster import part_of_row, parts_of, with_parts
from einops_fast.backends.triton.rows.softmax.gradient import softmax_gradient_tile, softmax_summand
from einops_fast.backends.triton.rows.softmax.kernel import softmax_reference
from einops_fast.backends.triton.rows.tiles import exponential, most_of, row_place, store_tile, total_of


@gluon.jit(do_not_specialize=["rows"])
def softmax_cluster_kernel(
    x, mask, out, sizes, strides, rows, columns, part, scale, f: gl.constexpr, t: gl.constexpr
):  # fmt: skip
    """Write the softmax of a row, or its logarithm.

    The parts tell each other their maxima and sums. The arguments are those of
    :func:`~einops_fast.backends.triton.rows.softmax.kernel.softmax_kernel`, of rows' parts; ``mask`` isn't used.
    """
    row = gl.program_id(0)
    number, runs, exist, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    notes = notes_here(t)
    found = part_of_row(x, row, rows, number, runs, exist, sizes, strides.x, f, t)
    meet(notes)
    scores = ()
    for at in gl.static_range(len(runs)):
        score = found[at].to(gl.float32) * scale
        if t.ragged:
            score = gl.where(exist[at], score, float("-inf"))
        scores += (score,)
    most = gl.max(most_of(scores), 1)
    reference = softmax_reference(most)
    e = ()
    for at in gl.static_range(len(runs)):
        e += (exponential(scores[at] - reference[:, None]),)
    tell(notes, 0, number, most, gl.sum(total_of(e), 1), t)
    all_most, all_sums = heard(notes, 0, t)
    of_row = softmax_reference(gl.max(all_most, 0))
    share = gl.where(all_most == float("-inf"), 0.0, exponential(all_most - of_row))
    total = gl.sum(all_sums * share, 0)
    # A part's exponentials times this are those of the row. All those of a part may be 0.
    of_part = gl.where(most == float("-inf"), 0.0, exponential(reference - of_row))
    place = row_place(row * t.parts + number, sizes, strides.out, f)
    for at in gl.static_range(len(runs)):
        if f.log:
            result = again(found[at]).to(gl.float32) * scale - of_row - gl.log(total)
        else:
            result = e[at] * (of_part / total)[:, None]
        store_tile(out, result, place, runs[at], strides.out, exist[at], f)


@gluon.jit(do_not_specialize=["rows"])
def softmax_gradient_cluster_kernel(
    out, d_out, dx, sizes, strides, rows, columns, part, scale, f: gl.constexpr, t: gl.constexpr
):  # fmt: skip
    """Write the gradients of a row of scores; see :func:`softmax_cluster_kernel`."""
    row = gl.program_id(0)
    number, runs, exist, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    notes = notes_here(t)
    of_out = part_of_row(out, row, rows, number, runs, exist, sizes, strides.out, f, t)
    of_d_out = part_of_row(d_out, row, rows, number, runs, exist, sizes, strides.d_out, f, t)
    meet(notes)
    tiles = ()
    summands = ()
    for at in gl.static_range(len(runs)):
        y, d = of_out[at].to(gl.float32), of_d_out[at].to(gl.float32)
        if f.log and f.masked:
            # What is hidden is -inf whatever the scores are.
            d = gl.where(y == float("-inf"), 0.0, d)
        tiles += ((y, d),)
        summands += (softmax_summand(y, d, f),)
    of_part = gl.sum(total_of(summands), 1)
    tell(notes, 0, number, of_part, of_part, t)
    of_parts, _ = heard(notes, 0, t)
    total = gl.zeros_like(number).to(gl.float32) + gl.sum(of_parts, 0)
    place = row_place(row * t.parts + number, sizes, strides.x, f)
    for at in gl.static_range(len(runs)):
        gradient = softmax_gradient_tile(tiles[at][0], tiles[at][1], total, scale, f)
        store_tile(dx, gradient, place, runs[at], strides.x, exist[at], f)
