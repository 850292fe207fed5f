"""The one timing runner: the ways to compute a case are checked, then timed in turns.

Ways take turns within each round, in a new order each time, so that drift of the machine meets all of them
alike; the ratio of two ways is the median of their ratios within rounds.
"""

from __future__ import annotations

import gc
import random
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil, inf
from statistics import median, quantiles
from time import perf_counter

from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.timing.accuracy import Reference, allowed, gradient_case
from einops_fast.profiles.timing.clocks import Clock, HostClock
from einops_fast.profiles.timing.ranges import is_watched, phase, ranged, recorded
from einops_fast.profiles.ways import Around, Call, Inputs, Way, bind, inputs

__all__ = [
    "BRIEF",
    "FULL",
    "QUICK",
    "Effort",
    "Timing",
    "check",
    "compare",
    "fastest",
    "paired_ratio",
    "reason",
    "time_calls",
    "time_checked",
    "too_wrong",
]

LOST_ROUNDS = 5
"""After so many rounds a way that is far behind may stop."""


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: the most rounds.
        seconds: rounds start while these last, but three in any case.
        warm_up: seconds of calls that don't count, for each way.
        lost: a way that takes this many times as long as the fastest stops after :data:`LOST_ROUNDS` rounds.
        settling: seconds of rounds that don't count: under heavy work, a device's clock falls within some of them.
    """

    rounds: int
    seconds: float
    warm_up: float
    lost: float = inf
    settling: float = 0.0


FULL = Effort(rounds=21, seconds=5.0, warm_up=0.1)
BRIEF = Effort(rounds=15, seconds=2.0, warm_up=0.02, lost=2.0)
"""For many ways on a GPU, where a round is short and steady."""
QUICK = Effort(rounds=3, seconds=0.0, warm_up=0.0)


@dataclass(frozen=True)
class Timing:
    """What came out for one way.

    Attributes:
        name: the way's.
        seconds: median over the rounds; ``None`` if the way failed, because a wrong result has no speed.
        spread: interquartile range of the rounds.
        speedup: the first way's time over this one's, as the median within rounds.
        error: the largest, relative to the size of the result (see :mod:`einops_fast.profiles.timing.accuracy`).
        failure: why the way doesn't count; empty if it does.
        details: the traceback of the failure, if it was an exception.
        rounds: seconds of each round.
    """

    name: str
    seconds: float | None = None
    spread: float | None = None
    speedup: float | None = None
    error: float | None = None
    failure: str = ""
    details: str = ""
    rounds: tuple[float, ...] = ()

    @classmethod
    def failed(cls, name: str, error: BaseException) -> Timing:
        """A way that raised an exception."""
        return cls(name, failure=reason(error), details="".join(traceback.format_exception(error)))


def compare(
    case: Case,
    ways: Sequence[Way],
    dtype: str,
    *,
    effort: Effort = FULL,
    backward: bool = False,
    clock: Clock | None = None,
) -> list[Timing]:
    """Check and time all ways. The first, a native einsum, is the standard of errors and ratios.

    Args:
        case: what to compute.
        ways: how.
        dtype: of the operands.
        effort: how long to measure.
        backward: time forward and backward together, and check the gradients.
        clock: what to measure with; default: the device's own clock.
    """
    timings = check(case, ways, dtype, backward=backward)
    given = {way.framework.name: way.framework for way, timing in zip(ways, timings, strict=True) if not timing.failure}
    if not given:
        return timings
    clock = clock or _clock(list(given.values()))
    # Not the inputs of the check: nothing remembered from there can help.
    made = {
        name: inputs(case, framework, dtype, 1, backward, shared=_shared(ways)) for name, framework in given.items()
    }
    places: list[int] = []
    calls: list[Call] = []
    counts: list[int] = []
    for place, way in enumerate(ways):
        if timings[place].failure:
            continue
        try:
            call = bind(way, made[way.framework.name])
            with way.around():
                count = _calls_per_sample(call, clock, effort)
        except Exception as error:  # memory, say, may not do for two sets of inputs
            timings[place] = Timing.failed(way.name, error)
            continue
        places.append(place)
        calls.append(call)
        counts.append(count)
    if not calls:
        return timings
    arounds = [_named(ways[place], case, backward) if is_watched() else ways[place].around for place in places]
    with ExitStack() as profiled:
        for framework in given.values() if is_watched() else ():
            profiled.enter_context(recorded(framework))
        times = _take_turns(calls, counts, clock, arounds, effort)
    for place, rounds in zip(places, times, strict=True):
        timings[place] = _timed(timings[place], rounds)
    return [replace(timing, speedup=paired_ratio(timings[0], timing)) for timing in timings]


def check(case: Case, ways: Sequence[Way], dtype: str, *, backward: bool = False) -> list[Timing]:
    """The error of every way, and whether it is too large, if possible beside that of the first way."""
    first = ways[0].framework
    shared = _shared(ways)
    given = {first.name: inputs(case, first, dtype, 0, backward, shared=shared)}
    references = _references(case, first, given[first.name])
    timings = []
    native: list[float] | None = None
    for way in ways:
        framework = way.framework
        try:
            if framework.name not in given:
                given[framework.name] = inputs(case, framework, dtype, 0, backward, shared=shared)
            with way.around():
                call = bind(way, given[framework.name])
                framework.spoil([case.result_shape, *(case.shapes if backward else ())], dtype)
                # Gradients may be right where the result isn't, as of a result that is off by a constant.
                results = (way.call(*given[framework.name].operands), *call()) if backward else (way.finish(call()),)
            errors = [
                reference.error(array, framework.to_float64)
                for reference, array in zip(references, results, strict=True)
            ]
        except Exception as error:  # a way that can't run is a row of the table, not its end
            timings.append(Timing.failed(way.name, error))
            continue
        comparable = native if framework is first else None
        limits = [
            allowed(reference.case, dtype, comparable[place] if comparable else None)
            for place, reference in enumerate(references)
        ]
        failure = next(filter(None, map(too_wrong, errors, limits)), "")
        timings.append(Timing(way.name, error=max(errors), failure=failure))
        if way is ways[0] and not failure:
            native = errors
    return timings


def too_wrong(error: float, limit: float) -> str:
    """Why a result doesn't count that is off by more than allowed; empty if it isn't.

    >>> too_wrong(0.5, 0.1), too_wrong(0.1, 0.5)
    ('wrong: error 5.0e-01, allowed 1.0e-01', '')
    """
    return f"wrong: error {error:.1e}, allowed {limit:.1e}" if not error <= limit else ""


def fastest(timings: Iterable[Timing]) -> Timing | None:
    """The one that took the least of those that have a time."""
    timed = [timing for timing in timings if timing.seconds is not None]
    return min(timed, key=lambda timing: timing.seconds or 0.0, default=None)


def paired_ratio(over: Timing, under: Timing) -> float | None:
    """The median within rounds of one way's time over another's; of the rounds that both have."""
    ratios = [first / second for first, second in zip(over.rounds, under.rounds, strict=False)]
    return median(ratios) if ratios else None


def reason(error: BaseException) -> str:
    """The first line of an error, as a table tells why something failed."""
    return f"{type(error).__name__}: {error}".split("\n")[0]


def time_calls(
    calls: Sequence[Call], clock: Clock, arounds: Sequence[Around] = (), effort: Effort = FULL
) -> list[list[float]]:
    """Seconds of one call, a value per round, for each of ``calls``."""
    arounds = arounds or [nullcontext] * len(calls)
    counts = []
    for call, around in zip(calls, arounds, strict=True):
        with around():
            counts.append(_calls_per_sample(call, clock, effort))
    return _take_turns(calls, counts, clock, arounds, effort)


def time_checked(
    checked: Sequence[Timing], calls: Sequence[Call], clock: Clock, arounds: Sequence[Around], effort: Effort
) -> list[Timing]:
    """What came out of the check of each call, with its times."""
    times = time_calls(calls, clock, arounds, effort) if calls else []
    return [_timed(timing, rounds) for timing, rounds in zip(checked, times, strict=True)]


def _take_turns(
    calls: Sequence[Call], counts: Sequence[int], clock: Clock, arounds: Sequence[Around], effort: Effort
) -> list[list[float]]:
    """Samples of ``counts`` calls each, in rounds."""
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0).shuffle

    def sample(place: int) -> float:
        with arounds[place]():
            return clock.sample(calls[place], counts[place])

    with _no_collection():
        start = perf_counter()
        while perf_counter() - start < effort.settling:
            for place in order:
                sample(place)
        start = perf_counter()
        for done in range(effort.rounds):
            if done >= 3 and perf_counter() - start > effort.seconds:
                break
            if done == LOST_ROUNDS:
                behind = effort.lost * max(min(map(min, times)), 1e-9)
                order = [place for place in order if min(times[place]) < behind]
            shuffle(order)
            for place in order:
                times[place].append(sample(place))
    return times


def _references(case: Case, framework: Framework, given: Inputs) -> list[Reference]:
    """What the result, and each gradient, has to be: from the values as rounded to the dtype."""
    operands = given.operands
    result = Reference(case, operands, framework.to_float64)
    if given.cotangent is None:
        return [result]
    return [result] + [
        Reference(
            gradient_case(case, place),
            [*operands[:place], given.cotangent, *operands[place + 1 :]],
            framework.to_float64,
        )
        for place in range(len(operands))
    ]


def _shared(ways: Sequence[Way]) -> bool:
    """Whether the ways take arrays of several frameworks."""
    return len({way.framework.name for way in ways}) > 1


def _calls_per_sample(call: Call, clock: Clock, effort: Effort) -> int:
    """Warm up, and find how many calls make a sample long enough to be read."""
    start = perf_counter()
    seconds = clock.sample(call, 1)
    while perf_counter() - start < effort.warm_up:
        seconds = min(seconds, clock.sample(call, 1))
    return max(1, min(clock.most_calls, ceil(clock.sample_seconds / max(seconds, 1e-9))))


def _clock(frameworks: Sequence[Framework]) -> Clock:
    """One clock for all: the device's own where it sees the work of each, else the host's."""
    if len(frameworks) == 1 or all(framework.default_stream for framework in frameworks):
        return frameworks[0].clock()

    def synchronize() -> None:
        for framework in frameworks:
            framework.synchronize()

    return HostClock(synchronize)


def _named(way: Way, case: Case, backward: bool) -> Around:
    """What a way needs around it, and for a profiler its name."""

    @contextmanager
    def around() -> Iterator[None]:
        with way.around(), ranged(f"{case.name}/{way.name}/{phase(backward)}"):
            yield

    return around


def _timed(checked: Timing, rounds: Sequence[float]) -> Timing:
    """What came out of the check, with the times of the rounds."""
    low, _, high = quantiles(rounds, n=4)
    return replace(checked, seconds=median(rounds), spread=high - low, rounds=tuple(rounds))


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of the samples, as :mod:`timeit` does."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
