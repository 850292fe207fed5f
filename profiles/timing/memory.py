"""The most memory that a call holds at once beside its operands, where the framework can tell."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from einops_fast.profiles.frameworks import Framework, Unavailable

__all__ = ["peak_memory"]


def peak_memory(framework: Framework, call: Callable[[], Any]) -> int:
    """Bytes that ``call`` holds at most, its result included, beyond what there was before.

    On a GPU the allocator of torch keeps count; on a CPU NumPy tells :mod:`tracemalloc` of its arrays, and the
    profiler of torch sees every allocation.
    """
    if framework.name == "numpy":
        return _traced(call)
    if framework.name == "torch":
        return _on_gpu(framework, call) if framework.device == "gpu" else _seen_by_profiler(framework, call)
    raise Unavailable(f"{framework.name} doesn't tell what memory it takes")


def _traced(call: Callable[[], Any]) -> int:
    call()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before


def _on_gpu(framework: Any, call: Callable[[], Any]) -> int:
    cuda = framework.torch.cuda
    call()
    cuda.reset_peak_memory_stats()
    before = cuda.memory_allocated()
    call()
    return int(cuda.max_memory_allocated() - before)


def _seen_by_profiler(framework: Any, call: Callable[[], Any]) -> int:
    profiler = framework.torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return int(max(accumulate(changes, initial=0)))
