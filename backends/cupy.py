"""CuPy: cuBLAS through ``matmul``, and CuPy's own reductions."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import cupy as cp

from einops_fast.backends.base import one_device
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.ndarray import NdarrayBackend
from einops_fast.steps import Diagonal
from einops_fast.target import Target

__all__ = ["CupyBackend"]


class CupyBackend(NdarrayBackend):
    """CuPy arrays."""

    name = "cupy"
    module = "cupy"

    def __init__(self) -> None:
        super().__init__(cp, cp.einsum)

    def signature(self, operands: Sequence[Any]) -> Hashable:
        return tuple([(a.shape, a.strides, a.dtype, a.device.id, type(a)) for a in operands])

    def target(self, operands: Sequence[Any]) -> Target:
        device = one_device([operand.device.id for operand in operands])
        properties = cp.cuda.runtime.getDeviceProperties(device)
        # CuPy's matmul copies an operand whose batch axes don't merge, and its ``out`` must be contiguous.
        return Target(self.name, f"cuda:{device}", gpu_ceilings(properties["name"].decode()), writes=False)

    def room(self, operands: Sequence[Any]) -> int | None:
        free, _ = cp.cuda.runtime.memGetInfo()
        pool = cp.get_default_memory_pool()
        return int(free + pool.free_bytes()) // max(int(operand.itemsize) for operand in operands)

    def example(self, shape: tuple[int, ...], dtype: str) -> Any:
        return cp.empty(shape, dtype)

    def diagonal(self, step: Diagonal) -> Any:
        groups = step.groups

        def run(a: Any) -> Any:
            strides = tuple(sum(a.strides[at] for at in group) for group in groups)
            shape = tuple(a.shape[group[0]] for group in groups)
            return cp.lib.stride_tricks.as_strided(a, shape, strides)

        return run
