"""Layer norm and RMS norm of long rows, without dropout or a sum before it, through a ring of chunks in shared memory.

See :mod:`~einops_fast.backends.triton.row_ring`. While it reads, each thread keeps the mean and the squares of what it
has seen; those of chunks and threads are brought together by the formula of Chan, Golub and LeVeque (1983,
https://doi.org/10.1080/00031305.1983.10483115).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from collections.abc import Sequence

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.attention.loading import counted
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.norm import NormFeatures
from einops_fast.backends.triton.ring_tilings import Cut, ring_call, ring_for
from einops_fast.backends.triton.row_ring import (
    chunk_at,
    chunks_of,
    columns_of,
    earlier,
    filled,
    next_chunks,
    ring_of,
    row_place,
    store_chunk,
    there,
)
from einops_fast.backends.triton.rows import Rows

__all__ = ["norm_ring_kernel", "norm_through_ring"]

_ELSEWHERE = {2: 32768}
"""Columns up to which, on an H200, the kernel that reads rows twice is as fast. In float32 it always is."""

_WHOLE = Cut(8, 8, 2)
"""The fastest on an H200 where the ring has room for a row. Where it hasn't, the other kernel is as fast."""


@gluon.jit
def _more(h, chunk, vectors, count, mean, squares, f: gl.constexpr, t: gl.constexpr):
    """Number, mean and squares (about the mean, if centred) of each thread's elements, with those of a chunk."""
    if field(f, "centred"):
        number = gl.zeros_like(count) + field(t, "run") * field(t, "vector")
        if field(t, "ragged"):
            exists = there(chunk, vectors, t)
            number = gl.sum(gl.sum(exists.to(gl.float32), 2), 0)
        here = gl.sum(gl.sum(h, 2), 0) / gl.maximum(number, 1.0)
        apart = h - here[None, :, None]
        if field(t, "ragged"):
            apart = gl.where(exists, apart, 0.0)
        both = count + number
        share = number / gl.maximum(both, 1.0)
        between = here - mean
        squares += gl.sum(gl.sum(apart * apart, 2), 0) + between * between * (share * count)
        mean += between * share
        count = both
    else:
        squares += gl.sum(gl.sum(h * h, 2), 0)
    return count, mean, squares


@gluon.jit
def _of_row(count, mean, squares, columns, f: gl.constexpr):
    """Mean and squares of a row from those of the threads."""
    of_row = 0.0
    if field(f, "centred"):
        of_row = gl.sum(mean * count, 0) / columns
        apart = mean - of_row
        squares += apart * apart * count
        of_row += gl.sum(apart * count, 0) / columns  # far from 0, the first sum was rounded much more than this one
    return of_row, gl.sum(squares, 0)


@gluon.jit
def _parameter(array, stride, chunk, vectors, t: gl.constexpr):
    """What all rows share, for a chunk, in its own type; 0 if there is none."""
    found = 0.0
    if array is not None:
        place = array + columns_of(chunk, t) * stride
        if field(t, "ragged"):
            found = gl.load(place, mask=there(chunk, vectors, t), other=0.0)
        else:
            found = gl.load(place)
    return found


@gluon.jit(do_not_specialize=["rows", "kept"])
def norm_ring_kernel(
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
    x_strides,
    out_strides,
    row_strides,
    along,
    rows,
    vectors,
    kept,
    f: gl.constexpr,
    t: gl.constexpr,
):
    """Write the norm of each row, and its statistics.

    The arrays are those of :func:`~einops_fast.backends.triton.norm.norm_kernel`; ``residual``, ``seed``, ``summed``,
    ``part_means`` and ``part_squares`` aren't used.

    Args:
        sizes: of the axes that count the rows.
        x_strides, out_strides: along these, in vectors.
        row_strides: those of the statistics, in elements.
        along: strides of weight and bias.
        rows: how many there are.
        vectors: of a row.
        kept: chunks that stay in the ring.
        f: a :class:`~einops_fast.backends.triton.norm.NormFeatures`.
        t: a :class:`~einops_fast.backends.triton.ring_tilings.RingTiling`.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    threads: gl.constexpr = field(t, "threads")
    programs = gl.num_programs(0)
    ring = ring_of(x, t)
    chunks = chunks_of(vectors, t)
    columns = (vectors * field(t, "vector")).to(gl.float32)
    ahead = filled(ring, x, sizes, x_strides, rows, vectors, t)
    slot = 0
    freed = field(t, "ahead")
    mean_of_row = 0.0
    rstd = 0.0
    for row in range(gl.program_id(0), rows + programs, programs):
        before = row - programs
        have = gl.where(before < 0, 0, vectors)
        place = row_place(out, gl.maximum(before, 0), sizes, out_strides, t)
        count = gl.zeros([threads], gl.float32, of_threads)
        mean = gl.zeros([threads], gl.float32, of_threads)
        squares = gl.zeros([threads], gl.float32, of_threads)
        for step in range(chunks):
            chunk = chunk_at(earlier(step, chunks, kept), chunks, t)
            w = _parameter(weight, along[0], chunk, vectors, t)
            b = _parameter(bias, along[1], chunk, vectors, t)
            new, old, ahead, slot, freed = next_chunks(
                ring, x, ahead, slot, freed, before, step, kept, sizes, x_strides, rows, vectors, t
            )

            count, mean, squares = _more(
                new.to(gl.float32), chunk_at(step, chunks, t), vectors, count, mean, squares, f, t
            )

            found = (old.to(gl.float32) - mean_of_row) * rstd
            if weight is not None:
                found = found * w.to(gl.float32)
            if bias is not None:
                found = found + b.to(gl.float32)
            store_chunk(place, found, chunk, have, t)
        mean_of_row, squares_of_row = _of_row(count, mean, squares, columns, f)
        rstd = 1.0 / gl.sqrt(squares_of_row / columns + field(f, "eps"))
        if row < rows:
            of_row = counted(row, sizes, row_strides, 0, field(t, "axes"))
            if rstds is not None:
                gl.store(rstds + of_row, rstd)
            if means is not None:
                gl.store(means + of_row, mean_of_row)


def norm_through_ring(
    rows: Rows, items: Sequence[int], along: tuple[int, int], features: NormFeatures, shared: int, processors: int
) -> KernelCall | None:
    """The kernel for a norm without dropout or residual, of the arrays that ``norm_kernel`` takes.

    Args:
        rows: how input, result and statistics lie, in this order, and maybe others.
        items, shared, processors: see :func:`~einops_fast.backends.triton.ring_tilings.ring_for`, also for what is
            returned.
        along: strides of weight and bias.
        features: of the norm.
    """
    ring = ring_for(rows, items, 1, shared, processors, _ELSEWHERE, _WHOLE, None)
    return ring_call(norm_ring_kernel, ring, rows, 2, (rows.strides[2][:-1], along), (), {"f": features})
