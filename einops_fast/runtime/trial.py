"""Calls that time ways as they come: each runs one of them, and nothing is computed twice or waited for."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from einops_fast.runtime.measuring import Stopwatch, Times

__all__ = ["Trial"]

Run = Callable[..., Any]

_ROUNDS = 7
"""Runs of each way that count."""

_FIRST_ROUNDS = 2
"""Rounds after which ways that are far behind are dropped."""


class Trial:
    """Calls that run one way or another in turns.

    Args:
        runs: the ways by name.
        library: what runs a call in place of a way that fails.
        stopwatch: makes a new one.
        spread: ways that take so many times as long as another one are dropped early.
    """

    def __init__(
        self, runs: Mapping[str, Run], library: Run, stopwatch: Callable[[], Stopwatch], spread: float
    ) -> None:
        self._runs, self._library, self._stopwatch, self._spread = runs, library, stopwatch, spread
        self._alive = list(runs)
        self._queue = deque(self._alive)
        self._round = 0
        self._times: dict[str, list[float]] = {name: [] for name in runs}
        self._open: list[tuple[str, Stopwatch, bool]] = []
        self.done = False

    def next(self) -> Run | None:
        """Return what runs and times a call; ``None`` while the device isn't done with the runs so far, or all is."""
        if self.done:
            return None
        if not self._queue and not self._next_round():
            return None
        return functools.partial(self._timed, self._queue.popleft())

    def times(self) -> Times:
        """Return what was measured."""
        found = self.medians()
        return Times(found, found)

    def medians(self) -> dict[str, float]:
        """Return seconds by name."""
        return {name: statistics.median(each) for name, each in self._times.items() if each}

    def _timed(self, name: str, *operands: Any) -> Any:
        watch = self._stopwatch()
        try:
            watch.start()
            result = self._runs[name](*operands)
            watch.stop()
        except Exception:  # no memory for this way, say; what is wrong with the call itself, the library says too
            self._times.pop(name, None)
            return self._library(*operands)
        # The first run loads what isn't there yet.
        self._open.append((name, watch, self._round > 0))
        return result

    def _next_round(self) -> bool:
        """Whether there is one: all runs of the last one are over."""
        while self._open:
            name, watch, counts = self._open[0]
            seconds = watch.seconds()
            if seconds is None:
                return False
            if counts and name in self._times:
                self._times[name].append(seconds)
            del self._open[0]
        self._round += 1
        self._alive = [name for name in self._alive if name in self._times]
        if self._round > _FIRST_ROUNDS:
            least = {name: min(self._times[name]) for name in self._alive}
            most = self._spread * min(least.values(), default=0.0)
            self._alive = [name for name in self._alive if least[name] <= most]
        if self._round > _ROUNDS or len(self._alive) < 2:
            self.done = True
            return False
        self._queue.extend(self._alive)
        return True
