"""What Hopper's backward kernels share: :mod:`queries_gradient`, :mod:`keys_gradient` and
:mod:`bias_gradient`, which are built like the forward one.

Each recomputes the weights from the logarithms of the rows' sums. That is more products than one kernel would need that
owned keys and added to the gradient of q from all sides; but nothing is added atomically, so the bits are the same
every time.

A warp group has the products with the next block begun before it waits for those that use this block's weights, and
works out the next weights while the last ones are under way. What it waits for is waited for in the same pass of the
loop: what is under way from one pass to the next, the assembler makes wait at once.

The formulas are those of FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 2.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.attention.hopper.pipes import there
from einops_fast.backends.triton.attention.hopper.positions import without
from einops_fast.backends.triton.attention.hopper.products import begun, product, tiles_of
from einops_fast.backends.triton.attention.hopper.scores import hidden, powers, scored


class Operands(NamedTuple):
    """Descriptors of the operands, or their tiles in shared memory; ``added`` has those of bias and mask.

    ``rows`` has those of rows' numbers where blocks have queries, ``notes`` which tile is whose turn.
    """

    q: Any
    k: Any
    v: Any
    d_out: Any
    rows: Any
    added: Any
    notes: Any = None


@gluon.jit
def logs_of(rows, element, i, numbers):
    """Logarithms of the sums of rows ``i`` as powers of two; infinite where there is no query, or none of its keys."""
    return gl.load(rows + element.to(gl.int64) * 2 * numbers.padded + i)


@gluon.jit
def delta_of(rows, element, i, numbers):
    """What is taken off the gradients of the weights; 0 where there is no query."""
    return gl.load(rows + (element.to(gl.int64) * 2 + 1) * numbers.padded + i)


@gluon.jit
def weights_of(products, extra, i, j, logs, partly, ends: gl.constexpr, numbers, tiling: gl.constexpr):
    """The weights of a block, and by what their scores' gradients are multiplied for the softcap.

    ``extra`` is bias and mask, ``partly`` what :func:`~.positions.sides` says of the block. With ``ends``, keys may not
    exist: they have no features either, but their weights may be infinite.
    """
    bias, mask = extra
    logs = logs[None, :] if tiling.turned else logs[:, None]
    scores, scale, slope = scored(products, bias, numbers, tiling)
    weights = hidden(powers(scores, scale, logs, bias, tiling), mask, 0.0, tiling)
    # A branch, and not a loop of its own: there are no registers for two.
    if (ends or tiling.left or tiling.right) and partly > 0:
        if tiling.turned:
            weights = without(weights, i[None, :], j[:, None], 0.0, partly, numbers, tiling)
        else:
            weights = without(weights, i[:, None], j[None, :], 0.0, partly, numbers, tiling)
    return weights, slope


@gluon.jit
def begun_more(right, more, count, zeros, operand: gl.constexpr, tiling: gl.constexpr):
    """The same with values or gradients of the result, which may come with the others."""
    stages: gl.constexpr = tiling.second_stages
    if tiling.second:
        there(more, count, stages)
    return product(right, tiles_of(more.buffers, count % stages, operand, tiling), zeros, 1, tiling)


@gluon.jit
def both_products(
    left, right, others, more, count, zeros, first: gl.constexpr, second: gl.constexpr, tiling: gl.constexpr
):  # fmt: skip
    """Start the products of two tiles' parts, of one's own rows, with block ``count`` of the other two operands.

    Keys and values meet queries and gradients of the result (``first`` and ``second``), or the other way round.
    """
    started = begun(left, others, count, zeros, first, tiling)
    return started, begun_more(right, more, count, zeros, second, tiling)
