"""Further ways to make the calls of torch for a step on a GPU: which takes the least time is found by measurement."""

from __future__ import annotations

from collections.abc import Hashable
from string import ascii_letters
from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.backend import TorchBackend
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.contraction.library import LibraryCalls
from einops_fast.planning.steps import Fused, Gemm, Loop


def other_libraries(step: Fused) -> list[LibraryCalls]:
    """The ways besides those of :class:`TorchBackend`."""
    found = []
    if has_single(step) and step.any_order:
        found.append(LibraryCalls("library the other way round", TurningSingles().library(step), in_order=False))
    if any(isinstance(each, Gemm) and (each.left.moves or each.right.moves) for each in step.library):
        found.append(LibraryCalls("library on copies by a kernel", CopyingByKernel().library(step), compiles_late=True))
    return found


def has_single(step: Fused) -> bool:
    """Whether the library's calls for a step are one product of two matrices, and what brings these into shape."""
    products = [each for each in step.library if isinstance(each, Gemm)]
    return len(products) == 1 and _is_single(products[0])


def _is_single(step: Gemm) -> bool:
    return not step.batch and step.m > 1 and step.n > 1 and step.buffer is None


class TurningSingles(TorchBackend):
    """Emits the calls of :class:`TorchBackend`, but multiplies two matrices transposed, the last one first.

    The result's rows and columns change places in memory. For cuBLAS that is another problem, with other kernels.
    """

    def gemm(self, step: Gemm) -> Run:
        if not _is_single(step):
            return super().gemm(step)
        left = self._matrices(step.left, step.transpose_left)
        right = self._matrices(step.right, step.transpose_right)
        shape = step.shape
        return lambda a, b: torch.mm(right(b).mT, left(a).mT).mT.view(shape)


class CopyingByKernel(TorchBackend):
    """Emits the calls of :class:`TorchBackend`, with the copies of their operands made by a kernel of our own.

    A copy into another axis order takes torch several times as long as its bytes do. Only for tensors on a GPU that no
    transform looks at.
    """

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[Hashable, Run] = {}

    def contiguous(self, array: Any) -> Any:
        if array.is_contiguous():
            return array
        key = array.shape, array.stride(), array.dtype
        copy = self._copies.get(key)
        if copy is None:
            copy = self._copies[key] = _copy_of(array)
        return copy(array)


def _copy_of(array: Any) -> Run:
    """Return a function that copies arrays like this one into C order."""
    from einops_fast.backends.triton.contraction.candidates import kernel_candidates  # imports Triton

    memory = TorchMemory()
    shape, strides, device = tuple(array.shape), array.stride(), memory.device(array)
    labels = ascii_letters[: len(shape)]
    loops = tuple(Loop(label, size, (by,), True) for label, size, by in zip(labels, shape, strides, strict=True))
    step = Fused((0,), labels, shape, loops, False, ())
    ways = kernel_candidates(step, memory.dtype(array), gpu_ceilings(memory.device_name(device)))
    return ways[0].run(memory, device)
