"""The one timing runner: the ways to compute a case are checked, then timed in turns.

Ways take turns within each round, in a new order each time, so that drift of the machine meets all of them
alike; the ratio of two ways is the median of their ratios within rounds.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, inf
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import CACHE_FLUSH_BYTES, Unavailable
from einops_fast.profiles.timing.accuracy import Reference, allowed
from einops_fast.profiles.timing.clocks import Clock, host_seconds, no_collection
from einops_fast.profiles.ways import Around, Call, Inputs, Way, answer, bind, inputs

LOST_ROUNDS = 5  # After so many rounds a way that is far behind may stop
MOST_FLUSHES = 256  # How often the cache is emptied before a call at most


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    rounds: int  # the most rounds
    seconds: float  # rounds start while these last, but three in any case
    warm_up: float  # seconds of calls that don't count, for each way
    lost: float = inf  # a way that takes this many times as long as the fastest stops after `LOST_ROUNDS` rounds
    # seconds of rounds that don't count: under heavy work, a device's clock falls within some of them.
    settling: float = 0.0


FULL = Effort(rounds=21, seconds=5.0, warm_up=0.1)
# For many ways on a GPU, where a round is short and steady.
BRIEF = Effort(rounds=15, seconds=2.0, warm_up=0.02, lost=2.0)
QUICK = Effort(rounds=3, seconds=0.0, warm_up=0.0)


@dataclass(frozen=True)
class Timing:
    """What came out for one way."""

    name: str
    seconds: float | None = None  # median over the rounds; `None` if the way failed: a wrong result has no speed
    spread: float | None = None  # interquartile range of the rounds, in seconds
    speedup: float | None = None  # the native way's time over this one's, as the median within rounds
    error: float | None = None  # the largest, relative to the size of the result (see `accuracy`)
    failure: str = ""  # why the way doesn't count; empty if it does
    details: str = ""  # the traceback of the failure, if it was an exception
    rounds: tuple[float, ...] = ()  # seconds of each round
    absent: bool = False  # the failure is nobody's fault: what the way needs isn't here
    host: float | None = None  # seconds of the host for the call, on a GPU
    way: Way | None = None  # what was timed; `call` of `operands`, if it could be
    call: Call | None = None
    operands: tuple[Any, ...] = ()
    others: Mapping[str, Any] = field(default_factory=dict)  # fields of the row that only this way knows

    @classmethod
    def failed(cls, name: str, error: BaseException) -> Timing:
        """Return that of a way that raised an exception; it is absent where what it needs isn't here."""
        if isinstance(error, Unavailable):
            return cls(name, failure=str(error), absent=True)
        return cls(name, failure=reason(error), details="".join(traceback.format_exception(error)))


Errors = tuple[float, ...]

# The errors of a way and why it doesn't count, given the errors of the native way where these are small enough.
Judge = Callable[[Way, Errors | None], tuple[Errors, str]]


def compare(
    case: Case, ways: Sequence[Way], dtype: str, *, effort: Effort = FULL, backward: bool = False,
    clock: Clock | None = None,
) -> list[Timing]:  # fmt: skip
    """Check and time all ways of an einsum. The first, a native one, is the standard of errors and ratios."""
    checked = check(case, ways, dtype, backward=backward)
    timed = time_ways(checked, lambda: inputs(case, ways[0].framework, dtype, 1, backward), effort, clock=clock)
    return [replace(each, speedup=paired_ratio(timed[0], each)) for each in timed]


# Checking


def check(case: Case, ways: Sequence[Way], dtype: str, *, backward: bool = False) -> list[Timing]:
    """Return the error of every way of an einsum in one framework, if possible beside that of the first way."""
    framework = ways[0].framework
    given = inputs(case, framework, dtype, 0, backward)
    # From the values as rounded to the dtype: what the result has to be, and each gradient.
    operands = given.operands
    references = [Reference(case, operands, framework.to_float64)]
    for cotangent in given.cotangents:
        for place in range(len(operands)):
            others = [*operands[:place], cotangent, *operands[place + 1 :]]
            references.append(Reference(case.gradient(place), others, framework.to_float64))
    shapes = [case.result_shape, *(case.shapes if backward else ())]

    def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
        # Gradients may be right where the result isn't, as of a result that is off by a constant.
        results, gradients = answer(way, given, shapes, dtype)
        pairs = zip(references, (*results, *gradients), strict=True)
        errors = tuple(reference.error(array, framework.to_float64) for reference, array in pairs)
        limits = [
            allowed(each.case, dtype, other)
            for each, other in zip(references, native or [None] * len(errors), strict=True)
        ]
        return errors, next(filter(None, map(too_wrong, errors, limits)), "")

    return check_ways(ways, judge, ways[0].name)


def check_ways(ways: Sequence[Way], judge: Judge, native: str, cannot: type[Exception] | None = None) -> list[Timing]:
    """Return the error of every way, the native one judged first, as the others may be off by as much.

    A way other than ours that raises ``cannot`` isn't made for the case, and is left out.
    """
    found: dict[str, Timing] = {}
    standard: Errors | None = None
    for way in sorted(ways, key=lambda way: way.name != native):
        try:
            with way.around():
                errors, failure = judge(way, standard)
        except Exception as error:  # a way that can't run is a row of the table, not its end
            if cannot is None or way.name == "ours" or not isinstance(error, cannot):
                found[way.name] = replace(Timing.failed(way.name, error), way=way)
            continue
        found[way.name] = Timing(way.name, error=max(errors), failure=failure, way=way)
        if way.name == native and not failure:
            standard = errors
    return [found[way.name] for way in ways if way.name in found]


def too_wrong(error: float, limit: float) -> str:
    """Return why a result doesn't count that is off by more than allowed; empty if it isn't."""
    return f"wrong: error {error:.1e}, allowed {limit:.1e}" if not error <= limit else ""


def reason(error: BaseException) -> str:
    """Return the first line of an error, as a table tells why something failed."""
    return f"{type(error).__name__}: {error}".split("\n")[0]


# Timing


def time_ways(
    checked: Sequence[Timing],
    make_inputs: Callable[[], Inputs],
    effort: Effort,
    *,
    clock: Clock | None = None,
    hiding_launches: float | None = None,
) -> list[Timing]:
    """Time the ways that passed their check, in turns, by the device's own clock unless another is given.

    Their inputs aren't those of the check: nothing remembered from there can help. ``hiding_launches`` are the bytes
    per second at which a GPU's cache is emptied before each call until the host has queued all of it; default: once.
    """
    timed = {each.name: each for each in checked}
    given = cache(make_inputs)
    running: list[tuple[Way, Call]] = []
    for each in checked:
        way = each.way
        if each.failure or way is None:
            continue
        try:
            call = bind(way, given())
            with way.around():
                host = host_seconds(way.framework.synchronize, call) if way.framework.device == "gpu" else None
                call()
        except Exception as error:  # memory, say, may not do for two sets of inputs
            timed[way.name] = replace(Timing.failed(way.name, error), way=way)
            continue
        timed[way.name] = replace(each, call=call, host=host, operands=given().operands)
        running.append((way, call))
    if not running:
        return list(timed.values())
    longest = max(each.host or 0.0 for each in timed.values())
    clock = clock or running[0][0].framework.clock(flushes=_flushes(longest, hiding_launches))
    times = time_calls([call for _, call in running], clock, effort, [way.around for way, _ in running])
    for (way, _), rounds in zip(running, times, strict=True):
        low, _, high = quantiles(rounds, n=4)
        timed[way.name] = replace(timed[way.name], seconds=median(rounds), spread=high - low, rounds=tuple(rounds))
    return list(timed.values())


def fastest(timings: Iterable[Timing]) -> Timing | None:
    """Return the one that took the least of those that have a time."""
    timed = [timing for timing in timings if timing.seconds is not None]
    return min(timed, key=lambda timing: timing.seconds or 0.0, default=None)


def paired_ratio(over: Timing, under: Timing) -> float | None:
    """Return the median within rounds of one way's time over another's; of the rounds that both have."""
    ratios = [first / second for first, second in zip(over.rounds, under.rounds, strict=False)]
    return median(ratios) if ratios else None


def time_calls(
    calls: Sequence[Call], clock: Clock, effort: Effort = FULL, arounds: Sequence[Around] = ()
) -> list[list[float]]:
    """Return the seconds of one call, a value per round, for each of ``calls``."""
    arounds = arounds or [nullcontext] * len(calls)
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0).shuffle

    def sample(place: int, count: int) -> float:
        with arounds[place]():
            return clock.sample(calls[place], count)

    def enough(place: int) -> int:
        """Warm up, and return how many calls make a sample long enough to be read."""
        start, seconds = perf_counter(), sample(place, 1)
        while perf_counter() - start < effort.warm_up:
            seconds = min(seconds, sample(place, 1))
        return max(1, min(clock.most_calls, ceil(clock.sample_seconds / max(seconds, 1e-9))))

    counts = [enough(place) for place in order]
    with no_collection():
        start = perf_counter()
        while perf_counter() - start < effort.settling:
            for place in order:
                sample(place, counts[place])
        start = perf_counter()
        for done in range(effort.rounds):
            if done >= 3 and perf_counter() - start > effort.seconds:
                break
            if done == LOST_ROUNDS:
                behind = effort.lost * max(min(map(min, times)), 1e-9)
                order = [place for place in order if min(times[place]) < behind]
            shuffle(order)
            for place in order:
                times[place].append(sample(place, counts[place]))
    return times


def _flushes(longest: float, bandwidth: float | None) -> int:
    """Return how often to empty the cache for the host to queue all of a call meanwhile, and half as much."""
    if bandwidth is None:
        return 1
    return min(1 + ceil(1.5 * longest * bandwidth / CACHE_FLUSH_BYTES), MOST_FLUSHES)
