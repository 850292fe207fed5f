"""What else there is to know of a call beside its time: its kernels, and the host's share."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from statistics import median
from time import perf_counter

from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.profilers.kernels import kernel_times, summary
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.ways import Call

__all__ = ["calls_to_watch", "host_seconds", "watched"]

LONG = 0.2
"""Seconds from which on a call is watched once and not several times."""

HOST_CALLS = 20
"""Calls of which the host's time is the median, if they end soon."""

HOST_SECONDS = 0.1
"""After so long there are no more of them than three."""


def watched(row: Row, framework: Framework, call: Call) -> Row:
    """The row with the kernels of a call; what can't be seen was measured all the same."""
    with suppress(Exception):
        times = kernel_times(framework, call, calls_to_watch(row))
        seconds: dict[str, float] = {}
        for each, name in times:
            seconds[name] = seconds.get(name, 0.0) + each
        row = replace(row, kernels=summary(times), kernel_seconds=seconds)
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
