"""Layer norm and RMS norm, also after dropout and a sum, of rows that a cluster shares.

See :mod:`~einops_fast.backends.triton.row_cluster`. A cluster has one row, and keeps it in registers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.norm import norm_inputs, norm_statistics, store_norm
from einops_fast.backends.triton.row_cluster import heard, heard_both, meet, parameter, parts_of, tell, with_parts
from einops_fast.backends.triton.row_tiles import kept_elements, row_place, store_tile

__all__ = ["norm_cluster_kernel"]


@gluon.jit
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
    notes,
    sizes,
    strides,
    columns,
    part,
    drop,
    f: gl.constexpr,
    t: gl.constexpr,
):
    """Write the norm of a row, what was normalised, and the statistics.

    In ``notes``, the parts tell each other their squares and means. The others are those of
    :func:`~einops_fast.backends.triton.norm.norm_kernel`, of rows' parts.
    """
    row = gl.program_id(0)
    number, run, exists, count = parts_of(part, columns, t)
    sizes = with_parts(sizes, t)
    at = row * field(t, "ctas") + number
    zeros = gl.zeros_like(number).to(gl.float32)
    kept = exists
    if field(f, "dropout"):
        kept = kept_elements(row_place(at, sizes, strides.place, f), run, strides.place, seed, drop, f)
    h = norm_inputs(x, residual, summed, kept, at, run, exists, sizes, strides, drop, f)
    if summed is not None:
        store_tile(summed, h, row_place(at, sizes, strides.summed, f), run, strides.summed, exists, f)
    meet(notes, number, t)
    mean, squares = norm_statistics(h, exists, gl.maximum(count, 1).to(gl.float32), zeros, f)
    tell(notes, 0, 0, number, squares, t)
    if field(f, "centred"):
        tell(notes, 1, 0, number, mean, t)
    w = parameter(weight, strides.weight[0], number, part, run, exists)
    b = parameter(bias, strides.bias[0], number, part, run, exists)
    of_row = 0.0
    if field(f, "centred"):
        total, all_means = heard_both(notes, 0, t)
        begins = gl.arange(0, field(t, "ctas"), layout=field(t, "everywhere")) * part
        counts = gl.minimum(gl.maximum(columns - begins, 0), part).to(gl.float32)
        of_row = gl.sum(all_means * counts, 0) / columns
        apart = all_means - of_row
        total += apart * apart * counts
        of_row += gl.sum(apart * counts, 0) / columns  # far from 0, the first sum was rounded much more than this one
    else:
        total = heard(notes, 0, t)
    rstd = 1.0 / gl.sqrt(gl.sum(total, 0) / columns + field(f, "eps"))
    store_norm(out, h, zeros + of_row, zeros + rstd, weight, bias, w, b, at, run, exists, sizes, strides, f)
    place = row_place(at, sizes, strides.row, f)
    gl.store(rstds + place, zeros + rstd, mask=number == 0)
    if field(f, "centred"):
        gl.store(means + place, zeros + of_row, mask=number == 0)
