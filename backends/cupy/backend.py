"""CuPy: cuBLAS through ``matmul``, and CuPy's own reductions."""

from __future__ import annotations

import os
from collections.abc import Hashable, Sequence
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import cupy as cp

from einops_fast.backends.base import Run, one_device
from einops_fast.backends.capabilities import KERNELS
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.ndarray import NdarrayBackend
from einops_fast.backends.triton_support import why_unusable
from einops_fast.planning.steps import Diagonal, Fused, Gemm, Step
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.precision import settled
from einops_fast.runtime.tuning import current_mode

_KERNEL_DTYPES = frozenset({"float16", "float32", "float64", "complex64", "complex128"})


@lru_cache(maxsize=1)
def _has_triton() -> bool:
    """Whether our own kernels can run: Triton finds the GPU through torch, one that is built for CUDA."""
    return why_unusable() is None and find_spec("torch") is not None and import_module("torch").cuda.is_available()


class CupyBackend(NdarrayBackend):
    """CuPy arrays."""

    name = "cupy"
    module = "cupy"

    def __init__(self) -> None:
        super().__init__(cp, cp.einsum)

    def float32_precision(self) -> str:
        return settled("tf32" if os.environ.get("CUPY_TF32") == "1" else "ieee")

    def signature(self, operands: Sequence[Any]) -> Hashable:
        state = current_mode(), self.float32_precision()
        return tuple([(a.shape, a.strides, a.dtype, a.device.id, type(a)) for a in operands]), state

    def target(self, operands: Sequence[Any]) -> Target:
        device = one_device([operand.device.id for operand in operands])
        properties = cp.cuda.runtime.getDeviceProperties(device)
        runs = KERNELS.has((properties["major"], properties["minor"])) and _has_triton()
        # CuPy's matmul copies an operand whose batch axes don't merge, and its ``out`` must be contiguous.
        return Target(
            self.name,
            f"cuda:{device}",
            gpu_ceilings(properties["name"].decode()),
            writes=False,
            kernels=_KERNEL_DTYPES if runs else frozenset(),
        )

    def numerics(self, operands: Sequence[Any], dtype: Any, casting: str) -> Numerics:
        numerics = super().numerics(operands, dtype, casting)
        # Unlike a CPU's BLAS, cuBLAS and our own kernels multiply half-precision numbers and sum in float32.
        return Numerics("float16", "float16") if numerics.result == "float16" else numerics

    def writing(self, step: Step, out: Operand, adds: bool) -> Run | None:
        # Its matmul copies to any other out.
        writes = adds or not isinstance(step, Gemm) or out.contiguous
        return super().writing(step, out, adds) if writes else None

    def fused(self, step: Fused) -> Run:
        from einops_fast.backends.cupy.memory import CupyMemory
        from einops_fast.backends.triton.contraction.choice import Choice, chosen_run

        return chosen_run(Choice(step, self.library(step), CupyMemory(), self.float32_precision(), current_mode()))

    def room(self, operands: Sequence[Any]) -> int | None:
        free, _ = cp.cuda.runtime.memGetInfo()
        pool = cp.get_default_memory_pool()
        return int(free + pool.free_bytes()) // max(int(operand.itemsize) for operand in operands)

    def mark(self, array: Any) -> Any:
        stream = cp.cuda.get_current_stream()
        if stream.is_capturing():
            return None
        event = cp.cuda.Event()
        event.record(stream)
        return event

    def between(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(cp.cuda.get_elapsed_time(start, end) * 1e-3)

    def example(self, shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> Any:
        made = cp.empty(shape, dtype)
        steps = None if strides is None else [stride * made.itemsize for stride in strides]
        return cp.lib.stride_tricks.as_strided(made, shape, steps)

    def diagonal(self, step: Diagonal) -> Any:
        groups = step.groups

        def run(a: Any) -> Any:
            strides = tuple(sum(a.strides[at] for at in group) for group in groups)
            shape = tuple(a.shape[group[0]] for group in groups)
            return cp.lib.stride_tricks.as_strided(a, shape, strides)

        return run
