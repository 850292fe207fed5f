"""torch's library calls, with single products made the other way round: of both operands transposed, last one first.

The result's rows and columns change places in memory. For cuBLAS that is another problem, with other kernels: which of
the two takes longer isn't foreseen.
"""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch import TorchBackend
from einops_fast.steps import Fused, Gemm

__all__ = ["TurningSingles", "has_single"]


def has_single(step: Fused) -> bool:
    """Whether the library's calls for a step are one product of two matrices, and what brings these into shape."""
    products = [each for each in step.library if isinstance(each, Gemm)]
    return len(products) == 1 and _is_single(products[0])


def _is_single(step: Gemm) -> bool:
    return not step.batch and step.m > 1 and step.n > 1 and step.buffer is None


class TurningSingles(TorchBackend):
    """Emits the calls of :class:`TorchBackend`, but for products of two matrices."""

    def gemm(self, step: Gemm) -> Run:
        if not _is_single(step):
            return super().gemm(step)
        left = self._matrices(step.left, step.transpose_left)
        right = self._matrices(step.right, step.transpose_right)
        shape = step.shape

        def run(a: Any, b: Any) -> Any:
            return torch.mm(right(b).mT, left(a).mT).mT.view(shape)

        return run
