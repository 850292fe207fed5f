"""Cross entropy of rows of logits with the numbers of classes, and its gradient.

The first kernel reads a row once and keeps the logarithm of its sum, one number; the second makes the gradient from the
logits and that number. There is no matrix of probabilities, and none of targets. The sum or the mean of losses takes
two launches more: sums of parts, and then of these, in a fixed order.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import kept_type
from einops_fast.backends.triton.rows.rows import RowFeatures
from einops_fast.backends.triton.rows.tiles import (
    body_place,
    cut_row,
    edges,
    exponential,
    exponentials,
    exponentials_of_rows,
    load_parameter,
    load_tile,
    lowest,
    own_rows,
    row_place,
    store_tile,
    within,
)


@dataclass(frozen=True)
class CrossEntropyFeatures(RowFeatures):
    """What the kernels are specialised for: ``smoothing`` is the share of the target that all classes have."""

    smoothing: float = 0.0
    z_loss: float = 0.0


class CrossEntropyStrides(NamedTuple):
    """Strides in elements: of the axes that count rows, then of the classes, which only ``x`` and ``dx`` have."""

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


@triton.jit
def _spread(score, weight, column, exists, strides, columns, f: tl.constexpr):
    """What is summed for label smoothing: scores, times the weights of their classes if there are such."""
    seen = tl.where(exists, score, 0.0)
    if weight is not None:
        seen *= load_parameter(weight, strides.weight, column, columns).to(kept_type(f))
    return seen


@triton.jit
def _summed(x, weight, place, column, first, exists, most, total, spread, strides, columns, f: tl.constexpr):
    """One more tile for the maxima and sums of its places. ``column`` counts from ``first`` on."""
    score = load_tile(x, place, column, strides.x, exists, float("-inf"), f)
    most, total = exponentials(score, most, total)
    if f.smoothing > 0:
        spread += _spread(score, weight, first + column, exists, strides, columns, f)
    return most, total, spread


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
    whole: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the loss of ``together`` rows and the logarithms of their sums. ``weights`` is the sum of ``weight``.

    A row is ``whole`` in one block or read in blocks. A class that doesn't exist makes the loss NaN.
    """
    acc: tl.constexpr = kept_type(f)
    row, there, columns = own_rows(rows, columns, f, together)
    run = tl.arange(0, block)
    place = row_place(row, sizes, strides.x, f)
    number, counts = _targets(target, row, there, sizes, strides, ignored, f)
    valid = counts & (number >= 0) & (number < columns)
    of_target = x + place + number * strides.x[f.axes]
    if whole:
        exists = there[:, None] & (run < columns)[None, :]
        score = load_tile(x, place, run, strides.x, exists, float("-inf"), f)
        # After the row, which needn't wait for the target.
        chosen = tl.load(of_target, mask=valid, other=0).to(acc)
        most = tl.maximum(tl.max(score, 1), lowest(f))
        total = tl.sum(exponential(score - most[:, None]), 1)
        spread = most
        if f.smoothing > 0:
            spread = tl.sum(_spread(score, weight, run, exists, strides, columns, f), 1)
    else:
        # Before the row, so that nobody waits for it at its end.
        chosen = tl.load(of_target, mask=valid, other=0).to(acc)
        head, body = cut_row(place, columns, f)
        from_head = body_place(place, head, f)
        totals = tl.zeros((together, block // f.group), acc)
        maxima = totals + lowest(f)
        spreads = tl.zeros((together, block), acc)
        for start in tl.range(0, body, block, num_stages=stages):
            exists = there[:, None] & within(start + run, body, f)
            maxima, totals, spreads = _summed(
                x, weight, from_head, start + run, head, exists, maxima, totals, spreads, strides, columns, f
            )
        most, total = exponentials_of_rows(maxima, totals)
        spread = tl.sum(spreads, 1)
        if f.vector > 0:
            column, exists = edges(head, body, columns, f)
            at_edges = tl.zeros((together, 2 * f.vector), acc)
            maxima, totals, spreads = _summed(
                x, weight, place, column, 0, exists, at_edges + lowest(f), at_edges, at_edges, strides, columns, f
            )
            at_edge, more = exponentials_of_rows(maxima, totals)
            both = tl.maximum(most, at_edge)
            total = total * tl.exp(most - both) + more * tl.exp(at_edge - both)
            most = both
            spread += tl.sum(spreads, 1)
    log = most + tl.log(total)
    loss = log - chosen
    if weight is not None:
        loss *= tl.load(weight + number * strides.weight[0], mask=valid, other=0).to(acc)
    if f.smoothing > 0:
        every = columns
        if weight is not None:
            every = tl.load(weights).to(acc)
        share = tl.full((), f.smoothing, acc)
        loss = (1.0 - share) * loss + share * ((log * every - spread) / columns)
    if f.z_loss > 0:
        loss += f.z_loss * log * log
    loss = tl.where(counts, tl.where(valid, loss, float("nan")), 0.0)
    place = row_place(row, sizes, strides.loss, f)
    tl.store(losses + place, loss, mask=there)
    tl.store(logs + place, log, mask=there)


@triton.jit
def _store_gradient(
    x, weight, dx, x_place, dx_place, column, first, exists, log, own, factor, each, number, counts, strides, columns,
    f: tl.constexpr,
):  # fmt: skip
    """Write a tile of the gradient; ``column`` counts from ``first`` on."""
    score = load_tile(x, x_place, column, strides.x, exists, float("-inf"), f)
    less = tl.where((first + column)[None, :] == number[:, None], own[:, None], 0.0)
    if f.smoothing > 0:
        if weight is not None:
            less += load_parameter(weight, strides.weight, first + column, columns).to(kept_type(f)) * each[:, None]
        else:
            less += each[:, None]
    gradient = exponential(score - log[:, None]) * factor[:, None] - less
    store_tile(dx, tl.where(counts[:, None], gradient, 0.0), dx_place, column, strides.dx, exists, f)


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
    part,
    ignored,
    f: tl.constexpr,
    together: tl.constexpr,
    block: tl.constexpr,
    stages: tl.constexpr,
):
    """Write the gradient of a part of some rows: probabilities times a number of the row, less the targets.

    ``dx`` may be ``x``.
    """
    acc: tl.constexpr = kept_type(f)
    row, there, columns = own_rows(rows, columns, f, together)
    run = tl.arange(0, block)
    number, counts = _targets(target, row, there, sizes, strides, ignored, f)
    valid = counts & (number >= 0) & (number < columns)
    log = tl.load(logs + row_place(row, sizes, strides.loss, f), mask=there, other=0)
    back = tl.load(d_losses + row_place(row, sizes, strides.d_loss, f), mask=there, other=0).to(acc)
    x_place = row_place(row, sizes, strides.x, f)
    dx_place = row_place(row, sizes, strides.dx, f)
    own = tl.full((together,), 1.0 - f.smoothing, acc)
    each = tl.full((), f.smoothing, acc) / columns
    if weight is not None:
        own *= tl.load(weight + number * strides.weight[0], mask=valid, other=0).to(acc)
    factor = own
    if f.smoothing > 0:
        if weight is not None:
            factor = factor + tl.load(weights).to(acc) * each
        else:
            factor = factor + f.smoothing
    if f.z_loss > 0:
        factor = factor + 2.0 * f.z_loss * log
    # A target that is no class makes all of its row NaN.
    factor = tl.where(valid, factor * back, float("nan"))
    own *= back
    of_each = each * back
    number = number.to(tl.int32)
    head, body = cut_row(x_place, columns, f)
    begin = tl.program_id(1) * part
    for start in tl.range(begin, min(begin + part, body), block, num_stages=stages):
        exists = there[:, None] & within(start + run, body, f)
        _store_gradient(
            x, weight, dx, body_place(x_place, head, f), body_place(dx_place, head, f), start + run, head, exists, log,
            own, factor, of_each, number, counts, strides, columns, f,
        )  # fmt: skip
    if f.vector > 0:
        column, exists = edges(head, body, columns, f)
        exists = exists & (begin == 0)
        _store_gradient(
            x, weight, dx, x_place, dx_place, column, 0, exists, log, own, factor, of_each, number, counts, strides,
            columns, f,
        )  # fmt: skip


@triton.jit(do_not_specialize=["count", "part", "classes", "ignored"])
def loss_sums_kernel(
    losses, target, weight, sums, count, part, classes, ignored, along, block: tl.constexpr, mean: tl.constexpr
):  # fmt: skip
    """Write the sum of a part of the losses and, for a mean, what the rows that count weigh, behind all those sums."""
    begin = tl.program_id(0).to(tl.int64) * part
    end = min(begin + part, count)
    total = tl.zeros((block,), losses.dtype.element_ty)
    weights = tl.zeros((block,), losses.dtype.element_ty)
    for start in range(begin, end, block):
        at = start + tl.arange(0, block)
        total += tl.load(losses + at, mask=at < end, other=0)
        if mean:
            number = tl.load(target + at, mask=at < end, other=0).to(tl.int64)
            counts = (at < end) & (number != ignored)
            if weight is not None:
                # What is no class has a loss that is NaN.
                counts = counts & (number >= 0) & (number < classes)
                weights += tl.load(weight + number * along, mask=counts, other=0).to(losses.dtype.element_ty)
            else:
                weights += counts.to(losses.dtype.element_ty)
    tl.store(sums + tl.program_id(0), tl.sum(total, 0))
    if mean:
        tl.store(sums + tl.num_programs(0) + tl.program_id(0), tl.sum(weights, 0))


@triton.jit(do_not_specialize=["parts"])
def loss_total_kernel(sums, total, divisor, parts, together: tl.constexpr, mean: tl.constexpr):
    """Write the sum of all parts, for a mean divided by what they weigh, and what that is."""
    at = tl.arange(0, together)
    found = tl.sum(tl.load(sums + at, mask=at < parts, other=0), 0)
    if mean:
        weights = tl.sum(tl.load(sums + parts + at, mask=at < parts, other=0), 0)
        tl.store(divisor, weights)
        found = found / weights
    tl.store(total, found.to(total.dtype.element_ty))
