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
    fetch,
    next_step,
    of_chunk,
    ring_call,
    ring_of,
    row_place,
    steps_of,
    store_chunk,
    taken,
    there,
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
def _score(ring, number, scale, scaled: gl.constexpr, t: gl.constexpr):
    score = taken(ring, number, t)
    if scaled:
        score = score * scale
    return score


@gluon.jit(do_not_specialize=["rows", "again"])
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
    again,
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
        again: chunks of a row that are copied twice.
        scale: of the scores, if ``scaled``.
        log: whether the logarithm is wanted.
        t: a :class:`~einops_fast.backends.triton.row_ring.RingTiling`.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    threads: gl.constexpr = field(t, "threads")
    ring = ring_of(x, t)
    chunks = steps_of(vectors, t)
    ahead = gl.program_id(0), 0, 0
    for _ in range(field(t, "slots")):
        fetch(ring, x, ahead, sizes, x_strides, rows, vectors, t)
        async_copy.commit_group()
        ahead = advanced(ahead, vectors, again, t)
    first = 0
    for row in range(gl.program_id(0), rows, gl.num_programs(0)):
        most = gl.full([threads], _LOWEST, gl.float32, of_threads)
        total = gl.zeros([threads], gl.float32, of_threads)
        for step in range(chunks):
            next_step(t)
            score = _score(ring, first + step, scale, scaled, t)
            if field(t, "ragged"):
                score = gl.where(there(step, vectors, t), score, float("-inf"))
            both = gl.maximum(most, gl.max(gl.max(score, 2), 0))
            total = total * _exp(most - both) + gl.sum(gl.sum(_exp(score - both[None, :, None]), 2), 0)
            most = both
            if step < again:
                fetch(ring, x, ahead, sizes, x_strides, rows, vectors, t)
                ahead = advanced(ahead, vectors, again, t)
            async_copy.commit_group()
        most_of_row = gl.max(most, 0)
        total_of_row = gl.sum(total * _exp(most - most_of_row), 0)
        factor = 1.0 / total_of_row
        shift = gl.log(total_of_row)
        place = row_place(out, row, sizes, out_strides, t)
        for step in range(again, chunks + again):
            next_step(t)
            score = _score(ring, first + step, scale, scaled, t)
            if log:
                found = score - most_of_row - shift
            else:
                found = _exp(score - most_of_row) * factor
            fetch(ring, x, ahead, sizes, x_strides, rows, vectors, t)
            async_copy.commit_group()
            ahead = advanced(ahead, vectors, again, t)
            store_chunk(place, found, of_chunk(step, chunks), vectors, t)
        first = (first + chunks + again) % field(t, "slots")


@gluon.jit
def _pair(results, gradients, number, log: gl.constexpr, masked: gl.constexpr, t: gl.constexpr):
    """A chunk of the result and of its gradient."""
    y = taken(results, number, t)
    d = taken(gradients, number, t)
    if log and masked:
        # What is hidden is -inf whatever the scores are.
        d = gl.where(y == float("-inf"), 0.0, d)
    return y, d


@gluon.jit(do_not_specialize=["rows", "again"])
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
    again,
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
    results = ring_of(out, t)
    gradients = ring_of(d_out, t)
    chunks = steps_of(vectors, t)
    ahead = gl.program_id(0), 0, 0
    for _ in range(field(t, "slots")):
        fetch(results, out, ahead, sizes, out_strides, rows, vectors, t)
        fetch(gradients, d_out, ahead, sizes, d_out_strides, rows, vectors, t)
        async_copy.commit_group()
        ahead = advanced(ahead, vectors, again, t)
    first = 0
    for row in range(gl.program_id(0), rows, gl.num_programs(0)):
        total = gl.zeros([field(t, "threads")], gl.float32, of_threads)
        for step in range(chunks):
            next_step(t)
            y, d = _pair(results, gradients, first + step, log, masked, t)
            # Beyond the end of a row both are 0.
            summand = d if log else y * d
            total += gl.sum(gl.sum(summand, 2), 0)
            if step < again:
                fetch(results, out, ahead, sizes, out_strides, rows, vectors, t)
                fetch(gradients, d_out, ahead, sizes, d_out_strides, rows, vectors, t)
                ahead = advanced(ahead, vectors, again, t)
            async_copy.commit_group()
        total_of_row = gl.sum(total, 0)
        place = row_place(dx, row, sizes, dx_strides, t)
        for step in range(again, chunks + again):
            next_step(t)
            y, d = _pair(results, gradients, first + step, log, masked, t)
            if log:
                found = d - _exp(y) * total_of_row
            else:
                found = y * (d - total_of_row)
            fetch(results, out, ahead, sizes, out_strides, rows, vectors, t)
            fetch(gradients, d_out, ahead, sizes, d_out_strides, rows, vectors, t)
            async_copy.commit_group()
            ahead = advanced(ahead, vectors, again, t)
            store_chunk(place, found * scale, of_chunk(step, chunks), vectors, t)
        first = (first + chunks + again) % field(t, "slots")


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
