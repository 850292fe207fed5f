"""The backward kernels: weights are computed again from the logarithms of their sums, nothing is added atomically.

After FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 2, in two kernels:
:mod:`keys_gradient` and :mod:`queries_gradient`. What they share is here, and the kernel that comes before them.
With p the weights, the gradient of a score is ``p * (do @ v.T - delta)``, ``delta = sum(o * do) - dlse`` for each row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.general.loading import query_rows
from einops_fast.backends.triton.attention.general.score import LOG2E, allowed, dropped, factor_of, scored
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, kept_type

__all__ = ["delta_kernel", "log_and_delta", "score_gradient", "score_gradients", "weights_again"]


@triton.jit(do_not_specialize=["rows", "length"])
def delta_kernel(
    out, d_out, lse, d_lse, delta, padded, strides, sizes, rows, length,
    f: tl.constexpr, block: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Write ``delta`` of a tile of rows; 0 for a row that has seen no key. All sequences together are one here.

    If there is ``padded``, also the rows' logarithms as powers of two, infinite where no key was seen, and ``delta``
    once more, for each batch element; both go on to ``length`` as for rows that have seen none.
    """
    axes: tl.constexpr = field(f, "axes")
    acc: tl.constexpr = kept_type(f)
    zero = tl.full((), 0, tl.int64)
    tiles = tl.cdiv(length, block)
    element = tl.program_id(0) // tiles
    start = tl.program_id(0) % tiles * block
    run = (tl.arange(0, block) + zero)[:, None]
    exists = start + run < rows
    column = tl.arange(0, columns)[None, :]
    inside = exists & (column < field(f, "v_head_dim"))
    place = counted(element, sizes, strides.out, 0, axes) + (start + run) * (zero + strides.out[axes])
    o = tl.load(out + place + column * strides.out[axes + 1], mask=inside, other=0).to(acc)
    place = counted(element, sizes, strides.d_out, 0, axes) + (start + run) * (zero + strides.d_out[axes])
    do = tl.load(d_out + place + column * strides.d_out[axes + 1], mask=inside, other=0).to(acc)
    total = tl.sum(o * do, 1)[:, None]
    place = counted(element, sizes, strides.lse, 0, axes) + (start + run) * (zero + strides.lse[axes])
    if d_lse is not None:
        total -= tl.load(d_lse + place, mask=exists, other=0)
    log = tl.load(lse + place, mask=exists, other=float("-inf"))
    total = tl.where(log == float("-inf"), 0.0, total)
    tl.store(delta + place, total, mask=exists)
    if padded is not None:
        into = padded + (element + zero) * 2 * length + start + run
        tl.store(into, tl.where(log == float("-inf"), float("inf"), log * LOG2E))
        tl.store(into + length, total)


@triton.jit
def weights_again(
    products, log, i, j, segments, seed, head, call, f: tl.constexpr, masked: tl.constexpr = True, bias=None
):
    """Return weights, what dropout leaves of them, and the derivative of scores by scaled products.

    Tiles have queries along either axis. ``log`` is that of the row's sum as a power of two, infinite where the row has
    seen no key or doesn't exist.
    For ``bias``, see :func:`scored`.
    """
    score, derivative = scored(products, i, j, head, call, f, bias)
    weights = tl.exp2(score * factor_of(call, f) - log)
    if masked:
        weights = tl.where(allowed(i, j, segments, head, call, f), weights, 0.0)
    kept = weights
    if field(f, "dropout"):
        kept = dropped(weights, i, j, seed, head, call, f)
    return weights, kept, derivative


@triton.jit
def score_gradient(weights, kept, d_weights, delta, f: tl.constexpr):
    """Return the gradient of scores, from what :func:`weights_again` returns and the gradient of the kept weights."""
    if field(f, "dropout"):
        gradient = kept * d_weights - weights * delta
    else:
        gradient = weights * (d_weights - delta)
    return gradient


@triton.jit
def score_gradients(
    products, d_weights, rows, i, j, segments, seed, head, call, f: tl.constexpr, masked: tl.constexpr = True
):
    """Return weights (after dropping some), the gradient of scores, and that of scaled products.

    ``rows`` is what :func:`log_and_delta` says of these; for the rest, see :func:`weights_again`.
    """
    log, delta = rows
    weights, kept, derivative = weights_again(products, log, i, j, segments, seed, head, call, f, masked)
    gradient = score_gradient(weights, kept, d_weights, delta, f)
    return kept, gradient, gradient * derivative


@triton.jit
def log_and_delta(lse, delta, head, start, i, call, f: tl.constexpr):
    """Load the logarithms and ``delta`` of rows, in the shape of ``i``."""
    exists = i < head.q_len
    strides = call.strides.lse
    log = tl.load(query_rows(lse, strides, head, start, i, call, f), mask=exists, other=float("-inf"))
    log = tl.where(log == float("-inf"), float("inf"), log * LOG2E)
    return log, tl.load(query_rows(delta, strides, head, start, i, call, f), mask=exists, other=0)
