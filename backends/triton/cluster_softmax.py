"""Softmax without a mask, and its gradient, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.row_cluster`. A cluster has one row, and keeps it in registers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.ring_softmax import base_two_exp
from einops_fast.backends.triton.row_cluster import heard, heard_both, meet, part_of_row, parts_of, tell, with_parts
from einops_fast.backends.triton.row_tiles import row_place, store_tile
from einops_fast.backends.triton.softmax import softmax_gradient_tile, softmax_reference, softmax_summand

__all__ = ["softmax_cluster_kernel", "softmax_gradient_cluster_kernel"]


@gluon.jit
def softmax_cluster_kernel(
    x, mask, out, notes, sizes, strides, columns, part, scale, f: gl.constexpr, t: gl.constexpr
):  # fmt: skip
    """Write the softmax of a row, or its logarithm.

    In ``notes``, the parts tell each other their maxima and sums. The other arguments are those of
    :func:`~einops_fast.backends.triton.softmax.softmax_kernel`, of rows' parts; ``mask`` isn't used.
    """
    number, run, exists, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    at = gl.program_id(0) * field(t, "ctas") + number
    score = part_of_row(x, at, run, exists, sizes, strides.x, f)
    meet(notes, number, t)  # while the row is on its way
    score = score.to(gl.float32) * scale
    if field(t, "ragged"):
        score = gl.where(exists, score, float("-inf"))
    most = gl.max(score, 1)
    reference = softmax_reference(most)
    e = base_two_exp(score - reference[:, None])
    tell(notes, 0, 0, number, most, t)
    tell(notes, 1, 0, number, gl.sum(e, 1), t)
    all_most, all_sums = heard_both(notes, 0, t)
    of_row = softmax_reference(gl.max(all_most, 0))
    share = gl.where(all_most == float("-inf"), 0.0, base_two_exp(all_most - of_row))
    total = gl.sum(all_sums * share, 0)
    if field(f, "log"):
        result = score - of_row - gl.log(total)
    else:
        # A part's exponentials times this are those of the row.
        result = e * (base_two_exp(reference - of_row) / total)[:, None]
    store_tile(out, result, row_place(at, sizes, strides.out, f), run, strides.out, exists, f)


@gluon.jit
def softmax_gradient_cluster_kernel(
    out, d_out, dx, notes, sizes, strides, columns, part, scale, f: gl.constexpr, t: gl.constexpr
):  # fmt: skip
    """Write the gradient of a row of scores; see :func:`softmax_cluster_kernel`."""
    number, run, exists, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    at = gl.program_id(0) * field(t, "ctas") + number
    y = part_of_row(out, at, run, exists, sizes, strides.out, f)
    d = part_of_row(d_out, at, run, exists, sizes, strides.d_out, f)
    meet(notes, number, t)
    y = y.to(gl.float32)
    d = d.to(gl.float32)
    if field(f, "log") and field(f, "masked"):
        # What is hidden is -inf whatever the scores are.
        d = gl.where(y == float("-inf"), 0.0, d)
    tell(notes, 0, 0, number, gl.sum(softmax_summand(y, d, f), 1), t)
    total = gl.zeros_like(number).to(gl.float32) + gl.sum(heard(notes, 0, t), 0)
    gradient = softmax_gradient_tile(y, d, total, scale, f)
    store_tile(dx, gradient, row_place(at, sizes, strides.x, f), run, strides.x, exists, f)
