"""The ways to launch the kernels of cross entropy and of its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.candidates import loss_tilings, row_call, typical
from einops_fast.backends.triton.rows.contest import Contest, Launch, Way
from einops_fast.backends.triton.rows.cross_entropy.kernel import (
    CrossEntropyFeatures,
    CrossEntropyStrides,
    cross_entropy_gradient_kernel,
    cross_entropy_kernel,
)
from einops_fast.backends.triton.rows.rows import Rows, RowTiling, neighbours, rows_of
from einops_fast.planning.cost import ITEM_SIZES
from einops_fast.planning.layout import Strides

__all__ = ["cross_entropy_contest"]


class _Rows(Way):
    """Rows by one program each, or by several if it is their gradient."""

    def __init__(
        self, features: CrossEntropyFeatures, rows: Rows, tiling: RowTiling, places: Any, ignored: int, gradient: bool
    ) -> None:
        self.name = tiling.name
        constants = {"f": features, "together": tiling.rows, "block": tiling.block}
        if not gradient:
            constants["whole"] = tiling.whole and not features.vector
        constants["stages"] = tiling.stages
        grid = -(-rows.count // tiling.rows), tiling.parts if gradient else 1
        kernel = cross_entropy_gradient_kernel if gradient else cross_entropy_kernel
        tail: tuple[Any, ...] = rows.sizes, places, rows.count, rows.columns
        tail = (*tail, tiling.part(rows.columns), ignored) if gradient else (*tail, ignored)
        self._call = KernelCall(kernel, grid, tail, constants, tiling.warps, 1)

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        return [(self._call, arrays)]


def cross_entropy_contest(
    memory: Memory, device: int, shared: int, mode: str, shape: Strides, strides: tuple[Strides, ...],
    along: int | None, dim: int, ignored: int, smoothing: float, z_loss: float, dtype: str, gradient: bool,
    in_place: bool,
) -> Contest:  # fmt: skip
    """The ways to run a cross entropy, or its gradient.

    The first takes logits, targets, weights of the classes and their sum, losses and logarithms; the other one the
    gradients of the losses after that, and those of the logits.

    Args:
        memory, device, shared: where arrays are, and how many bytes of shared memory a program may have there.
        mode: of :func:`einops_fast.autotune`.
        shape: of the logits.
        strides: of logits, targets, losses, the gradients of logits and those of losses.
        along: stride of the weights, or ``None``.
        dim: the axis of the classes.
        ignored: the target that counts for nothing.
        smoothing, z_loss: as in :class:`~einops_fast.backends.triton.rows.cross_entropy.kernel.CrossEntropyFeatures`.
        dtype: of the logits.
        gradient: that is wanted; ``in_place``: over the logits.
    """
    rows = rows_of(shape, dim, strides)
    x, target, loss, dx, d_loss = rows.strides
    size = ITEM_SIZES[dtype]
    vector, alike = rows.vector([0, 3], size), typical(rows)
    odd = rows.unit([0, 3]) % max(vector, 1) > 0
    places = CrossEntropyStrides(x, target, loss, dx, d_loss, (along or 0,))

    def features(tiling: RowTiling) -> CrossEntropyFeatures:
        cut = vector if tiling.rows == 1 and odd else 0
        return CrossEntropyFeatures(
            len(rows.sizes), smoothing, z_loss, rows.wide, dtype == "float64", cut,
            min(neighbours(rows, size), tiling.block), 1 if cut else rows.unit([0, 3]),
            rows.across(range(len(rows.strides))),
        )  # fmt: skip

    tilings = loss_tilings(alike, size, gradient, shared)
    ways = [_Rows(features(tiling), rows, tiling, places, ignored, gradient) for tiling in tilings]
    name = "cross entropy gradient" if gradient else "cross entropy"
    name = name if along is None else f"weighted {name}"
    return Contest(memory, device, row_call(name, alike, features(tilings[0]), mode, in_place), ways)
