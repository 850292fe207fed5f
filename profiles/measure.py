"""The one timing runner: the ways to compute a case are checked, then timed in turns.

Ways take turns within each round, in a new order each time, so that drift of the machine meets all of them
alike; the ratio of two ways is the median of their ratios within rounds.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import ceil
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from einops_fast.profiles.accuracy import Reference, allowed, gradient_case, random_values
from einops_fast.profiles.cases import Case
from einops_fast.profiles.clocks import Clock, HostClock
from einops_fast.profiles.frameworks import Framework

__all__ = [
    "FULL",
    "QUICK",
    "Effort",
    "Inputs",
    "Timing",
    "Way",
    "bind",
    "check",
    "compare",
    "inputs",
    "time_calls",
]

Around = Callable[[], AbstractContextManager[Any]]
Call = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """One way to compute a case.

    Attributes:
        name: what tables call it.
        call: takes the operands, as arrays of ``framework``, and returns the result.
        framework: whose arrays it takes.
        around: a context that it needs, entered outside the time measured.
    """

    name: str
    call: Callable[..., Any]
    framework: Framework
    around: Around = nullcontext


@dataclass(frozen=True)
class Inputs:
    """Operands in one framework; with a cotangent of the result where gradients are wanted."""

    operands: tuple[Any, ...]
    cotangent: Any = None


@dataclass(frozen=True)
class Effort:
    """How long to measure: up to ``rounds`` rounds while ``seconds`` last, but three in any case."""

    rounds: int
    seconds: float
    warm_up: float


FULL = Effort(rounds=21, seconds=5.0, warm_up=0.1)
QUICK = Effort(rounds=3, seconds=0.0, warm_up=0.0)


@dataclass(frozen=True)
class Timing:
    """What came out for one way.

    Attributes:
        name: the way's.
        seconds: median over the rounds; ``None`` if the way failed, because a wrong result has no speed.
        spread: interquartile range of the rounds.
        speedup: the first way's time over this one's, as the median within rounds.
        error: the largest, relative to the size of the result (see :mod:`einops_fast.profiles.accuracy`).
        failure: why the way doesn't count; empty if it does.
    """

    name: str
    seconds: float | None = None
    spread: float | None = None
    speedup: float | None = None
    error: float | None = None
    failure: str = ""


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
    checked = check(case, ways, dtype, backward=backward)
    right = [way for way, timing in zip(ways, checked, strict=True) if not timing.failure]
    if not right:
        return checked
    # Not the inputs of the check: nothing remembered from there can help.
    given = {way.framework.name: way.framework for way in right}
    made = {name: inputs(case, framework, dtype, 1, backward) for name, framework in given.items()}
    calls = [bind(way, made[way.framework.name]) for way in right]
    times = time_calls(calls, clock or _clock(list(given.values())), [way.around for way in right], effort)
    rounds = {way.name: seconds for way, seconds in zip(right, times, strict=True)}
    return [_timing(timing, rounds.get(timing.name), rounds.get(ways[0].name)) for timing in checked]


def check(case: Case, ways: Sequence[Way], dtype: str, *, backward: bool = False) -> list[Timing]:
    """The error of every way, and whether it is too large, if possible beside that of the first way."""
    first = ways[0].framework
    given = {first.name: inputs(case, first, dtype, 0, backward)}
    references = _references(case, first, given[first.name])
    timings = []
    native: list[float] | None = None
    for way in ways:
        framework = way.framework
        try:
            if framework.name not in given:
                given[framework.name] = inputs(case, framework, dtype, 0, backward)
            with way.around():
                result = bind(way, given[framework.name])()
            results = result if backward else (result,)
            errors = [
                reference.error(array, framework.to_float64)
                for reference, array in zip(references, results, strict=True)
            ]
        except Exception as error:  # a way that can't run is a row of the table, not its end
            timings.append(Timing(way.name, failure=f"{type(error).__name__}: {error}".split("\n")[0]))
            continue
        comparable = native if framework is first else None
        limits = [
            allowed(reference.case, dtype, comparable[place] if comparable else None)
            for place, reference in enumerate(references)
        ]
        wrong = any(error > limit for error, limit in zip(errors, limits, strict=True))
        failure = f"wrong: error {max(errors):.1e}, allowed {max(limits):.1e}" if wrong else ""
        timings.append(Timing(way.name, error=max(errors), failure=failure))
        if way is ways[0] and not wrong:
            native = errors
    return timings


def inputs(case: Case, framework: Framework, dtype: str, seed: int, backward: bool = False) -> Inputs:
    """Random operands of a case; the same values in every framework."""
    shapes = (*case.shapes, case.result_shape) if backward else case.shapes
    arrays = [framework.array(values, dtype) for values in random_values(shapes, seed)]
    if not backward:
        return Inputs(tuple(arrays))
    *operands, cotangent = arrays
    for operand in operands:
        framework.track(operand)
    return Inputs(tuple(operands), cotangent)


def bind(way: Way, given: Inputs) -> Call:
    """A way as a call without arguments: of the result or, given a cotangent, of all gradients."""
    operands, cotangent = given.operands, given.cotangent
    if cotangent is None:
        return lambda: way.call(*operands)
    return lambda: way.framework.gradient(way.call, operands, cotangent)


def time_calls(
    calls: Sequence[Call], clock: Clock, arounds: Sequence[Around] = (), effort: Effort = FULL
) -> list[list[float]]:
    """Seconds of one call, a value per round, for each of ``calls``."""
    arounds = arounds or [nullcontext] * len(calls)
    counts = []
    for call, around in zip(calls, arounds, strict=True):
        with around():
            counts.append(_calls_per_sample(call, clock, effort))
    times: list[list[float]] = [[] for _ in calls]
    order = list(range(len(calls)))
    shuffle = random.Random(0).shuffle
    start = perf_counter()
    with _no_collection():
        for done in range(effort.rounds):
            if done >= 3 and perf_counter() - start > effort.seconds:
                break
            shuffle(order)
            for place in order:
                with arounds[place]():
                    times[place].append(clock.sample(calls[place], counts[place]))
    return times


def _references(case: Case, framework: Framework, given: Inputs) -> list[Reference]:
    """What the result, or each gradient, has to be: from the values as rounded to the dtype."""
    values = [framework.to_float64(operand) for operand in given.operands]
    if given.cotangent is None:
        return [Reference(case, values)]
    upstream = framework.to_float64(given.cotangent)
    return [
        Reference(gradient_case(case, place), [*values[:place], upstream, *values[place + 1 :]])
        for place in range(len(values))
    ]


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


def _timing(checked: Timing, rounds: list[float] | None, native: list[float] | None) -> Timing:
    if rounds is None:
        return checked
    low, _, high = quantiles(rounds, n=4)
    speedup = median(theirs / this for theirs, this in zip(native, rounds, strict=True)) if native else None
    return replace(checked, seconds=median(rounds), spread=high - low, speedup=speedup)


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
