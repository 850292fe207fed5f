"""torch's library calls, with the copies of their operands made by a kernel of our own.

A copy into another axis order takes torch several times as long as its bytes do.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from string import ascii_letters
from typing import Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.backend import TorchBackend
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.planning.steps import Arrange, Fused, Loop

__all__ = ["CopyingByKernel"]


class CopyingByKernel(TorchBackend):
    """Emits the calls of :class:`TorchBackend`; only for tensors on a GPU that no transform looks at."""

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

    def _matrices(self, how: Arrange, transpose: bool) -> Run:
        arranged = super()._matrices(how, transpose)
        if not (transpose and how.moves):
            return arranged
        turned: list[Run] = []

        def run(a: Any) -> Any:
            # cuBLAS takes up to 4 % less time for float32 where it has nothing to transpose, and so does a copy.
            if a.dtype != torch.float32:
                return arranged(a)
            if not turned:
                turned.append(self.arrange(_turned(how, tuple(a.shape))))
            return turned[0](a)

        return run


def _turned(how: Arrange, sizes: tuple[int, ...]) -> Arrange:
    """How an operand of these sizes is brought to matrices that are the other way round.

    >>> _turned(Arrange((1, 0, 2), (3, 8), "a reason"), (2, 3, 4))
    Arrange(perm=(0, 2, 1), shape=(8, 3), moves='a reason')
    """
    perm = how.perm or tuple(range(len(sizes)))
    *batch, rows, columns = how.shape or [sizes[at] for at in perm]
    first = _reaching(columns, [sizes[at] for at in perm], len(perm))
    second = _reaching(rows, [sizes[at] for at in perm], first)
    return Arrange((*perm[:second], *perm[first:], *perm[second:first]), (*batch, columns, rows), how.moves)


def _reaching(extent: int, sizes: list[int], end: int) -> int:
    """Where the axes begin that make up an extent together, and end there."""
    start = end
    while prod(sizes[start:end]) < extent:
        start -= 1
    return start


def _copy_of(array: Any) -> Run:
    """What copies arrays like this one into C order."""
    memory = TorchMemory()
    shape, strides, device = tuple(array.shape), array.stride(), memory.device(array)
    labels = ascii_letters[: len(shape)]
    loops = tuple(Loop(label, size, (by,), True) for label, size, by in zip(labels, shape, strides, strict=True))
    step = Fused((0,), labels, shape, loops, False, ())
    ways = kernel_candidates(step, memory.dtype(array), gpu_ceilings(memory.device_name(device)))
    return ways[0].run(memory, device)
