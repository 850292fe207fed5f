"""Times of work as a GPU has it, whatever the host takes to queue it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

__all__ = ["EventStopwatch", "Sample", "gpu_times", "times_behind"]

_MOST = 64
"""How often other work is queued first at most: as often, the host waits for what it has queued itself."""


class Sample(NamedTuple):
    """A run behind other work.

    Attributes:
        ahead: seconds of the other work.
        host: seconds until all of the run was queued.
        seconds: of the run.
    """

    ahead: float
    host: float
    seconds: float


class EventStopwatch:
    """Times a run by two events of a framework's, without waiting for it.

    Args:
        start, end: events that know their time once they've been recorded and passed.
        passed: whether the current stream has passed an event.
        milliseconds: between the two.
    """

    def __init__(
        self, start: Any, end: Any, passed: Callable[[Any], bool], milliseconds: Callable[[Any, Any], float]
    ) -> None:
        self._start, self._end, self._passed, self._milliseconds = start, end, passed, milliseconds

    def start(self) -> None:
        self._start.record()

    def stop(self) -> None:
        self._end.record()

    def seconds(self) -> float | None:
        return self._milliseconds(self._start, self._end) / 1e3 if self._passed(self._end) else None


def gpu_times(
    run: Callable[[], Any],
    repeat: int,
    overwrite: Callable[[], Any],
    new_event: Callable[[], Any],
    milliseconds: Callable[[Any, Any], float],
    synchronize: Callable[[], Any],
) -> list[float]:
    """Seconds of ``repeat`` runs on the current stream of a GPU, by events of the framework's.

    Args:
        run: queues the work.
        repeat: runs that count.
        overwrite: queues work that leaves nothing of the operands in the cache.
        new_event: makes an event that knows its time once it's been recorded and passed.
        milliseconds: between two of these.
        synchronize: waits for all that is queued.
    """

    def sample(pieces: int) -> Sample:
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
        return Sample(milliseconds(before, start) / 1e3, host, milliseconds(start, end) / 1e3)

    return times_behind(sample, repeat)


def times_behind(sample: Callable[[int], Sample], repeat: int) -> list[float]:
    """Seconds of ``repeat`` runs, none of which had to wait for the host.

    Args:
        sample: runs once behind so many pieces of other work.
        repeat: runs that count.
    """
    times: list[float] = []
    pieces = 1
    while len(times) < repeat:
        found = sample(pieces)
        if found.host > found.ahead and pieces < _MOST:
            enough = ceil(1.5 * pieces * found.host / found.ahead) if found.ahead > 0 else _MOST
            pieces = min(max(enough, pieces + 1), _MOST)
        else:
            times.append(found.seconds)
    return times
