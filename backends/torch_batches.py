"""torch's library calls, with single products made as batches of one.

cuBLAS chooses its kernel by other rules for a batch, also of one matrix: which of them is the faster isn't foreseen.
"""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch import TorchBackend
from einops_fast.steps import Fused, Gemm

__all__ = ["BatchingSingles", "has_single"]


def has_single(step: Fused) -> bool:
    """Whether the library's calls for a step are one product of two matrices, and what brings these into shape."""
    products = [each for each in step.library if isinstance(each, Gemm)]
    return len(products) == 1 and _is_single(products[0])


def _is_single(step: Gemm) -> bool:
    return not step.batch and step.m > 1 and step.n > 1 and step.buffer is None


class BatchingSingles(TorchBackend):
    """Emits the calls of :class:`TorchBackend`, but ``bmm`` in the place of ``mm``."""

    def gemm(self, step: Gemm) -> Run:
        if not _is_single(step):
            return super().gemm(step)
        left = self._matrices(step.left, step.transpose_left)
        right = self._matrices(step.right, step.transpose_right)
        shape = step.shape

        def run(a: Any, b: Any) -> Any:
            return torch.bmm(left(a).unsqueeze(0), right(b).unsqueeze(0)).view(shape)

        return run
