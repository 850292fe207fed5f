"""Gradients of layer norm and RMS norm, with those of weight and bias, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.row_cluster`. A cluster has several rows, one after the other, since it adds
something of each to the gradients of weight and bias. Rows are copied to a ring in shared memory some steps ahead, and
what the parts of a row tell each other is heard one step later:

    sums of row 1, told │ sums of row 0, heard; its gradient │ row 3, copied to where row 0 was │ sums of row 2, told …

So neither reading nor the exchange is waited for.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.norm_gradient import store_norm_gradient, weighted
from einops_fast.backends.triton.row_cluster import (
    copy_row,
    heard,
    heard_both,
    meet,
    next_slot,
    parameter,
    parts_of,
    ring_of,
    sums_of_two,
    tell,
    with_parts,
)
from einops_fast.backends.triton.row_tiles import kept_elements, row_place

__all__ = ["norm_gradient_cluster_kernel"]


@gluon.jit
def _statistics(means, rstds, row, rows, number, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """The mean of a row and the reciprocal of its deviation, if there is one."""
    place = row_place(gl.minimum(row, rows - 1) * field(t, "ctas") + number, sizes, strides.row, f)
    rstd = gl.load(rstds + place)
    mean = rstd
    if field(f, "centred"):
        mean = gl.load(means + place)
    return mean, rstd


@gluon.jit
def _tiles(ring, gradients, slot, mean, rstd, exists, f: gl.constexpr, t: gl.constexpr):
    """A row of the gradient of the result, and what was normalised, as it is then."""
    back = gradients.index(slot).load(field(t, "layout")).to(gl.float32)
    h = ring.index(slot).load(field(t, "layout")).to(gl.float32)
    if field(t, "ragged"):
        back = gl.where(exists, back, 0.0)
        h = gl.where(exists, h, 0.0)
    if field(f, "centred"):
        h -= mean[:, None]
    return back, h * rstd[:, None]


@gluon.jit(do_not_specialize=["rows"])
def norm_gradient_cluster_kernel(
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
    notes,
    sizes,
    strides,
    rows,
    columns,
    part,
    drop,
    f: gl.constexpr,
    t: gl.constexpr,
):
    """Write the gradient of what was normalised in some rows, and what these add to the gradients of weight and bias.

    In ``notes``, the parts tell each other their sums. The others are those of
    :func:`~einops_fast.backends.triton.norm_gradient.norm_gradient_kernel`, of rows' parts.
    """
    first = gl.program_id(0)
    programs = gl.num_programs(0)
    number, run, exists, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    zeros = gl.zeros_like(number).to(gl.float32)
    to_weight = gl.zeros([field(t, "ctas"), field(t, "block")], gl.float32, field(t, "layout"))
    to_bias = gl.zeros([field(t, "ctas"), field(t, "block")], gl.float32, field(t, "layout"))
    ring = ring_of(h, t)
    gradients = ring_of(d_out, t)
    w = parameter(weight, strides.weight[0], number, part, run, exists)
    for early in gl.static_range(field(t, "ahead")):
        ahead = first + early * programs
        copy_row(ring, early, h, ahead, rows, number, run, exists, sizes, strides.x, f, t)
        copy_row(gradients, early, d_out, ahead, rows, number, run, exists, sizes, strides.out, f, t)
        async_copy.commit_group()
    meet(notes, number, t)
    step = 0
    slot = 0
    freed = field(t, "ahead")
    mean_before, rstd_before = zeros, zeros
    mean, rstd = _statistics(means, rstds, first, rows, number, sizes, strides, f, t)
    for row in range(first, rows + programs, programs):
        async_copy.wait_group(field(t, "ahead") - 1)
        back, normalised = _tiles(ring, gradients, slot, mean, rstd, exists, f, t)
        d = weighted(back, weight, w, f)
        mean_of_row = zeros
        if field(f, "centred"):
            inner, mean_of_part = sums_of_two(normalised * d, d)
            tell(notes, 0, step, number, inner, t)
            tell(notes, 1, step, number, mean_of_part, t)
            of_parts, means_of_parts = heard_both(notes, step - 1, t)
            mean_of_row = zeros + gl.sum(means_of_parts, 0) / columns
        else:
            tell(notes, 0, step, number, gl.sum(normalised * d, 1), t)
            of_parts = heard(notes, step - 1, t)
        inner_of_row = zeros + gl.sum(of_parts, 0) / columns

        before = row - programs
        if before >= 0:
            at = before * field(t, "ctas") + number
            back, normalised = _tiles(ring, gradients, freed, mean_before, rstd_before, exists, f, t)
            if part_weight is not None:
                to_weight += back * normalised
            if part_bias is not None:
                to_bias += back
            kept = exists
            if field(f, "dropout"):
                kept = kept_elements(row_place(at, sizes, strides.place, f), run, strides.place, seed, drop, f)
            store_norm_gradient(
                dx, d_residual, d_summed, normalised, weighted(back, weight, w, f), inner_of_row, mean_of_row,
                rstd_before, kept, at, run, exists, sizes, strides, drop, f,
            )  # fmt: skip
        ahead = row + field(t, "ahead") * programs
        copy_row(ring, freed, h, ahead, rows, number, run, exists, sizes, strides.x, f, t)
        copy_row(gradients, freed, d_out, ahead, rows, number, run, exists, sizes, strides.out, f, t)
        async_copy.commit_group()
        step += 1  # noqa: SIM113 - Gluon has no enumerate
        freed = slot
        slot = next_slot(slot, t)
        mean_before, rstd_before = mean, rstd
        mean, rstd = _statistics(means, rstds, row + programs, rows, number, sizes, strides, f, t)
    place = first.to(gl.int64) * columns + (number * part)[:, None] + run[None, :]
    if part_weight is not None:
        gl.store(part_weight + place, to_weight, mask=exists)
    if part_bias is not None:
        gl.store(part_bias + place, to_bias, mask=exists)
