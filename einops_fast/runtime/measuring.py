"""Time ways to compute the same: the one clock of contractions, row operators and attention."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any, Protocol

Run = Callable[[], Any]


class Clock(Protocol):
    """A device's clock."""

    def seconds(self, run: Run, repeat: int) -> list[float]:
        """Return the device's time of some runs."""

    def wall_seconds(self, run: Run, calls: int) -> float:
        """Return the seconds of each of so many runs, one queued after the other, until the device is done."""

    def settle(self, runs: Sequence[Run]) -> None:
        """Keep the device at work by these in turns until it is as under load: its clock falls, for some by more."""


class Stopwatch(Protocol):
    """What times a run as its stream goes on, and waits for nothing."""

    def start(self) -> None:
        """What is queued from now on is timed."""

    def stop(self) -> None:
        """What is queued from now on isn't timed any more."""

    def seconds(self) -> float | None:
        """Return the device's time between; ``None`` while it isn't done with it."""


@dataclass(frozen=True)
class Policy:
    """Which ways are measured, how, and how much slower than the fastest one a preferred way may be."""

    # how many times the best prediction a way may be predicted to take and still be measured, by the mode of
    # `einops_fast.autotune`. `inf` measures all.
    margin: Mapping[str, float]
    bonus: float  # how many times the time of the fastest way a preferred one may take
    spread: float = 1.25  # how many times the best time a way may take in its first runs and have further ones
    # so many times, the ways that are left are timed in turns: a device that gets hot slows down, and not only
    # for those that come last
    rounds: int = 10
    runs: int = 1  # of each way in a round
    settles: bool = False  # the device is kept at work before the rounds, and the first runs don't count
    longest: float = 2.0  # seconds after which no further way is timed
    slow: float = 0.02  # seconds from which on a run is timed once
    # rounds and runs, one queued after the other, that the host's clock times; 0 for none
    host_rounds: int = 0
    host_runs: int = 16
    host_spread: float = 1.1  # how many times the least of these a way may take and be chosen by the device's time


CONTRACTIONS = Policy({"auto": 1.4, "always": 4.0}, bonus=1.04)
"""A result in C order is preferred, for whoever reads it next."""

ROWS = Policy({"auto": inf, "always": inf}, bonus=1.01)
"""The rule's way is preferred."""

OPERATORS = replace(ROWS, host_rounds=11, host_spread=1.0)
"""Whole calls of operators, by the library or by kernels: what the caller pays counts, be it the host's time."""

ATTENTION = Policy(
    {"auto": 2.5, "always": 8.0},
    bonus=1.02,
    rounds=7,
    runs=2,
    settles=True,
    longest=inf,
    slow=inf,
    host_rounds=11,
)
"""Two measurements differ by no more than the bonus. A call takes the host so long that both clocks count."""

NO_WAIT = 5e-3
"""Seconds of the device's for which no host is still queueing calls: then the host's clock isn't asked."""


@dataclass(frozen=True)
class Times:
    """Seconds by name of each way that works: the device's, and the longer one of the device's and the host's."""

    device: Mapping[str, float]
    longest: Mapping[str, float]


def time_runs(makers: Mapping[str, Callable[[], Run]], clock: Clock, policy: Policy) -> Times:
    """Time ways that compute the same, each made by its maker. One that fails is left out."""
    end = perf_counter() + policy.longest
    runs, times = _first_runs(makers, clock, policy, end)
    best = min(map(min, times.values()), default=0.0)
    near = [name for name in runs if min(times[name]) <= policy.spread * best]
    if len(near) > 1:
        _in_turns(near, runs, times, clock, policy, end)
    device = {name: statistics.median(each) for name, each in times.items()}
    longest = dict(device)
    if policy.host_rounds and len(device) > 1 and min(device.values()) < NO_WAIT:
        rounds = [
            [clock.wall_seconds(runs[name], policy.host_runs) for name in device] for _ in range(policy.host_rounds)
        ]
        for name, *waits in zip(device, *rounds, strict=True):
            # The least, as what disturbs a host only ever adds to its time.
            longest[name] = max(device[name], min(waits))
    return Times(device, longest)


def _first_runs(
    makers: Mapping[str, Callable[[], Run]], clock: Clock, policy: Policy, end: float
) -> tuple[dict[str, Run], dict[str, list[float]]]:
    """Return the runs that work and their times."""
    runs: dict[str, Run] = {}
    times: dict[str, list[float]] = {}
    for name, make in makers.items():
        if times and perf_counter() > end:
            break
        try:
            run = make()
            # The first run loads the kernel and fills the framework's pools of memory, and the second may still.
            run()
            spent = clock.seconds(run, 1)
            if spent[0] < policy.slow:
                spent = clock.seconds(run, 3)
        except Exception:  # out of memory, say, or a library that can't after all: then it isn't a way
            continue
        runs[name], times[name] = run, spent
    return runs, times


def _in_turns(
    near: list[str], runs: Mapping[str, Run], times: dict[str, list[float]], clock: Clock, policy: Policy, end: float
) -> None:
    """Time these in turns, and drop one that fails."""
    slow = min([min(times[name]) for name in near]) >= policy.slow
    if policy.settles:
        clock.settle([runs[name] for name in near])
        times |= {name: [] for name in near}
    for _ in range(2 if slow else policy.rounds):
        for name in list(near) if perf_counter() <= end else ():
            try:
                times[name] += clock.seconds(runs[name], policy.runs)
            except Exception:  # memory that there was in the first round may be another's by now
                near.remove(name)
                del times[name]


def fastest(times: Times, preferred: Collection[str], policy: Policy) -> str:
    """Return the name of the fastest way, or of a preferred one that takes hardly longer.

    Where it's the host that counts, the device's times of those decide that the host is about as fast with.
    """
    most = min(times.longest.values()) * policy.host_spread
    allowed = {
        name: 1.0 if name in preferred else policy.bonus for name, seconds in times.longest.items() if seconds <= most
    }
    return min(allowed, key=lambda name: times.device[name] * allowed[name])


def record_of(
    times: Times, names: Collection[str], preferred: Collection[str], policy: Policy
) -> dict[str, Any] | None:
    """Return what is kept of a measurement of these ways; ``None`` if none works.

    Its ``candidates`` have ``None`` for the time of one that doesn't work.
    """
    if not times.device:
        return None
    name = fastest(times, preferred, policy)
    candidates = {each: times.longest.get(each) for each in names}
    return {"choice": name, "seconds": times.longest[name], "candidates": candidates}
