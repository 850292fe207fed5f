"""What else there is to know of a call that was timed: kernels, memory, the host's share.

It's looked at after the times are taken: once a profiler has watched, a GPU may launch more slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from time import perf_counter

from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.profilers.kernels import kernel_times, summary
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.timing.memory import peak_memory
from einops_fast.profiles.ways import Call

__all__ = ["calls_to_watch", "host_seconds", "watched"]

LONG = 0.2
"""Seconds from which on a call is watched once and not several times."""

HOST_CALLS = 20
"""Calls of which the host's time is the median, if they end soon."""

HOST_SECONDS = 0.1
"""After so long there are no more of them than three."""


def watched(row: Row, framework: Framework, make: Callable[[], Call]) -> Row:
    """The row with everything that can be seen of a call; what can't be seen was measured all the same.

    Args:
        row: of the timed call.
        framework: whose arrays it takes.
        make: makes the call, on new operands; it takes no arguments, and returns the result or, in a backward row, all
            gradients.
    """
    try:
        call = make()
    except Exception:  # of memory, say, which others still hold
        return row
    with suppress(Exception):
        times = kernel_times(framework, call, calls_to_watch(row))
        seconds: dict[str, float] = {}
        for each, name in times:
            seconds[name] = seconds.get(name, 0.0) + each
        row = replace(row, kernels=summary(times), kernel_seconds=seconds)
    with suppress(Exception):
        row = replace(row, peak_bytes=peak_memory(framework, call))
    if framework.device == "gpu":
        with suppress(Exception):
            row = replace(row, host=host_seconds(framework, call))
    return row


def calls_to_watch(row: Row) -> int:
    """How many calls a profiler is to see."""
    return 1 if (row.seconds or 0.0) > LONG else 3


def host_seconds(framework: Framework, call: Call) -> float:
    """Seconds until a call returns; the device's queue is empty before, so that it never has to be waited for."""
    seconds: list[float] = []
    begin = perf_counter()
    for done in range(HOST_CALLS):
        framework.synchronize()
        if done >= 3 and perf_counter() - begin > HOST_SECONDS:
            break
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    framework.synchronize()
    return median(seconds)
