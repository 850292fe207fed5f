"""Compile ways to compute the same side by side, run them and time them."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import Any, Protocol, TypeVar

import triton

from einops_fast import choosing
from einops_fast.backends.memory import Memory

__all__ = ["Measurable", "circumstances", "measure", "record_of", "works"]

_SPREAD = 1.25
"""Ways that took longer than this times the best in the first round are out."""

_LONGEST, _LONG = 2.0, 0.02
"""Seconds after which no further way is timed, and from which on a run is timed once and not several times."""

_TURNS = 10
"""Further runs of those that aren't out."""


class Measurable(Protocol):
    """One of several ways to compute the same.

    Attributes:
        name: unique among them, and stable, so that a measured choice can be kept.
    """

    name: str

    def compile(self) -> None:
        """Do beforehand what takes long the first time."""

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        """What takes the operands, on a device that is the current one."""


Way = TypeVar("Way", bound=Measurable)


def works(way: Measurable) -> bool:
    """Whether it compiles."""
    try:
        way.compile()
    except Exception:  # whatever the compiler says: too large a tile for this device is the usual reason
        return False
    return True


def measure(ways: Sequence[Way], operands: Sequence[Any], memory: Memory, device: int) -> dict[Way, float]:
    """Median seconds of each way that works; of slow ones from few runs."""

    def compiles(way: Way) -> bool:
        with memory.on_device(device):  # each thread has a current device of its own
            return works(way)

    with ThreadPoolExecutor(min(len(ways), os.cpu_count() or 1, 8)) as pool:
        working = [way for way, ready in zip(ways, pool.map(compiles, ways), strict=True) if ready]
    runs: dict[Way, Callable[[], Any]] = {}
    times: dict[Way, list[float]] = {}
    began = perf_counter()
    for way in working:
        if times and perf_counter() - began > _LONGEST:
            break
        run = partial(way.run(memory, device), *operands)
        try:
            # The first run loads the kernel and fills the framework's pools of memory, and the second may still.
            run()
            spent = memory.seconds(run, device, 1)
            if spent[0] < _LONG:
                spent = memory.seconds(run, device, 3)
        except Exception:  # out of memory for a copy of the library's, say: then it isn't a way
            continue
        runs[way], times[way] = run, spent
    best = min(map(min, times.values()), default=0.0)
    near = [way for way in runs if min(times[way]) <= _SPREAD * best]
    for _ in range(_TURNS if best < _LONG else 2):
        # In turns: a device that gets hot slows down, and not only for those that come last.
        for way in list(near) if perf_counter() - began <= _LONGEST else ():
            try:
                times[way] += memory.seconds(runs[way], device, 1)
            except Exception:  # memory that there was in the first round may be another's by now
                near.remove(way)
                del times[way]
    return {way: statistics.median(each) for way, each in times.items()}


def circumstances(memory: Memory, device: int) -> dict[str, Any]:
    """Return what every measurement on a device depends on, as part of its key."""
    versions = {"triton": triton.__version__, **memory.versions()}
    return choosing.circumstances(memory.device_name(device), versions)


def record_of(best: Way, ways: Sequence[Way], times: Mapping[Way, float]) -> choosing.Record:
    """Return what is kept of a measurement; ``None`` is the time of ways that don't work."""
    return {
        "choice": best.name,
        "seconds": times[best],
        "candidates": {way.name: times.get(way) for way in ways},
    }
