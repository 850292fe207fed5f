"""How one sample of time is taken: on the host between synchronisations, or by events on a GPU's stream."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import perf_counter
from typing import Any, Protocol

__all__ = ["Clock", "EventClock", "HostClock", "host_seconds", "no_collection"]

Call = Callable[[], object]


HOST_CALLS = 20
"""Calls of which the host's time is the median, if they end soon."""

HOST_SECONDS = 0.1
"""After so long there are no more of them than three."""


class Clock(Protocol):
    """Takes samples.

    Attributes:
        sample_seconds: how long a sample should last to be worth its reading.
        most_calls: the most calls of one sample.
    """

    sample_seconds: float
    most_calls: int

    def sample(self, call: Call, calls: int) -> float:
        """Seconds of one call, from ``calls`` of them."""


class HostClock:
    """Wall time on the host, work in flight included: what a program waits for."""

    sample_seconds = 0.01
    most_calls = 10_000

    def __init__(self, synchronize: Call) -> None:
        self._synchronize = synchronize

    def sample(self, call: Call, calls: int) -> float:
        self._synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        self._synchronize()
        return (perf_counter() - start) / calls


class EventClock:
    """Time on the stream of a GPU, each call with its own pair of events.

    Before each call ``flush`` overwrites the cache, as ``triton.testing.do_bench`` does, so that operands
    come from memory. While that runs the host queues the call: its launch counts only where it takes longer.
    """

    sample_seconds = 0.002
    most_calls = 20

    def __init__(
        self,
        new_event: Callable[[], Any],
        milliseconds: Callable[[Any, Any], float],
        flush: Call,
        synchronize: Call,
    ) -> None:
        self._new_event = new_event
        self._milliseconds = milliseconds
        self._flush = flush
        self._synchronize = synchronize

    def sample(self, call: Call, calls: int) -> float:
        pairs = [(self._new_event(), self._new_event()) for _ in range(calls)]
        for start, end in pairs:
            self._flush()
            start.record()
            call()
            end.record()
        self._synchronize()
        return median(self._milliseconds(start, end) for start, end in pairs) * 1e-3


def host_seconds(synchronize: Call, call: Call) -> float:
    """Seconds until a call returns; the device's queue is empty before, so that it never has to be waited for."""
    seconds: list[float] = []
    begin = perf_counter()
    for done in range(HOST_CALLS):
        synchronize()
        if done >= 3 and perf_counter() - begin > HOST_SECONDS:
            break
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    synchronize()
    return median(seconds)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the samples, as :mod:`timeit` does."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
