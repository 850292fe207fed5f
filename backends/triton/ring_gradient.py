"""The gradient of softmax of long rows, through a ring of chunks in shared memory.

Of two arrays there is less room in shared memory. So unlike the other kernels with rings (see
:mod:`~einops_fast.backends.triton.row_ring`), this one has one row at a time, and all slots are used for all copies:
these are made, used and replaced in one order. Of a row of five chunks, of which three are kept, it is 0 1 2 3 4 0 1.
The first pass uses 0 1 2 3 4 and makes room for new ones after 0 and 1; the second uses 2 3 4 0 1, and makes room after
each of these.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from collections.abc import Sequence

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.ring_softmax import base_two_exp
from einops_fast.backends.triton.ring_tilings import Cut, ring_call, ring_for
from einops_fast.backends.triton.row_ring import (
    chunks_of,
    copy,
    ring_of,
    row_place,
    store_chunk,
)
from einops_fast.backends.triton.rows import Rows

__all__ = ["gradient_through_ring", "softmax_gradient_ring_kernel"]

_ELSEWHERE = {2: 32768, 4: 16384}
"""Columns up to which, on an H200, rows are rather kept in registers."""

_CUT = Cut(4, 8, 2, turned=False, apart=False)
"""The fastest on an H200."""


@gluon.jit
def _chunk(step, chunks):
    """After the last chunk of a row come those again that there was no room for."""
    return gl.where(step < chunks, step, step - chunks)


@gluon.jit
def _copy_pair(
    results, gradients, out, d_out, ahead, sizes, out_strides, d_out_strides, rows, vectors, again, t: gl.constexpr
):
    """Have a chunk of both arrays copied; ``ahead`` says which one, and where to. Gives what is copied after this."""
    row, step, slot = ahead
    chunks = chunks_of(vectors, t)
    place = row, _chunk(step, chunks)
    copy(results, out, place, slot, sizes, out_strides, rows, vectors, t)
    copy(gradients, d_out, place, slot, sizes, d_out_strides, rows, vectors, t)
    last = step + 1 == chunks + again
    row = gl.where(last, row + gl.num_programs(0), row)
    slot = gl.where(slot + 1 == field(t, "slots"), 0, slot + 1)
    return row, gl.where(last, 0, step + 1), slot


@gluon.jit
def _pair(results, gradients, number, log: gl.constexpr, masked: gl.constexpr, t: gl.constexpr):
    """A chunk of the result and of its gradient, from its number among those copied, once it has arrived.

    The copies of each step are a group, also if there are none. Between the copy to a slot and the slot's first use
    there is a step for each other slot, which is used in it, maybe for the last time: so many groups may be on their
    way.
    """
    slots: gl.constexpr = field(t, "slots")
    async_copy.wait_group(slots - 1)
    y = results.index(number % slots).load(field(t, "layout")).to(gl.float32)
    d = gradients.index(number % slots).load(field(t, "layout")).to(gl.float32)
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

    The arrays are those of :func:`~einops_fast.backends.triton.softmax_gradient.softmax_gradient_kernel`; ``totals``
    isn't used. The other arguments are those of
    :func:`~einops_fast.backends.triton.ring_softmax.softmax_ring_kernel`; ``masked`` says whether some elements were
    hidden.
    """
    of_threads: gl.constexpr = field(t, "of_threads")
    results = ring_of(out, t)
    gradients = ring_of(d_out, t)
    chunks = chunks_of(vectors, t)
    again = chunks - kept
    ahead = gl.program_id(0), 0, 0
    for _ in range(field(t, "slots")):
        ahead = _copy_pair(
            results, gradients, out, d_out, ahead, sizes, out_strides, d_out_strides, rows, vectors, again, t
        )
        async_copy.commit_group()
    first = 0
    for row in range(gl.program_id(0), rows, gl.num_programs(0)):
        total = gl.zeros([field(t, "threads")], gl.float32, of_threads)
        for step in range(chunks):
            y, d = _pair(results, gradients, first + step, log, masked, t)
            # Beyond the end of a row both are 0.
            summand = d if log else y * d
            total += gl.sum(gl.sum(summand, 2), 0)
            if step < again:
                ahead = _copy_pair(
                    results, gradients, out, d_out, ahead, sizes, out_strides, d_out_strides, rows, vectors, again, t
                )
            async_copy.commit_group()
        total_of_row = gl.sum(total, 0)
        place = row_place(dx, row, sizes, dx_strides, t)
        for step in range(again, chunks + again):
            y, d = _pair(results, gradients, first + step, log, masked, t)
            if log:
                found = d - base_two_exp(y) * total_of_row
            else:
                found = y * (d - total_of_row)
            ahead = _copy_pair(
                results, gradients, out, d_out, ahead, sizes, out_strides, d_out_strides, rows, vectors, again, t
            )
            async_copy.commit_group()
            store_chunk(place, found * scale, _chunk(step, chunks), vectors, t)
        first = (first + chunks + again) % field(t, "slots")


def gradient_through_ring(
    rows: Rows, items: Sequence[int], log: bool, masked: bool, scale: float, shared: int, processors: int
) -> KernelCall | None:
    """The kernel for the gradient of softmax, of the arrays that ``softmax_gradient_kernel`` takes.

    Args:
        rows: how the result, its gradient and that of the scores lie, in this order.
        items, shared, processors: see :func:`~einops_fast.backends.triton.ring_tilings.ring_for`, also for what is
            returned.
        log: whether it is that of the logarithm.
        masked: whether some elements were hidden.
        scale: of the scores.
    """
    ring = ring_for(rows, items, 2, shared, processors, _ELSEWHERE, _CUT, _CUT)
    return ring_call(softmax_gradient_ring_kernel, ring, rows, 3, (), (scale,), {"log": log, "masked": masked})
