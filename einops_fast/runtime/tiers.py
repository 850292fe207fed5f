"""Calls that don't wait: the library's way at once, a faster one as soon as it's there and is measured.

A problem begins with its framework's own calls. What a kernel is predicted to save is added up over the calls of all
problems that differ in sizes only; when that pays for compiling, kernels are compiled in other processes. When they are
there, calls take turns in running one or another way, and events of the device around each, and around what computes
its gradients, tell which one is the fastest: nothing is computed twice, and nothing waits for the device. That one is
kept. Where the device waits for the host, so do the events: what they tell is what the caller pays.

The rule by which compiling begins is that of renting skis: buy when you have paid as much for renting.
"""

from __future__ import annotations

import atexit
import functools
import queue
import statistics
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from einops_fast.runtime import background
from einops_fast.runtime.choosing import Record, agree, recall
from einops_fast.runtime.measuring import Policy, Stopwatch, Times, record_of
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

__all__ = ["Problem", "Tiers", "planner", "settle_all"]

W = TypeVar("W")

Run = Callable[..., Any]

PRICE = 0.05
"""Seconds that calls have to be predicted to save before kernels for one problem are compiled: so long the program is
held up by listing, loading and trying them."""

_PRICE_OF_ONE = 5e-3
"""The same where it is known which one is the fastest."""

_WAITING = 32
"""Problems that are listed at a time where somebody waits for them."""

_CALLS = 4
"""Of a problem, of which one looks whether there is anything to do; what is called less often needn't come back."""

_ROUNDS = 7
"""Runs of each way that count."""

_FIRST_ROUNDS = 2
"""Rounds after which ways that are far behind are dropped."""

_SLICE = 1e-4
"""Seconds for which the planner keeps the interpreter's lock while others want it."""

_PATIENCE = 256
"""Calls after the last run of a trial for which the times of gradients are waited for."""

_saved: dict[Hashable, float] = emptied_with_plans({})
"""Predicted seconds by kind of problem that kernels would have saved so far."""

_undecided: weakref.WeakSet[Tiers[Any]] = weakref.WeakSet()


class Problem(ABC, Generic[W]):
    """What is computed, and the ways to do so.

    Attributes:
        kind: what it has in common with problems that differ in sizes only.
        library: the way that works at once.
        policy: how ways are compared.
    """

    kind: Hashable
    library: W
    policy: Policy

    @abstractmethod
    def key(self) -> Mapping[str, Any]:
        """Return what choices are kept by on disk."""

    @abstractmethod
    def saves(self) -> float:
        """Return the seconds of a call that the fastest way may save, at most."""

    @abstractmethod
    def near(self) -> Sequence[str]:
        """Return the names of the ways worth trying. A thread calls this, and it may take long."""

    @abstractmethod
    def compiled(self, name: str) -> Future[Any] | None:
        """Have a way compiled elsewhere, or return ``None`` where there is nothing to compile."""

    @abstractmethod
    def named(self, name: str) -> W:
        """Return a way that is compiled, ready to run: what fails now fails the way."""

    @abstractmethod
    def run(self, way: W) -> Run:
        """Return what takes the operands of a call."""

    @abstractmethod
    def preferred(self, ways: Iterable[W]) -> Collection[str]:
        """Return the names of those that may take a little longer than others."""

    @abstractmethod
    def stopwatch(self) -> Stopwatch:
        """Return a new one."""

    def gradients(self, result: Any, operands: Sequence[Any]) -> Stopwatch | None:
        """Return what will have timed the gradients of a run's result, if these are computed."""
        return None

    @abstractmethod
    def may_measure(self) -> bool:
        """Return whether anything but the call itself may be done now."""

    @abstractmethod
    def settle(self) -> W:
        """Choose now, whatever it takes, by runs on operands that are made up."""


class Tiers(Generic[W]):
    """What runs the calls of one problem until a way is chosen for good.

    Args:
        problem: what is computed.
        chosen: takes the way that is chosen for good and what runs it.
    """

    def __init__(self, problem: Problem[W], chosen: Callable[[W, Run], None]) -> None:
        self._problem, self._chosen = problem, chosen
        self._library = problem.run(problem.library)
        self._calls = 0
        self._step: Callable[[], Run] = self._rent
        self._known: Sequence[str] | None = None
        self._price, self._saves = PRICE, 0.0
        self._busy = threading.Lock()
        self._futures: dict[str, Future[Any] | None] | None = None
        self._runs: dict[str, Run] = {}
        self._ways: dict[str, W] = {}
        self._trial: _Trial | None = None
        self._every = _CALLS
        _undecided.add(self)

    def run(self) -> Run:
        """Return what is to run the next call."""
        self._calls += 1
        if self._calls % self._every:
            return self._library
        # A call beside another one, in another thread, or while a graph is captured, is none to try anything with.
        if not self._problem.may_measure() or not self._busy.acquire(blocking=False):
            return self._library
        try:
            return self._step()
        finally:
            self._busy.release()

    def compile(self) -> None:
        """Have all compiled that is worth trying, and wait for that."""
        with self._busy:
            if self._futures is None:
                self._compile()
        for future in (self._futures or {}).values():
            if future is not None:
                future.exception()

    def settle(self) -> None:
        """Choose now, and wait for that."""
        with self._busy:
            way = self._problem.settle()
            self._chosen(way, self._problem.run(way))
        _undecided.discard(self)

    def _rent(self) -> Run:
        """Run by the library, until kernels pay."""
        if not self._saves:
            self._look_up()
        if background.available() and _pays(self._problem.kind, _CALLS * self._saves, self._price):
            self._step = self._wait
            planner().put(self._compile)
        return self._library

    def _look_up(self) -> None:
        """Find out what a call may save, and what was chosen earlier, if anything was."""
        self._saves = self._problem.saves()
        record = recall(self._problem.key(), "auto")
        if record is not None:
            self._known, self._price = [record["choice"]], _PRICE_OF_ONE

    def _compile(self) -> None:
        """Have ways compiled: what was chosen earlier, or all that are worth trying."""
        try:
            wanted = self._problem.near() if self._known is None else self._known
            self._futures = {name: self._problem.compiled(name) for name in wanted}
        except Exception:  # there is always the library
            self._futures = {}

    def _wait(self) -> Run:
        """Run by the library until all are compiled."""
        if self._futures is not None and all(each is None or each.done() for each in self._futures.values()):
            self._step, self._every = self._load, 1
            self._names = deque(name for name, each in self._futures.items() if each is None or not each.exception())
        return self._library

    def _load(self) -> Run:
        """Load one of them; with the next calls the others."""
        if self._names:
            name = self._names.popleft()
            try:
                way = self._problem.named(name)
                self._ways[name], self._runs[name] = way, self._problem.run(way)
            except Exception:  # too large for this device, say
                return self._library
        if self._names:
            return self._library
        if len(self._runs) < 2:
            return self._keep(next(iter(self._runs), None))
        self._trial = _Trial(self._runs, self._problem)
        self._step = self._try
        return self._try()

    def _try(self) -> Run:
        """Run one of them and time it."""
        trial = self._trial
        assert trial is not None
        run = trial.next()
        if run is not None:
            return run
        if not trial.is_over():
            return self._library
        assert self._futures is not None
        preferred = self._problem.preferred(self._ways.values())
        record: Record | None = record_of(trial.times(), list(self._futures), preferred, self._problem.policy)
        if record is not None:
            record = agree(self._problem.key(), "auto", record, self._runs.__contains__)
        return self._keep(None if record is None else record["choice"])

    def _keep(self, name: str | None) -> Run:
        """Choose for good."""
        way, run = (self._problem.library, self._library) if name is None else (self._ways[name], self._runs[name])
        _undecided.discard(self)
        self._chosen(way, run)
        return run


class _Trial:
    """Calls that run one way or another in turns."""

    def __init__(self, runs: Mapping[str, Run], problem: Problem[Any]) -> None:
        self._runs, self._problem = runs, problem
        self._alive = list(runs)
        self._queue = deque(self._alive)
        self._round = 0
        self._times: dict[str, list[float]] = {name: [] for name in runs}
        self._gradients: dict[str, list[Stopwatch]] = {name: [] for name in runs}
        self._open: list[tuple[str, Stopwatch, bool]] = []
        self._done = False
        self._patience = _PATIENCE

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
        found = {name: statistics.median(each) for name, each in self._times.items() if each}
        gradients = {name: seconds for name in found if (seconds := self._of_gradients(name)) is not None}
        if len(gradients) == len(found):
            found = {name: seconds + gradients[name] for name, seconds in found.items()}
        return Times(found, found)

    def _of_gradients(self, name: str) -> float | None:
        """Return the time of a way's gradients, 0 if it had none; ``None`` while some runs wait for theirs."""
        found = [watch.seconds() for watch in self._gradients[name]]
        known = [seconds for seconds in found if seconds is not None]
        return None if len(known) < len(found) else statistics.median(known) if known else 0.0

    def _timed(self, name: str, *operands: Any) -> Any:
        watch = self._problem.stopwatch()
        try:
            watch.start()
            result = self._runs[name](*operands)
            watch.stop()
        except Exception:  # no memory for this way, say; what is wrong with the call itself, the library says too
            self._times.pop(name, None)
            return self._problem.run(self._problem.library)(*operands)
        counts = self._round > 0  # the first run loads what isn't there yet
        self._open.append((name, watch, counts))
        gradients = self._problem.gradients(result, operands) if counts else None
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
            most = self._problem.policy.spread * min(least.values(), default=0.0)
            self._alive = [name for name in self._alive if least[name] <= most]
        if self._round > _ROUNDS or len(self._alive) < 2:
            self._done = True
            return False
        self._queue.extend(self._alive)
        return True


def _pays(kind: Hashable, seconds: float, price: float) -> bool:
    """Whether problems of a kind would have saved the price by now, with so many seconds more; then it is paid."""
    saved = _saved.get(kind, 0.0) + seconds
    keep(_saved, kind, saved - price if saved >= price else saved)
    return saved >= price


class _Planner:
    """A thread that finds out what to compile; it imports Triton, and ends with the program, after what it is at."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="einops_fast planner", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def put(self, work: Callable[[], None]) -> None:
        """Have something done."""
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None and not self._stopped:
            # What runs beside this, and gives up the interpreter's lock in every call of torch, gets it back as soon.
            before = sys.getswitchinterval()
            sys.setswitchinterval(min(before, _SLICE))
            try:
                work()
            finally:
                sys.setswitchinterval(before)

    def _stop(self) -> None:
        # A thread that is stopped inside of a compiler takes the program down with it.
        self._stopped = True
        self._work.put(None)
        self._thread.join()


@functools.cache
def planner() -> _Planner:
    """Return the thread that plans."""
    return _Planner()


def settle_all() -> None:
    """Choose now for every problem that calls have been made of."""
    undecided = list(_undecided)
    if background.available():
        # All at a time, on as many processors as there are.
        with ThreadPoolExecutor(_WAITING) as pool:
            list(pool.map(Tiers.compile, undecided))
    for each in undecided:
        each.settle()
