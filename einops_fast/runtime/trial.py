"""Calls that time ways as they come: each runs one of them, and nothing is computed twice or waited for."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from einops_fast.runtime.measuring import Stopwatch

Run = Callable[..., Any]

_ROUNDS = 7
"""Runs of each way that count."""

_FIRST_ROUNDS = 2
"""Rounds after which ways that are far behind are dropped."""

_PATIENCE = 256
"""Calls after the last run for which the times of gradients are waited for."""


def take_turns(
    runs: Mapping[str, Run],
    library: Run,
    stopwatch: Callable[[], Stopwatch],
    gradients_of: Callable[[Any, Sequence[Any]], Stopwatch | None],
    spread: float,
) -> Generator[Run | None, None, dict[str, float]]:
    """Yield what runs and times each call, or ``None`` while the device isn't done; return seconds by name.

    Args:
        runs: the ways by name.
        library: what runs a call in place of a way that fails.
        stopwatch: makes a new one.
        gradients_of: returns what will have timed the gradients of a run's result, if these are computed.
        spread: ways that take so many times as long as another one are dropped early.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    gradients: dict[str, list[Stopwatch]] = {name: [] for name in runs}
    pending: list[tuple[str, Stopwatch, bool]] = []

    def timed(name: str, counts: bool, *operands: Any) -> Any:
        watch = stopwatch()
        try:
            watch.start()
            result = runs[name](*operands)
            watch.stop()
        except Exception:  # no memory for this way, say; what is wrong with the call itself, the library says too
            times.pop(name, None)
            return library(*operands)
        pending.append((name, watch, counts))
        of_gradients = gradients_of(result, operands) if counts else None
        if of_gradients is not None:
            gradients[name].append(of_gradients)
        return result

    def gradient_seconds(name: str) -> float | None:
        """Return 0 if it had none; ``None`` while some runs wait for theirs."""
        found = [watch.seconds() for watch in gradients[name]]
        known = [seconds for seconds in found if seconds is not None]
        return None if len(known) < len(found) else statistics.median(known) if known else 0.0

    alive = list(runs)
    for number in range(_ROUNDS + 1):
        for name in alive:
            yield partial(timed, name, number > 0)  # the first run loads what isn't there yet
        while pending:
            name, watch, counts = pending[0]
            seconds = watch.seconds()
            if seconds is None:
                yield None
                continue
            del pending[0]
            if counts:
                times.get(name, []).append(seconds)
        alive = [name for name in alive if name in times]
        if number >= _FIRST_ROUNDS and not any(gradients.values()):
            # A way whose runs, in other threads, aren't over may still be the fastest.
            least = {name: min(each) for name in alive if (each := times.get(name))}
            most = spread * min(least.values(), default=0.0)
            alive = [name for name in alive if least.get(name, 0.0) <= most]
        if len(alive) < 2:
            break
    for _ in range(_PATIENCE):
        if None not in map(gradient_seconds, alive):
            break
        yield None
    medians = {name: statistics.median(each) for name, each in [*times.items()] if each}
    of_gradients = {name: seconds for name in medians if (seconds := gradient_seconds(name)) is not None}
    if len(of_gradients) < len(medians):
        return medians
    return {name: seconds + of_gradients[name] for name, seconds in medians.items()}
