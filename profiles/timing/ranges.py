"""What a profiler around this process sees: NVTX ranges named by case and phase, and when to record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from ctypes import CDLL
from importlib.util import find_spec
from typing import Any

__all__ = ["WATCHED", "is_watched", "ranged", "recorded"]

# Set by nvprof, nsys and ncu in the program that they watch: two profilers can't share a GPU.
WATCHED = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_COMPUTE_PROFILER_PERFWORKS_DIR")


def is_watched() -> bool:
    """Whether nvprof, nsys or ncu watches this process."""
    return any(name in os.environ for name in WATCHED)


def ranged(name: str) -> AbstractContextManager[Any]:
    """An NVTX range, where a profiler watches and the package nvtx is installed."""
    if not is_watched() or find_spec("nvtx") is None:
        return nullcontext()
    import nvtx

    annotation: AbstractContextManager[Any] = nvtx.annotate(name)
    return annotation


@contextmanager
def recorded() -> Iterator[None]:
    """What a CUDA profiler that waits for cudaProfilerStart records: the block and nothing else."""
    _tell("cuProfilerStart")
    try:
        yield
    finally:
        _tell("cuProfilerStop")


def _tell(switch: str) -> None:
    """Call the driver, which every framework shares; without a profiler nobody listens, without a GPU there is none."""
    if is_watched():
        with suppress(OSError):
            getattr(CDLL("libcuda.so.1"), switch)()
