"""Calls that don't wait: the library's way at once, a faster one as soon as it's there and is measured.

A problem begins with its framework's own calls. What a kernel is predicted to save is added up over the calls of all
problems that differ in sizes only; when that pays for compiling, kernels are compiled in other processes. When they are
there, calls take turns in running one or another way, and events of the device around each, and around what computes
its gradients, tell which one is the fastest: nothing is computed twice, and nothing waits for the device. That one is
kept. Where the device waits for the host, so do the events: what they tell is what the caller pays.

Where many problems of a kind come, each too seldom for kernels of its own, one for any size is compiled first. A few
problems try it beside the library; the others then take it, or leave it. A problem that goes on to come pays for
kernels of its own.

The rule by which compiling begins is that of renting skis: buy when you have paid as much for renting.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from typing import Any, Generic, TypeVar

from einops_fast.runtime import background
from einops_fast.runtime.choosing import Record, agree, recall
from einops_fast.runtime.kinds import Shared, kind_of
from einops_fast.runtime.measuring import Policy, Stopwatch, record_of
from einops_fast.runtime.planner import planner
from einops_fast.runtime.trial import Trial

__all__ = ["Problem", "Tiers", "settle_all"]

W = TypeVar("W")

Run = Callable[..., Any]

PRICE = 0.05
"""Seconds that calls have to be predicted to save before kernels for one problem are compiled: so long the program is
held up by listing, loading and trying them."""

_PRICE_OF_ONE = 5e-3
"""The same where it is known which one is the fastest."""

_PRICE_FOR_ANY = 0.01
"""The same for a kernel for any size, which isn't chosen among many."""

_PRICE_OF_SIZE = 3e-4
"""Seconds that the calls of one problem have to be predicted to save before it looks for the kernel for any size: the
host takes so long for that."""

_LEFT = 0.2
"""The part of what kernels save that is left to those of a problem's own where that for any size runs."""

_PATIENCE = 32
"""Calls after which a problem tries a kernel for any size, although others are about to."""

_WAITING = 32
"""Problems that are listed at a time where somebody waits for them."""

_CALLS = 4
"""Of a problem, of which one looks whether there is anything to do; what is called less often needn't come back."""

_undecided: weakref.WeakSet[Tiers[Any]] = weakref.WeakSet()


class Problem(ABC, Generic[W]):
    """What is computed, and the ways to do so."""

    kind: Hashable  # what it has in common with problems that differ in sizes only
    library: W  # the way that works at once
    policy: Policy  # how ways are compared

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

    def for_any(self) -> tuple[str, W, Hashable] | None:
        """Return a way that serves other sizes, too: its name, and by what its compiled kernel is known.

        A thread calls this. ``None`` if there's no such way.
        """
        return None

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
        self._library = self._now = problem.run(problem.library)
        self._kind = kind_of(problem.kind)
        self._calls, self._own = 0, 0.0
        self._for_any: tuple[str, W, Shared] | None = None
        self._asked = False
        self._step: Callable[[], Run] = self._rent
        self._known: Sequence[str] | None = None
        self._price, self._saves = PRICE, 0.0
        self._busy = threading.Lock()
        self._futures: dict[str, Future[Any] | None] | None = None
        self._runs: dict[str, Run] = {}
        self._ways: dict[str, W] = {}
        self._trial: Trial
        self._every = _CALLS
        _undecided.add(self)

    def run(self) -> Run:
        """Return what is to run the next call."""
        self._calls += 1
        if self._calls % self._every:
            return self._now
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
        """Run by the library, or by a kernel for any size, until others pay."""
        kind, calls = self._kind, self._every
        if kind.shares and not self._asked:
            self._own += calls * kind.a_call
            if self._own >= _PRICE_OF_SIZE:
                self._ask()
            return self._now
        if self._calls % _CALLS:
            return self._now
        if not self._saves:
            self._look_up()
        saved = _CALLS * self._saves
        self._own += saved * (1.0 if self._now is self._library else _LEFT)
        kind.count(saved, _CALLS)
        if not background.available():
            return self._now
        if not self._asked and kind.shares is None and kind.saved >= max(_PRICE_FOR_ANY, 2 * self._own):
            self._ask()
        elif self._own >= self._price if kind.shares else kind.pays(self._price):
            self._step = self._wait
            planner().put(self._compile)
        return self._now

    def _ask(self) -> None:
        """Have the kernel for any size looked for, and compiled if none has been of its class."""
        self._asked, self._step = True, self._share
        planner().put(self._find_for_any)

    def _find_for_any(self) -> None:
        """Find the kernel for any size."""
        try:
            found = self._problem.for_any()
        except Exception:  # there is always the library
            found = None
        self._kind.shares = found is not None
        if found is None:
            self._step = self._rent
            return
        name, way, key = found
        shared = self._kind.shared.get(key)
        if shared is None:
            shared = self._kind.shared[key] = Shared(self._problem.compiled(name))
        self._for_any = name, way, shared

    def _share(self) -> Run:
        """Run as before until the kernel for any size is compiled and, by this problem or others, tried."""
        if self._for_any is None or not self._for_any[2].ready:
            return self._now
        name, way, shared = self._for_any
        if shared.failed or shared.faster is not None:
            self._step = self._rent
            if shared.faster and not shared.failed:
                self._run_by(way)
        elif shared.begin(self._calls % _PATIENCE == 0):
            self._trial = self._trial_of({"": self._library, name: self._problem.run(way)})
            self._step, self._every = self._compare, 1
        return self._now

    def _compare(self) -> Run:
        """Run the library or the kernel for any size, and time it."""
        assert self._for_any is not None
        run = self._trial.next()
        if run is not None or not self._trial.is_over():
            return run or self._now
        name, way, shared = self._for_any
        seconds = self._trial.medians()
        ratio = seconds.get(name, inf) / seconds.get("", inf) if "" in seconds else 0.0
        shared.tell(ratio)
        self._step, self._every = self._rent, _CALLS
        if ratio < 1:
            self._run_by(way)
        return self._now

    def _run_by(self, way: W) -> None:
        """Run by a kernel for any size from now on."""
        # Where determinism is asked for from some call on, all calls after it are the library's.
        self._now, self._every = self._problem.run(way), 1

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
            more = [] if self._for_any is None else [self._for_any[0]]
            self._futures = {name: self._problem.compiled(name) for name in dict.fromkeys([*wanted, *more])}
        except Exception:  # there is always the library
            self._futures = {}

    def _wait(self) -> Run:
        """Run as before until all are compiled."""
        if self._futures is not None and all(each is None or each.done() for each in self._futures.values()):
            self._step, self._every = self._load, 1
            self._names = deque(name for name, each in self._futures.items() if each is None or not each.exception())
        return self._now

    def _load(self) -> Run:
        """Load one of them; with the next calls the others."""
        if self._names:
            name = self._names.popleft()
            try:
                way = self._problem.named(name)
                self._ways[name], self._runs[name] = way, self._problem.run(way)
            except Exception:  # too large for this device, say
                return self._now
        if self._names:
            return self._now
        if len(self._runs) < 2:
            return self._keep(next(iter(self._runs), None))
        self._trial = self._trial_of(self._runs)
        self._step = self._try
        return self._try()

    def _trial_of(self, runs: Mapping[str, Run]) -> Trial:
        problem = self._problem
        return Trial(runs, self._library, problem.stopwatch, problem.gradients, problem.policy.spread)

    def _try(self) -> Run:
        """Run one of them and time it."""
        trial = self._trial
        run = trial.next()
        if run is not None:
            return run
        if not trial.is_over():
            return self._now
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


def settle_all(told: Callable[[str, int, int], None] = lambda what, done, of: None) -> None:
    """Choose now for every problem that calls have been made of."""
    undecided = list(_undecided)
    if background.available():
        # All at a time, on as many processors as there are.
        with ThreadPoolExecutor(_WAITING) as pool:
            for done, _ in enumerate(pool.map(Tiers.compile, undecided), 1):
                told("compiled", done, len(undecided))
    for done, each in enumerate(undecided, 1):
        try:
            each.settle()
        except (MemoryError, RuntimeError) as error:  # no room for operands to measure with, say
            warnings.warn(f"no kernel was chosen for some calls, which go on as they are: {error}", RuntimeWarning, 3)
        told("measured", done, len(undecided))
