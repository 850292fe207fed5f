"""Calls that time ways as they come: each runs one of them, and nothing is computed twice or waited for."""

from __future__ import annotations

import functools
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einops_fast.runtime.measuring import Stopwatch, Times

__all__ = ["PATIENCE", "Trial"]

Run = Callable[..., Any]

_ROUNDS = 7
"""Runs of each way that count."""

_FIRST_ROUNDS = 2
"""Rounds after which ways that are far behind are dropped."""

PATIENCE = 256
"""Calls after the last run for which the times of gradients are waited for."""


class Trial:
    """Calls that run one way or another in turns.

    Args:
        runs: the ways by name.
        library: what runs a call in place of a way that fails.
        stopwatch: makes a new one.
        gradients: returns what will have timed the gradients of a run's result, if these are computed.
        spread: ways that take so many times as long as another one are dropped early.
    """

    def __init__(
        self,
        runs: Mapping[str, Run],
        library: Run,
        stopwatch: Callable[[], Stopwatch],
        gradients: Callable[[Any, Sequence[Any]], Stopwatch | None],
        spread: float,
    ) -> None:
        self._runs, self._library, self._stopwatch, self._spread = runs, library, stopwatch, spread
        self._new_gradients = gradients
        self._alive = list(runs)
        self._queue = deque(self._alive)
        self._round = 0
        self._times: dict[str, list[float]] = {name: [] for name in runs}
        self._gradients: dict[str, list[Stopwatch]] = {name: [] for name in runs}
        self._open: list[tuple[str, Stopwatch, bool]] = []
        self._done = False
        self._patience = PATIENCE

    def next(self) -> Run | None:
        """Return what runs and times a call; ``None`` while the device isn't done with the runs so far, or all is."""
        if self._done:
            return None
        if not self._queue and not self._next_round():
            return None
        return functools.partial(self._timed, self._queue.popleft())

    def is_over(self) -> bool:
        """Return whether all was measured, or the gradients of some runs don't come."""
        self._patience -= self._done
        return self._done and (self._patience <= 0 or None not in map(self._of_gradients, self._alive))

    def times(self) -> Times:
        """Return what was measured."""
        found = self.medians()
        return Times(found, found)

    def medians(self) -> dict[str, float]:
        """Return seconds by name."""
        found = {name: statistics.median(each) for name, each in self._times.items() if each}
        gradients = {name: seconds for name in found if (seconds := self._of_gradients(name)) is not None}
        return (
            {name: seconds + gradients[name] for name, seconds in found.items()}
            if len(gradients) == len(found)
            else found
        )

    def _of_gradients(self, name: str) -> float | None:
        """Return the time of a way's gradients, 0 if it had none; ``None`` while some runs wait for theirs."""
        found = [watch.seconds() for watch in self._gradients[name]]
        known = [seconds for seconds in found if seconds is not None]
        return None if len(known) < len(found) else statistics.median(known) if known else 0.0

    def _timed(self, name: str, *operands: Any) -> Any:
        watch = self._stopwatch()
        try:
            watch.start()
            result = self._runs[name](*operands)
            watch.stop()
        except Exception:  # no memory for this way, say; what is wrong with the call itself, the library says too
            self._times.pop(name, None)
            return self._library(*operands)
        counts = self._round > 0  # the first run loads what isn't there yet
        self._open.append((name, watch, counts))
        gradients = self._new_gradients(result, operands) if counts else None
        if gradients is not None:
            self._gradients[name].append(gradients)
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
        if self._round > _FIRST_ROUNDS and not any(self._gradients.values()):
            least = {name: min(self._times[name]) for name in self._alive}
            most = self._spread * min(least.values(), default=0.0)
            self._alive = [name for name in self._alive if least[name] <= most]
        if self._round > _ROUNDS or len(self._alive) < 2:
            self._done = True
            return False
        self._queue.extend(self._alive)
        return True
