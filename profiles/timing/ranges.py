"""What a profiler around this process sees: NVTX ranges named by case and phase, and when to record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from einops_fast.profiles.frameworks import Framework

__all__ = ["WATCHED", "is_watched", "phase", "ranged", "recorded"]

WATCHED = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID", "NV_COMPUTE_PROFILER_PERFWORKS_DIR")
"""Set by nvprof, nsys and ncu in the program that they watch: two profilers can't share a GPU."""


def is_watched() -> bool:
    """Whether nvprof, nsys or ncu watches this process."""
    return any(name in os.environ for name in WATCHED)


def phase(backward: bool) -> str:
    """The phase of a call, as ranges and traces name it."""
    return "backward" if backward else "forward"


def ranged(name: str) -> AbstractContextManager[Any]:
    """An NVTX range, where the package nvtx is installed."""
    if find_spec("nvtx") is None:
        return nullcontext()
    import nvtx

    annotation: AbstractContextManager[Any] = nvtx.annotate(name)
    return annotation


@contextmanager
def recorded(*frameworks: Framework) -> Iterator[None]:
    """What a CUDA profiler that waits for cudaProfilerStart records: the block and nothing else."""
    for framework in frameworks:
        framework.capture(True)
    try:
        yield
    finally:
        for framework in frameworks:
            framework.capture(False)
