"""Layer norm and RMS norm, also after dropout and a sum, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.rows.cluster`. A cluster has a row in registers, and maybe others after it, for
which it keeps weight and bias.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment, var-annotated"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.exchange import again, heard, meet, notes_here, tell
from einops_fast.backends.triton.rows.cluster import from_shared, parameter, part_of_row, parts_of, stored, with_parts
from einops_fast.backends.triton.rows.norm.kernel import norm_statistics, norm_sum, store_norm
from einops_fast.backends.triton.rows.tiles import kept_elements, row_place, store_tile


@gluon.jit
def _found(x, residual, row, rows, number, runs, exist, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """A row's parts of what is read, as they are; of the residual anything if there is none."""
    found = part_of_row(x, row, rows, number, runs, exist, sizes, strides.x, f, t)
    more = found
    if residual is not None:
        more = part_of_row(residual, row, rows, number, runs, exist, sizes, strides.residual, f, t)
    return found, more


@gluon.constexpr_function
def _narrow(t):
    """Whether numbers that are read have 16 bits."""
    return max(t.items) == 2


@gluon.jit
def _of_row(mean, squares, columns, part, f: gl.constexpr, t: gl.constexpr):
    """Mean and sum of squares of a row from those of its parts."""
    of_row = 0.0
    if f.centred:
        begins = gl.arange(0, t.parts, layout=t.everywhere) * part
        counts = gl.minimum(gl.maximum(columns - begins, 0), part).to(gl.float32)
        of_row = gl.sum(mean * counts, 0) / columns
        apart = mean - of_row
        squares += apart * apart * counts
        of_row += gl.sum(apart * counts, 0) / columns  # far from 0, the first sum was rounded much more than this one
    return of_row, gl.sum(squares, 0)


@gluon.jit
def _norm_of_row(
    found, parameters, arrays, row, rows, notes, step, number, runs, exist, count, sizes, strides, columns, part, drop,
    f: gl.constexpr, t: gl.constexpr,
):  # fmt: skip
    """Write the norm of a row from :func:`_found`. Gives that of the program's next row, if it has several."""
    x, residual, weight, bias, seed, out, summed, means, rstds = arrays
    at = row * t.parts + number
    zeros = gl.zeros_like(number).to(gl.float32)
    of_x = found[0]
    h = ()
    for piece in gl.static_range(len(runs)):
        taken = exist[piece]
        if f.dropout:
            taken = kept_elements(row_place(at, sizes, strides.place, f), runs[piece], strides.place, seed, drop, f)
        h += (norm_sum(of_x[piece], found[1][piece], residual, summed, taken, drop, f),)
    mean, squares = norm_statistics(h, exist, gl.maximum(count, 1).to(gl.float32), zeros, f)
    tell(notes, step, number, mean, squares, t)
    if summed is not None:
        for piece in gl.static_range(len(runs)):
            place = row_place(at, sizes, strides.summed, f)
            store_tile(summed, h[piece], place, runs[piece], strides.summed, exist[piece], f)
    if t.several:
        ahead = row + gl.num_programs(0)
        found = _found(x, residual, ahead, rows, number, runs, exist, sizes, strides, f, t)
    else:
        w = parameter(weight, strides.weight[0], number, part, runs, exist)
        b = parameter(bias, strides.bias[0], number, part, runs, exist)
    all_means, all_squares = heard(notes, step, t)
    of_row, total = _of_row(all_means, all_squares, columns, part, f, t)
    rstd = 1.0 / gl.sqrt(total / columns + f.eps)
    # One instruction for an element, not two: float32 has digits enough for 16 bits less their mean.
    at_once: gl.constexpr = summed is None and f.centred and _narrow(t)
    mean, scale = zeros + of_row, zeros + rstd
    if at_once:
        mean, scale = zeros, zeros + 1.0
    for piece in gl.static_range(len(runs)):
        if t.several:
            of_weight = from_shared(weight, parameters[0][piece], t)
            of_bias = from_shared(bias, parameters[1][piece], t)
        else:
            of_weight = w[piece]
            of_bias = b[piece]
        y = h[piece]
        if summed is None:
            y = again(of_x[piece]).to(gl.float32)  # there is nothing else in it
            if at_once:
                y = y * rstd - of_row * rstd
        store_norm(
            out, y, mean, scale, weight, bias, of_weight, of_bias, at, runs[piece], exist[piece], sizes, strides, f
        )
    if rstds is not None:
        place = row_place(at, sizes, strides.row, f)
        gl.store(rstds + place, zeros + rstd, mask=number == 0)
        if means is not None:
            gl.store(means + place, zeros + of_row, mask=number == 0)
    return found


@gluon.jit(do_not_specialize=["rows"])
def norm_cluster_kernel(
    x,
    residual,
    weight,
    bias,
    seed,
    out,
    summed,
    means,
    rstds,
    sizes,
    strides,
    rows,
    columns,
    part,
    drop,
    f: gl.constexpr,
    t: gl.constexpr,
):
    """Write the norm of some rows, what was normalised, and the statistics.

    The parts tell each other their means and squares. The arguments are those of
    :func:`~einops_fast.backends.triton.rows.norm.kernel.norm_kernel`, of rows' parts.
    """
    row = gl.program_id(0)
    number, runs, exist, count = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    arrays = x, residual, weight, bias, seed, out, summed, means, rstds
    notes = notes_here(t)
    found = _found(x, residual, row, rows, number, runs, exist, sizes, strides, f, t)
    meet(notes)
    if t.several:
        w = stored(weight, strides.weight[0], number, part, runs, exist, t)
        b = stored(bias, strides.bias[0], number, part, runs, exist, t)
        step = 0
        for at in range(row, rows, gl.num_programs(0)):
            found = _norm_of_row(
                found, (w, b), arrays, at, rows, notes, step, number, runs, exist, count, sizes, strides, columns,
                part, drop, f, t,
            )  # fmt: skip
            step += 1  # noqa: SIM113 - Gluon has no enumerate
    else:
        _norm_of_row(
            found, (), arrays, row, rows, notes, 0, number, runs, exist, count, sizes, strides, columns, part, drop,
            f, t,
        )  # fmt: skip
