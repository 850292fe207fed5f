"""The sum or the mean of the losses of rows, in two launches: sums of parts, and then of these, in a fixed order."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["loss_sums_kernel", "loss_total_kernel"]


@triton.jit(do_not_specialize=["count", "part", "classes", "ignored"])
def loss_sums_kernel(
    losses, target, weight, sums, count, part, classes, ignored, along, block: tl.constexpr, mean: tl.constexpr
):  # fmt: skip
    """Write the sum of a part of the losses and, for a mean, what the rows that count weigh, behind all those sums."""
    acc: tl.constexpr = losses.dtype.element_ty
    begin = tl.program_id(0).to(tl.int64) * part
    end = min(begin + part, count)
    total = tl.zeros((block,), acc)
    weights = tl.zeros((block,), acc)
    for start in range(begin, end, block):
        at = start + tl.arange(0, block)
        total += tl.load(losses + at, mask=at < end, other=0)
        if mean:
            number = tl.load(target + at, mask=at < end, other=0).to(tl.int64)
            counts = (at < end) & (number != ignored)
            if weight is not None:
                # What is no class has a loss that is NaN.
                counts = counts & (number >= 0) & (number < classes)
                weights += tl.load(weight + number * along, mask=counts, other=0).to(acc)
            else:
                weights += counts.to(acc)
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
