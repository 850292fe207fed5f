"""What a call holds at most, as Python, or torch's allocator, tells it."""

import tracemalloc
from collections.abc import Callable
from itertools import accumulate
from typing import Any

PYTHON = 1 << 15
"""Bytes of the interpreter's own objects, about: plans, views, loops; there are more of many operands."""


def peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what a call does the second time, and the most bytes that it takes then."""
    call()
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def torch_peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what a call does, and the most bytes that torch allocates for it at a time on a CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        result = call()
    recorded = seen.profiler.kineto_results.events()
    sizes = [each.nbytes() for each in sorted(recorded, key=lambda each: each.start_ns()) if each.name() == "[memory]"]
    return result, max(accumulate(sizes), default=0)
