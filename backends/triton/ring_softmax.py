"""Softmax of long rows without a mask, through a ring of chunks in shared memory.

See :mod:`~einops_fast.backends.triton.row_ring`. What is computed is that of
:mod:`~einops_fast.backends.triton.softmax`; while it reads, each thread keeps a maximum and a sum of its own.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from collections.abc import Sequence

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.ring_tilings import Cut, ring_call, ring_for
from einops_fast.backends.triton.row_ring import (
    chunk_at,
    chunks_of,
    earlier,
    filled,
    next_chunks,
    ring_of,
    row_place,
    store_chunk,
    there,
)
from einops_fast.backends.triton.rows import Rows

__all__ = ["base_two_exp", "softmax_ring_kernel", "softmax_through_ring"]

_ELSEWHERE = {2: 16384, 4: 32768}
"""Columns up to which, on an H200, rows are rather kept in registers."""

_WHOLE = Cut(4, 8, 4)
_PART = Cut(2, 16, 2)
"""The fastest on an H200 where the ring has room for a row, and where it hasn't."""

_LOWEST = gl.constexpr(-3.4028234663852886e38)
"""The least number that isn't infinite: infinities would have no difference."""

_LOG2E = gl.constexpr(1.4426950408889634)


@gluon.jit
def base_two_exp(value):
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
        t: a :class:`~einops_fast.backends.triton.ring_tilings.RingTiling`.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    threads: gl.constexpr = field(t, "threads")
    programs = gl.num_programs(0)
    ring = ring_of(x, t)
    chunks = chunks_of(vectors, t)
    ahead = filled(ring, x, sizes, x_strides, rows, vectors, t)
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
            new, old, ahead, slot, freed = next_chunks(
                ring, x, ahead, slot, freed, before, step, kept, sizes, x_strides, rows, vectors, t
            )

            score = _score(new, scale, scaled)
            if field(t, "ragged"):
                score = gl.where(there(chunk_at(step, chunks, t), vectors, t), score, float("-inf"))
            both = gl.maximum(most, gl.max(gl.max(score, 2), 0))
            total = total * base_two_exp(most - both) + gl.sum(gl.sum(base_two_exp(score - both[None, :, None]), 2), 0)
            most = both

            score = _score(old, scale, scaled)
            if log:
                found = score - most_of_row - shift
            else:
                found = base_two_exp(score - most_of_row) * factor
            store_chunk(place, found, chunk_at(earlier(step, chunks, kept), chunks, t), have, t)
        most_of_row = gl.max(most, 0)
        total_of_row = gl.sum(total * base_two_exp(most - most_of_row), 0)
        factor = 1.0 / total_of_row
        shift = gl.log(total_of_row)


def softmax_through_ring(
    rows: Rows, items: Sequence[int], log: bool, scale: float, shared: int, processors: int
) -> KernelCall | None:
    """The kernel for softmax without a mask, of the arrays that ``softmax_kernel`` takes.

    Args:
        rows: how scores and result lie, in this order, and maybe others.
        items, shared, processors: see :func:`~einops_fast.backends.triton.ring_tilings.ring_for`, also for what is
            returned.
        log: whether the logarithm is wanted.
        scale: of the scores.
    """
    ring = ring_for(rows, items, 1, shared, processors, _ELSEWHERE, _WHOLE, _PART)
    return ring_call(softmax_ring_kernel, ring, rows, 2, (), (scale,), {"scaled": scale != 1.0, "log": log})
