"""Price plans for tensors: the rates that torch's own functions reach on a device."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from einops_fast.backends.absent_gpu import AbsentGpu, aimed
from einops_fast.backends.capabilities import KERNELS
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.torch.steps import without_onednn
from einops_fast.backends.triton_support import why_unusable
from einops_fast.dtypes import dtype_name
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.target import Target
from einops_fast.runtime.tuning import current_mode

KERNEL_DTYPES = frozenset(
    {"float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "complex64", "complex128"}
)
"""The dtypes that our own kernels take."""

_BLOCK = 1 << 18
"""Elements of a product that are made at a time on a CPU: 1 MiB of float32, which a core's cache holds."""


@lru_cache(maxsize=256)
def target_of(
    device: Any,
    half: bool,
    threads: int,
    transformed: bool,
    gradients: bool,
    whole: bool,
    kernels: frozenset[str],
    reproducible: bool = False,
    aim: AbsentGpu | None = None,
) -> Target:
    """Return where plans run for operands that differ in nothing else.

    Whether :func:`einops_fast.autotune` is set to ``reproducible`` decides whose ceilings hold, and is asked for there.
    """
    return Target(
        "torch",
        str(device) if aim is None else aim.name,
        ceilings_of(device, half, threads, whole) if aim is None else gpu_ceilings(aim.name),
        folds_batch=True,
        # oneDNN, which does half-precision products, is slow where it writes to a view of the result.
        writes=not (transformed or (device.type == "cpu" and half)),
        # MKL's batched product wants a contiguous result; without it bmm is a loop.
        writes_strided=device.type == "cuda" or aim is not None,
        drops_expanded=whole,
        kernels=kernels,
        gradients=gradients,
    )


def ceilings_of(device: Any, half: bool, threads: int, writes: bool) -> Ceilings:
    """Return the ceilings of a device."""
    if device.type == "cuda":
        if current_mode() == "auto":
            from einops_fast.backends.torch.rates import measure_when_idle

            measure_when_idle(torch.cuda.current_device() if device.index is None else device.index)
        return gpu_ceilings(torch.cuda.get_device_name(device))
    # The meta device, too: a plan for arrays that don't exist is a plan for this CPU. oneDNN, which does the
    # half-precision products, takes longer to set each one up.
    rates = {"float32": 8e10, "float64": 4e10, "bfloat16": 2e11, "float16": 2e11}
    return Ceilings(
        bandwidth=2e10,
        runs=8e9 * threads,
        gather=4e9,
        flops={dtype: rate * threads for dtype, rate in rates.items()},
        call=2e-6,
        again=6e-6,
        item=4e-7 if half else 3e-8,
        run=6e-9 / threads,
        broadcast=2e10,
        # Nothing can be written into blocks that a transform, or autograd, would have to follow.
        block=_BLOCK if writes else 0,
        blocked=1e9 * threads,
        small=400,
        small_rate=1.2e9 * threads,
        small_item=1.2e-8,
        dots={"float16": 1.8e8 * threads, "bfloat16": 1.6e8 * threads},
        # Where oneDNN has none of halves, torch's own loops run, in float32.
        dot_kernels=frozenset({"float32", "float64", *map(dtype_name, without_onednn())}),
    )


def aimed_at(device: torch.device) -> AbsentGpu | None:
    """Return the GPU that isn't here and that plans for tensors on this device are made for, if they are."""
    return aimed() if device.type == "meta" else None


def kernel_dtypes(device: torch.device) -> frozenset[str]:
    """Return the dtypes that our own kernels take: none without Triton, or on a GPU that it wasn't written for."""
    return _kernel_dtypes(device) if aimed_at(device) is None else KERNEL_DTYPES


@lru_cache(maxsize=64)
def _kernel_dtypes(device: torch.device) -> frozenset[str]:
    if device.type != "cuda" or torch.version.hip is not None:
        return frozenset()
    if not KERNELS.has(torch.cuda.get_device_capability(device)):
        return frozenset()
    return KERNEL_DTYPES if why_unusable() is None else frozenset()
