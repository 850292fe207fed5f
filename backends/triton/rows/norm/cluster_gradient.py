"""Gradients of layer norm and RMS norm, with those of weight and bias, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.rows.cluster`. A cluster has several rows, one after the other, since it adds
something of each to the gradients of weight and bias. While its parts tell each other their sums of a row, the next row
is on its way to registers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.exchange import again, heard, meet, notes_here, tell
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.rows.cluster import (
    from_shared,
    packed_pieces,
    part_of_row,
    parts_of,
    stored,
    unpacked,
    with_parts,
)
from einops_fast.backends.triton.rows.norm.gradient import store_norm_gradient, weighted
from einops_fast.backends.triton.rows.tiles import kept_elements, row_place, total_of


@gluon.jit
def _row(of, means, rstds, row, rows, number, runs, exist, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """A row's parts of what was normalised and of the gradient of the result, packed, its mean and ``rstd``."""
    place = row_place(gl.minimum(row, rows - 1) * t.parts + number, sizes, strides.row, f)
    rstd = gl.load(rstds + place)
    mean = rstd
    if f.centred:
        mean = gl.load(means + place)
    of_h = part_of_row(of[0], row, rows, number, runs, exist, sizes, strides.x, f, t)
    back = part_of_row(of[1], row, rows, number, runs, exist, sizes, strides.out, f, t)
    return packed_pieces(of_h, t.items[0]), packed_pieces(back, t.items[1]), mean, rstd


@gluon.jit
def _tiles(of_h, back, of, t: gl.constexpr):
    """A piece of what was normalised, and of the gradient of the result, which is 0 where there is nothing."""
    layout: gl.constexpr = t.layout
    h = unpacked(of_h, t.items[0], of[0].dtype.element_ty, layout)
    return h, unpacked(back, t.items[1], of[1].dtype.element_ty, layout)


@gluon.jit
def _sums(found, of, weight, of_weight, f: gl.constexpr, t: gl.constexpr):
    """What each part adds to the sums of its row."""
    of_h, back, mean, rstd = found
    # The mean may be taken off the sums of 16-bit numbers: float32 has digits enough for these.
    subtract: gl.constexpr = f.centred and t.items[0] > 2
    ds = ()
    inners = ()
    for at in gl.static_range(len(of_h)):
        h, d = _tiles(of_h[at], back[at], of, t)
        if subtract:
            h -= mean[:, None]
        d = weighted(d, weight, from_shared(weight, of_weight[at], t), f)
        ds += (d,)
        inners += (h * d,)
    inner = gl.sum(total_of(inners), 1)
    of_d = inner
    if f.centred:
        of_d = gl.sum(total_of(ds), 1)
        if not subtract:
            inner -= mean * of_d
    return inner * rstd, of_d


@gluon.jit
def _of_sum(d_summed, row, rows, number, runs, exist, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """A row's parts of the gradient of the sum, packed; anything if there is none."""
    found = runs
    if d_summed is not None:
        found = part_of_row(d_summed, row, rows, number, runs, exist, sizes, strides.d_summed, f, t)
        found = packed_pieces(found, t.items[0])
    return found


@gluon.jit
def _finished(
    found, of_sum, told, sums, of, arrays, of_weight, row, number, runs, exist, sizes, strides, columns, drop,
    f: gl.constexpr, t: gl.constexpr,
):  # fmt: skip
    """Write the gradient of a row, from what all parts have told; gives the sums with what it adds."""
    weight, seed, d_summed, dx, d_residual, part_weight, part_bias = arrays
    of_h, back_of_row, mean, rstd = found
    inner = (-gl.sum(told[0], 0) / columns * rstd * rstd)[:, None]
    of_d = (gl.sum(told[1], 0) / columns * rstd)[:, None]
    at = row * t.parts + number
    to_weight = ()
    to_bias = ()
    for piece in gl.static_range(len(runs)):
        apart, back = _tiles(again(of_h[piece]), again(back_of_row[piece]), of, t)
        if f.centred:
            apart -= mean[:, None]
        scaled = back * rstd[:, None]
        of_weights = sums[0][piece]
        if part_weight is not None:
            of_weights += scaled * apart
        to_weight += (of_weights,)
        of_biases = sums[1][piece]
        if part_bias is not None:
            of_biases += back
        to_bias += (of_biases,)
        # In this order it takes two instructions for an element.
        gradient = apart * inner
        if f.centred:
            gradient -= of_d
        gradient += weighted(scaled, weight, from_shared(weight, of_weight[piece], t), f)
        if d_summed is not None:
            gradient += unpacked(of_sum[piece], t.items[0], d_summed.dtype.element_ty, field(t, "layout"))
        kept = exist[piece]
        if f.dropout:
            kept = kept_elements(row_place(at, sizes, strides.place, f), runs[piece], strides.place, seed, drop, f)
        store_norm_gradient(
            dx, d_residual, gradient, kept, at, runs[piece], exist[piece], sizes, strides, drop, f
        )  # fmt: skip
    return to_weight, to_bias


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

    The parts tell each other their sums. The arguments are those of
    :func:`~einops_fast.backends.triton.rows.norm.gradient.norm_gradient_kernel`, of rows' parts.
    """
    first = gl.program_id(0)
    programs = gl.num_programs(0)
    number, runs, exist, _ = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    of = h, d_out
    arrays = weight, seed, d_summed, dx, d_residual, part_weight, part_bias
    nothing = ()
    for _ in gl.static_range(field(t, "pieces")):
        nothing += (gl.full([t.parts, t.block], 0.0, gl.float32, t.layout),)
    sums = nothing, nothing
    notes = notes_here(t)
    of_weight = stored(weight, strides.weight[0], number, part, runs, exist, t)
    found = _row(of, means, rstds, first, rows, number, runs, exist, sizes, strides, f, t)
    meet(notes)
    step = 0
    before = found
    if t.late:
        inner, of_d = _sums(found, of, weight, of_weight, f, t)
        tell(notes, 0, number, inner, of_d, t)
        found = _row(of, means, rstds, first + programs, rows, number, runs, exist, sizes, strides, f, t)
    for row in range(first, rows, programs):
        # Wanted last, but asked for first: it takes long to come.
        of_sum = _of_sum(d_summed, row, rows, number, runs, exist, sizes, strides, f, t)
        inner, of_d = _sums(found, of, weight, of_weight, f, t)
        if t.late:
            ahead = row + 2 * programs
            following = _row(of, means, rstds, ahead, rows, number, runs, exist, sizes, strides, f, t)
            told = heard(notes, step, t)
            if row + programs < rows:
                tell(notes, step + 1, number, inner, of_d, t)
        else:
            tell(notes, step, number, inner, of_d, t)
            ahead = row + programs
            following = _row(of, means, rstds, ahead, rows, number, runs, exist, sizes, strides, f, t)
            told = heard(notes, step, t)
            before = found
        sums = _finished(
            before, of_sum, told, sums, of, arrays, of_weight, row, number, runs, exist, sizes, strides, columns, drop,
            f, t,
        )  # fmt: skip
        before = found
        found = following
        step += 1  # noqa: SIM113 - Gluon has no enumerate
    to_weight, to_bias = sums
    for at in gl.static_range(field(t, "pieces")):
        place = first.to(gl.int64) * columns + (number * part)[:, None] + runs[at][None, :]
        if part_weight is not None:
            gl.store(part_weight + place, to_weight[at], mask=exist[at])
        if part_bias is not None:
            gl.store(part_bias + place, to_bias[at], mask=exist[at])
