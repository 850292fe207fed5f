"""The clock of a GPU, whatever the host takes to queue work, and the host's clock around calls on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from time import perf_counter
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.runtime.measuring import Run

_SETTLING = 0.15
"""Seconds after which the clock of a device at work has fallen as far as it does, about."""

_WARM_UP = 2
"""Runs that don't count: after those of another way, caches and pools of memory aren't what they are in a loop."""


class DeviceClock:
    """The clock of one device of a framework."""

    def __init__(self, memory: Memory, device: int) -> None:
        self._memory, self._device = memory, device

    def seconds(self, run: Run, repeat: int) -> list[float]:
        return self._memory.seconds(run, self._device, repeat)

    def wall_seconds(self, run: Run, calls: int) -> float:
        for _ in range(_WARM_UP):
            run()
        self._memory.synchronize(self._device)
        began = perf_counter()
        for _ in range(calls):
            run()
        self._memory.synchronize(self._device)
        return (perf_counter() - began) / calls

    def settle(self, runs: Sequence[Run]) -> None:
        end = perf_counter() + _SETTLING
        while perf_counter() < end:
            for run in runs:
                run()
            self._memory.synchronize(self._device)


_MOST = 64
"""The most pieces of other work that are queued before a run: with more, the host waits for its own queue."""


class EventStopwatch:
    """Times a run by two events of a framework's, without waiting for it.

    ``passed`` says whether the current stream has passed an event, ``milliseconds`` how long it took between the two.
    """

    def __init__(
        self, start: Any, end: Any, passed: Callable[[Any], bool], milliseconds: Callable[[Any, Any], float]
    ) -> None:
        self._start, self._end, self._passed, self._milliseconds = start, end, passed, milliseconds
        self._stopped = False

    def start(self) -> None:
        self._start.record()

    def stop(self) -> None:
        self._end.record()
        self._stopped = True

    def seconds(self) -> float | None:
        over = self._stopped and self._passed(self._end)
        return self._milliseconds(self._start, self._end) / 1e3 if over else None


def gpu_times(
    run: Callable[[], Any],
    repeat: int,
    overwrite: Callable[[], Any],
    new_event: Callable[[], Any],
    milliseconds: Callable[[Any, Any], float],
    synchronize: Callable[[], Any],
) -> list[float]:
    """Return the seconds of ``repeat`` runs on the current stream of a GPU that did not wait for the host.

    The framework's events time them. ``overwrite`` queues work that leaves nothing of the operands in the cache: as
    often before a run as the host needs to queue that.
    """
    times: list[float] = []
    pieces = 1
    while len(times) < repeat:
        before, start, end = (new_event() for _ in range(3))
        before.record()
        for _ in range(pieces):
            overwrite()
        start.record()
        began = perf_counter()
        run()
        host = perf_counter() - began
        end.record()
        synchronize()
        ahead = milliseconds(before, start) / 1e3
        if host > ahead and pieces < _MOST:
            enough = ceil(1.5 * pieces * host / ahead) if ahead > 0 else _MOST
            pieces = min(max(enough, pieces + 1), _MOST)
        else:
            times.append(milliseconds(start, end) / 1e3)
    return times
