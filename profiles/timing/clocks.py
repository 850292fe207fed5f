"""How one sample of time is taken: on the host between synchronisations, or by events on a GPU's stream."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

Call = Callable[[], object]

HOST_CALLS = 20  # Calls of which the host's time is the median, if they end soon
HOST_SECONDS = 0.1  # After so long there are no more of them than three


@dataclass(frozen=True)
class HostClock:
    """Wall time on the host, work in flight included: what a program waits for."""

    sample_seconds: ClassVar[float] = 0.01  # how long a sample should last to be worth its reading
    most_calls: ClassVar[int] = 10_000  # of one sample
    synchronize: Call

    def sample(self, call: Call, calls: int) -> float:
        self.synchronize()
        start = perf_counter()
        for _ in range(calls):
            call()
        self.synchronize()
        return (perf_counter() - start) / calls


@dataclass(frozen=True)
class EventClock:
    """Time on the stream of a GPU, each call with its own pair of events.

    Before each call ``flush`` overwrites the cache, as ``triton.testing.do_bench`` does, so that operands
    come from memory. While that runs the host queues the call: its launch counts only where it takes longer.
    """

    sample_seconds: ClassVar[float] = 0.002
    most_calls: ClassVar[int] = 20
    new_event: Callable[[], Any]
    milliseconds: Callable[[Any, Any], float]
    flush: Call
    synchronize: Call

    def sample(self, call: Call, calls: int) -> float:
        pairs = [(self.new_event(), self.new_event()) for _ in range(calls)]
        for start, end in pairs:
            self.flush()
            start.record()
            call()
            end.record()
        self.synchronize()
        return median(self.milliseconds(start, end) for start, end in pairs) * 1e-3


Clock = HostClock | EventClock


def host_seconds(synchronize: Call, call: Call) -> float:
    """Return seconds until a call returns; the device's queue is empty before, so that no call waits for it."""
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
