"""Softmax of long rows without a mask, and its gradient, through a ring of chunks in shared memory.

See :mod:`~einops_fast.backends.triton.row_ring`. What is computed is that of
:mod:`~einops_fast.backends.triton.softmax`; while it reads, each thread keeps a maximum and a sum of its own.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from collections.abc import Sequence

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.attention.launch import KernelCall
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.row_ring import (
    advanced,
    chunk_at,
    chunks_of,
    copy,
    copy_again,
    earlier,
    next_slot,
    ring_call,
    ring_of,
    row_place,
    store_chunk,
    taken,
    there,
    wait_for_chunk,
)
from einops_fast.backends.triton.rows import Rows

__all__ = ["gradient_through_ring", "softmax_gradient_ring_kernel", "softmax_ring_kernel", "softmax_through_ring"]

_LOWEST = gl.constexpr(-3.4028234663852886e38)
"""The least number that isn't infinite: infinities would have no difference."""

_LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _exp(value):
    """What is below the least normal number is 0."""
    return gl.exp2(value * _LOG2E)


@gluon.jit
def _score(x, scale, scaled: gl.constexpr):
    score = x.to(gl.float32)
    if scaled:
        score = score * scale
    return score


@gluon.jit(do_not_specialize=["rows", "kept"])
def softmax_ring_kernel(
    x,
    mask,
    out,
    maxima,
    sums,
    sizes,
    x_strides,
    out_strides,
    rows,
    vectors,
    kept,
    scale,
    scaled: gl.constexpr,
    log: gl.constexpr,
    t: gl.constexpr,
):
    """Write the softmax of each row, or its logarithm.

    The arrays are those of :func:`~einops_fast.backends.triton.softmax.softmax_kernel`; ``mask``, ``maxima`` and
    ``sums`` aren't used.

    Args:
        sizes: of the axes that count the rows.
        x_strides, out_strides: along these, in vectors.
        rows: how many there are.
        vectors: of a row.
        kept: chunks that stay in the ring.
        scale: of the scores, if ``scaled``.
        log: whether the logarithm is wanted.
        t: a :class:`~einops_fast.backends.triton.row_ring.RingTiling`.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    threads: gl.constexpr = field(t, "threads")
    programs = gl.num_programs(0)
    ring = ring_of(x, t)
    chunks = chunks_of(vectors, t)
    ahead = gl.program_id(0), 0
    for at in range(field(t, "ahead")):
        copy(ring, x, ahead, at, sizes, x_strides, rows, vectors, t)
        async_copy.commit_group()
        ahead = advanced(ahead, chunks)
    slot = 0
    freed = field(t, "ahead")
    most_of_row = 0.0
    factor = 1.0
    shift = 0.0
    for row in range(gl.program_id(0), rows + programs, programs):
        before = row - programs
        have = gl.where(before < 0, 0, vectors)
        place = row_place(out, gl.maximum(before, 0), sizes, out_strides, t)
        most = gl.full([threads], _LOWEST, gl.float32, of_threads)
        total = gl.zeros([threads], gl.float32, of_threads)
        for step in range(chunks):
            wait_for_chunk(t)
            new, old = taken(ring, slot, freed, step, kept, t)
            copy(ring, x, ahead, freed, sizes, x_strides, rows, vectors, t)
            copy_again(ring, x, before, step, kept, sizes, x_strides, vectors, t)
            async_copy.commit_group()
            ahead = advanced(ahead, chunks)
            slot = next_slot(slot, kept, t)
            freed = next_slot(freed, kept, t)

            score = _score(new, scale, scaled)
            if field(t, "ragged"):
                score = gl.where(there(chunk_at(step, chunks, t), vectors, t), score, float("-inf"))
            both = gl.maximum(most, gl.max(gl.max(score, 2), 0))
            total = total * _exp(most - both) + gl.sum(gl.sum(_exp(score - both[None, :, None]), 2), 0)
            most = both

            score = _score(old, scale, scaled)
            if log:
                found = score - most_of_row - shift
            else:
                found = _exp(score - most_of_row) * factor
            store_chunk(place, found, chunk_at(earlier(step, chunks, kept), chunks, t), have, t)
        most_of_row = gl.max(most, 0)
        total_of_row = gl.sum(total * _exp(most - most_of_row), 0)
        factor = 1.0 / total_of_row
        shift = gl.log(total_of_row)


@gluon.jit
def _pair(y, d, log: gl.constexpr, masked: gl.constexpr):
    """A chunk of the result and of its gradient."""
    y = y.to(gl.float32)
    d = d.to(gl.float32)
    if log and masked:
        # What is hidden is -inf whatever the scores are.
        d = gl.where(y == float("-inf"), 0.0, d)
    return y, d


@gluon.jit(do_not_specialize=["rows", "kept"])
def softmax_gradient_ring_kernel(
    out,
    d_out,
    dx,
    totals,
    sizes,
    out_strides,
    d_out_strides,
    dx_strides,
    rows,
    vectors,
    kept,
    scale,
    log: gl.constexpr,
    masked: gl.constexpr,
    t: gl.constexpr,
):
    """Write the gradient of the scores of each row.

    The arrays are those of :func:`~einops_fast.backends.triton.softmax.softmax_gradient_kernel`; ``totals`` isn't used.
    The other arguments are those of :func:`softmax_ring_kernel`; ``masked`` says whether some elements were hidden.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    programs = gl.num_programs(0)
    results = ring_of(out, t)
    gradients = ring_of(d_out, t)
    chunks = chunks_of(vectors, t)
    ahead = gl.program_id(0), 0
    for at in range(field(t, "ahead")):
        copy(results, out, ahead, at, sizes, out_strides, rows, vectors, t)
        copy(gradients, d_out, ahead, at, sizes, d_out_strides, rows, vectors, t)
        async_copy.commit_group()
        ahead = advanced(ahead, chunks)
    slot = 0
    freed = field(t, "ahead")
    total_of_row = 0.0
    for row in range(gl.program_id(0), rows + programs, programs):
        before = row - programs
        have = gl.where(before < 0, 0, vectors)
        place = row_place(dx, gl.maximum(before, 0), sizes, dx_strides, t)
        total = gl.zeros([field(t, "threads")], gl.float32, of_threads)
        for step in range(chunks):
            wait_for_chunk(t)
            new_y, old_y = taken(results, slot, freed, step, kept, t)
            new_d, old_d = taken(gradients, slot, freed, step, kept, t)
            copy(results, out, ahead, freed, sizes, out_strides, rows, vectors, t)
            copy(gradients, d_out, ahead, freed, sizes, d_out_strides, rows, vectors, t)
            copy_again(results, out, before, step, kept, sizes, out_strides, vectors, t)
            copy_again(gradients, d_out, before, step, kept, sizes, d_out_strides, vectors, t)
            async_copy.commit_group()
            ahead = advanced(ahead, chunks)
            slot = next_slot(slot, kept, t)
            freed = next_slot(freed, kept, t)

            # Beyond the end of a row both are 0.
            y, d = _pair(new_y, new_d, log, masked)
            summand = d if log else y * d
            total += gl.sum(gl.sum(summand, 2), 0)

            y, d = _pair(old_y, old_d, log, masked)
            if log:
                found = d - _exp(y) * total_of_row
            else:
                found = y * (d - total_of_row)
            store_chunk(place, found * scale, chunk_at(earlier(step, chunks, kept), chunks, t), have, t)
        total_of_row = gl.sum(total, 0)


def softmax_through_ring(
    rows: Rows, items: Sequence[int], log: bool, scale: float, shared: int, processors: int
) -> KernelCall | None:
    """The kernel for softmax without a mask, of the arrays that ``softmax_kernel`` takes.

    Args:
        rows: how scores and result lie, in this order, and maybe others.
        items, shared, processors: see :func:`~einops_fast.backends.triton.row_ring.ring_for`, also for what is
            returned.
        log: whether the logarithm is wanted.
        scale: of the scores.
    """
    return ring_call(
        softmax_ring_kernel, rows, items, 1, shared, processors, (), (scale,), {"scaled": scale != 1.0, "log": log}
    )


def gradient_through_ring(
    rows: Rows, items: Sequence[int], log: bool, masked: bool, scale: float, shared: int, processors: int
) -> KernelCall | None:
    """The same for the gradient: ``rows`` says how the result, its gradient and that of the scores lie."""
    return ring_call(
        softmax_gradient_ring_kernel, rows, items, 2, shared, processors, (), (scale,), {"log": log, "masked": masked}
    )
