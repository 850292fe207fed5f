"""Cross entropy of rows of logits with the numbers of classes, and its gradient.

The first kernel reads a row once and keeps the logarithm of its sum, one number; the second makes the gradient from the
logits and that number. There is no matrix of probabilities, and none of targets.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.loading import kept_type
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.row_tiles import load_tile, row_place, store_tile

__all__ = ["CrossEntropyFeatures", "CrossEntropyStrides", "cross_entropy_gradient_kernel", "cross_entropy_kernel"]


@dataclass(frozen=True)
class CrossEntropyFeatures:
    """Everything that the kernels are specialised for, apart from the tiles.

    Attributes:
        axes: how many count the rows.
        smoothing: share of the target that is spread over all classes.
        z_loss: factor of the square of the logarithm of the sum.
        wide: offsets inside a row need 64 bits.
        double: compute in float64.
    """

    axes: int
    smoothing: float = 0.0
    z_loss: float = 0.0
    wide: bool = False
    double: bool = False


class CrossEntropyStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the classes, which only ``x`` and ``dx`` have.

    All are tuples: where others are among them, Triton 3.6 loses the strides that are 1 in loops.
    """

    x: Any
    target: Any
    loss: Any
    dx: Any
    d_loss: Any
    weight: tuple[int]


@triton.jit
def _targets(target, row, there, sizes, strides, ignored, f: tl.constexpr):
    """The class of each row, and which rows count."""
    found = tl.load(target + row_place(row, sizes, strides.target, f), mask=there, other=0).to(tl.int64)
    return found, there & (found != ignored)


@triton.jit(do_not_specialize=["rows", "ignored"])
def cross_entropy_kernel(
    x,
    target,
    weight,
    weights,
    losses,
    logs,
    sizes,
    strides,
    rows,
    columns,
    ignored,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    """Write the loss of ``together`` rows and the logarithms of their sums. ``weights`` is the sum of ``weight``.

    A class that doesn't exist makes the loss NaN.
    """
    acc: tl.constexpr = kept_type(f)
    row = tl.program_id(0) * together + tl.arange(0, together)
    there = row < rows
    most = tl.full((together,), float("-inf"), acc)
    total = tl.zeros((together,), acc)
    spread = tl.zeros((together,), acc)
    place = row_place(row, sizes, strides.x, f)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        exists = there[:, None] & (column < columns)[None, :]
        score = load_tile(x, place, column, strides.x, exists, float("-inf"), f)
        new_most = tl.maximum(most, tl.max(score, 1))
        reference = tl.where(new_most == float("-inf"), 0.0, new_most)
        total = total * tl.exp(most - reference) + tl.sum(tl.exp(score - reference[:, None]), 1)
        most = new_most
        if field(f, "smoothing") > 0:
            seen = tl.where(exists, score, 0.0)
            if weight is not None:
                w = tl.load(weight + column * strides.weight[0], mask=column < columns, other=0).to(acc)
                seen = seen * w[None, :]
            spread += tl.sum(seen, 1)
    log = tl.where(most == float("-inf"), 0.0, most) + tl.log(total)
    number, counts = _targets(target, row, there, sizes, strides, ignored, f)
    valid = counts & (number >= 0) & (number < columns)
    chosen = tl.load(x + place + number * strides.x[field(f, "axes")], mask=valid, other=0).to(acc)
    loss = log - chosen
    if weight is not None:
        loss *= tl.load(weight + number * strides.weight[0], mask=valid, other=0).to(acc)
    if field(f, "smoothing") > 0:
        every = columns
        if weight is not None:
            every = tl.load(weights).to(acc)
        share = tl.full((), field(f, "smoothing"), acc)
        loss = (1.0 - share) * loss + share * ((log * every - spread) / columns)
    if field(f, "z_loss") > 0:
        loss += field(f, "z_loss") * log * log
    loss = tl.where(counts, tl.where(valid, loss, float("nan")), 0.0)
    place = row_place(row, sizes, strides.loss, f)
    tl.store(losses + place, loss, mask=there)
    tl.store(logs + place, log, mask=there)


@triton.jit(do_not_specialize=["rows", "ignored"])
def cross_entropy_gradient_kernel(
    x,
    target,
    weight,
    weights,
    logs,
    d_losses,
    dx,
    sizes,
    strides,
    rows,
    columns,
    ignored,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
):
    """Write a tile of the gradient of the logits: probabilities times a number of the row, less the targets."""
    acc: tl.constexpr = kept_type(f)
    row = tl.program_id(0) * together + tl.arange(0, together)
    there = row < rows
    column = tl.program_id(1) * block + tl.arange(0, block)
    exists = there[:, None] & (column < columns)[None, :]
    number, counts = _targets(target, row, there, sizes, strides, ignored, f)
    valid = counts & (number >= 0) & (number < columns)
    log = tl.load(logs + row_place(row, sizes, strides.loss, f), mask=there, other=0)
    back = tl.load(d_losses + row_place(row, sizes, strides.d_loss, f), mask=there, other=0).to(acc)
    score = load_tile(x, row_place(row, sizes, strides.x, f), column, strides.x, exists, float("-inf"), f)
    share: tl.constexpr = field(f, "smoothing")
    own = tl.full((together,), 1.0 - share, acc)
    if weight is not None:
        own *= tl.load(weight + number * strides.weight[0], mask=valid, other=0).to(acc)
    factor = own
    less = tl.where(column[None, :] == number[:, None], own[:, None], 0.0)
    if share > 0:
        each = tl.full((), share, acc) / columns
        if weight is not None:
            factor = factor + tl.load(weights).to(acc) * each
            w = tl.load(weight + column * strides.weight[0], mask=column < columns, other=0).to(acc)
            less += (w * each)[None, :]
        else:
            factor = factor + share
            less += each
    if field(f, "z_loss") > 0:
        factor = factor + 2.0 * field(f, "z_loss") * log
    gradient = (tl.exp(score - log[:, None]) * factor[:, None] - less) * back[:, None]
    gradient = tl.where(counts[:, None], tl.where(valid[:, None], gradient, float("nan")), 0.0)
    store_tile(dx, gradient, row_place(row, sizes, strides.dx, f), column, strides.dx, exists, f)
