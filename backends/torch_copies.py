"""torch's library calls, with the copies of their operands made by a kernel of our own.

A copy into another axis order takes torch several times as long as its bytes do.
"""

from __future__ import annotations

from collections.abc import Hashable
from string import ascii_letters
from typing import Any

from einops_fast.backends.base import Run
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch import TorchBackend
from einops_fast.backends.torch_memory import TorchMemory
from einops_fast.backends.triton.candidates import kernel_candidates
from einops_fast.steps import Fused, Loop

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


def _copy_of(array: Any) -> Run:
    """What copies arrays like this one into C order."""
    memory = TorchMemory()
    shape, strides, device = tuple(array.shape), array.stride(), memory.device(array)
    labels = ascii_letters[: len(shape)]
    loops = tuple(Loop(label, size, (by,), True) for label, size, by in zip(labels, shape, strides, strict=True))
    step = Fused((0,), labels, shape, loops, False, ())
    ways = kernel_candidates(step, memory.dtype(array), gpu_ceilings(memory.device_name(device)))
    return ways[0].run(memory, device)
