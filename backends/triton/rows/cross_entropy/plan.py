"""The ways to launch the kernels of cross entropy, of its gradient, and of the sum or the mean of the losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.contest import Call, Contest, Site, Way
from einops_fast.backends.triton.rows.cross_entropy.kernel import (
    CrossEntropyFeatures,
    CrossEntropyStrides,
    cross_entropy_gradient_kernel,
    cross_entropy_kernel,
    loss_sums_kernel,
    loss_total_kernel,
)
from einops_fast.backends.triton.rows.plan import Operands, RowCall, size_of
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, rows_of
from einops_fast.backends.triton.rows.tilings import loss_tilings

_BLOCK, _MOST_PARTS = 1024, 256
"""Losses that a program adds at a time, and how many programs there are at most."""


def cross_entropy(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of a cross entropy: logits, targets, weights, their sum, losses and logarithms."""
    x, target, weight, _ = given
    losses, _ = made
    return _contest(site, (x, target, losses, x, losses), weight, (*given, *made), numbers[:4], None)


def cross_entropy_gradient(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the contest of the gradient: logits, targets, weights, their sum, logarithms, gradients of losses, result.

    With the last of the numbers it is written over the logits.
    """
    x, target, weight, _, logs, d_losses = given
    return _contest(site, (x, target, logs, *made, d_losses), weight, (*given, *made), numbers[:4], numbers[4])


def _contest(
    site: Site, arrays: Operands, weight: Any, operands: Operands, numbers: Sequence[Any], in_place: bool | None
) -> Contest:
    """Return the contest of the kernel, or of that of the gradient if it may be ``in_place``.

    ``arrays`` are logits, targets, losses, gradients of logits and those of losses.
    """
    x, (dim, ignored, smoothing, z_loss), gradient = arrays[0], numbers, in_place is not None
    size = size_of(x)
    # What has no axis of classes gets stride 0 there.
    strides = [
        each.strides if len(each.strides) == len(x.shape) else (*each.strides[:dim], 0, *each.strides[dim:])
        for each in arrays
    ]
    rows = rows_of(x.shape, dim, strides)
    vector, along = rows.cut([0, 3], size), (0,) if weight is None else weight.strides
    plain = CrossEntropyFeatures(
        **rows.features([0, 3], double=x.dtype == "float64"), smoothing=smoothing, z_loss=z_loss
    )

    def features(tiling: RowTiling) -> CrossEntropyFeatures:
        found = replace(plain, group=min(rows.neighbours(size), tiling.block))
        return replace(found, vector=vector, unit=1) if vector and tiling.rows == 1 else found

    def places(rows: Rows) -> CrossEntropyStrides:
        x, target, loss, dx, d_loss = rows.strides
        return CrossEntropyStrides(x, target, loss, dx, d_loss, along)

    name = f"{'' if weight is None else 'weighted '}cross entropy{' gradient' if gradient else ''}"
    call = RowCall(site, name, rows, plain, places, operands, bool(in_place))
    tilings = loss_tilings(call.alike, size, gradient, site.limits[0])

    def way(tiling: RowTiling) -> Way:
        f, programs = features(tiling), -(-rows.count // tiling.rows)
        if gradient:
            kernel = call.kernel(
                cross_entropy_gradient_kernel, tiling, (programs, tiling.parts), (tiling.part(rows.columns), ignored),
                f, stages=tiling.stages,
            )  # fmt: skip
        else:
            kernel = call.kernel(
                cross_entropy_kernel, tiling, (programs, 1), (ignored,), f, whole=tiling.whole and not f.vector,
                stages=tiling.stages,
            )  # fmt: skip
        return Way(tiling.name, [(kernel, range(len(operands)))])

    return replace(call, features=features(tilings[0])).contest([way(tiling) for tiling in tilings])


def reduced_losses(site: Site, given: Operands, made: Operands, numbers: Sequence[Any]) -> Contest:
    """Return the launches for the sum or the mean of losses: sums of parts, and then of these, in a fixed order.

    They take losses, targets, weights of the classes, the result and what it was divided by.
    """
    losses, _, weight = given
    classes, ignored, mean, _ = numbers
    count = prod(losses.shape)
    parts = min(-(-count // _BLOCK), _MOST_PARTS)
    part = -(-count // (parts * _BLOCK)) * _BLOCK
    parts = -(-count // part)
    along = 0 if weight is None else weight.strides[0]
    numbers, constants = (count, part, classes, ignored, along), {"block": _BLOCK, "mean": mean}
    sums = KernelCall(loss_sums_kernel, (parts, 1), numbers, constants, 4, 1)
    total = KernelCall(loss_total_kernel, (1, 1), (parts,), {"together": power_of_two(parts), "mean": mean}, 1, 1)
    way = Way("sums", [(sums, (0, 1, 2, 5)), (total, (5, 3, 4))], [(parts * (1 + mean), losses.dtype)])
    return Contest(site, Call("sum of losses", {}), [way])
