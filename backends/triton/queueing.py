"""Times of work as a GPU has it, whatever the host takes to queue it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import NamedTuple

__all__ = ["Sample", "times_behind"]

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
