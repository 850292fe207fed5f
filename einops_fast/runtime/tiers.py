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

import statistics
import sys
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, Generic, TypeVar

from einops_fast.runtime import background
from einops_fast.runtime.choosing import agree, is_ready, recall
from einops_fast.runtime.measuring import Policy, Stopwatch, Times, record_of
from einops_fast.runtime.plan_cache import emptied_with_plans, kept
from einops_fast.runtime.planner import planner
from einops_fast.runtime.trial import take_turns

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

_PRICE_OF_COMPILER = 0.1
"""Seconds that calls of all kinds have to be predicted to save before the compiler is imported: beside that, what the
host waits for takes half as long again, for about a fifth of a second."""

_LEFT = 0.2
"""The part of what kernels save that is left to those of a problem's own where that for any size runs."""

_SHAPES = 3
"""Problems that a kernel for any size is tried on before all others take it, or leave it, untried."""

_PATIENCE = 32
"""Calls after which a problem tries a kernel for any size, although others are about to."""

_WAITING = 32
"""Problems that are listed at a time where somebody waits for them."""

_CALLS = 4
"""Of a problem, of which one looks whether there is anything to do; what is called less often needn't come back."""

_MOST_CALLS = 32
"""The same of calls that would hardly save anything by kernels: looking takes the host longer than that."""

_HARDLY = _PRICE_FOR_ANY / 10
"""Seconds that calls may save between two looks."""

stands_for: ContextVar[int] = ContextVar("stands_for", default=1)
"""How many calls each one stands for that is made now: the others are left to the framework."""

_undecided: weakref.WeakValueDictionary[int, Tiers[Any]] = weakref.WeakValueDictionary()
"""By identity: unlike a set's, its references are listed at once, whatever other threads add."""


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


class Shared:
    """A compiled kernel that serves many sizes."""

    def __init__(self, future: Future[Any] | None) -> None:
        self._future = future
        self.trials = 0  # problems that have begun to try it
        self.ratios: list[float] = []  # how many times as long as the library it took with each

    @property
    def ready(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return self._future is None or self._future.done()

    @property
    def faster(self) -> bool | None:
        """Whether it works and is faster than the library; ``None`` as long as too few problems have told."""
        if self._future is not None and self._future.exception() is not None:
            return False
        return statistics.median(self.ratios) < 1 if len(self.ratios) >= _SHAPES else None


@dataclass
class Kind:
    """What problems that differ in sizes only have in common."""

    saved: float = 0.0  # seconds that kernels are predicted to have saved by now, less what was paid
    predicted: float = 0.0  # the same, of so many calls, whatever was paid
    calls: int = 0
    shares: bool | None = None  # whether there are kernels for any size; `None` as long as nobody has asked
    shared: dict[Hashable, Shared] = field(default_factory=dict)  # these, by what they are compiled for


_kinds: dict[Hashable, Kind] = emptied_with_plans({})


class Tiers(Generic[W]):
    """What runs the calls of one problem until a way is chosen for good.

    Args:
        problem: what is computed.
        chosen: takes the way that is chosen for good and what runs it.

    Attributes:
        decided: the way that was chosen for good.
        way: the one that runs calls with which nothing is tried, by what :attr:`now` is.
        every: of so many calls, one is a :meth:`step`; the others need but count in :attr:`calls`.
    """

    def __init__(self, problem: Problem[W], chosen: Callable[[W, Run], None] = lambda way, run: None) -> None:
        self.problem, self._chosen = problem, chosen
        self.decided: W | None = None
        self.way = problem.library
        self._library = self.now = problem.run(problem.library)
        self.calls, self.every = 0, _CALLS
        self._kind = kept(_kinds, problem.kind, Kind)
        self._for_any: tuple[str, W, Shared] | None = None
        self._known: Sequence[str] | None = None
        self._busy = threading.Lock()
        self._futures: dict[str, Future[Any] | None] | None = None
        self._flow: Iterator[Run | None] = self._begin()
        _undecided[id(self)] = self

    def run(self) -> Run:
        """Return what is to run the next call."""
        alike = stands_for.get()
        self.calls += alike - self.calls % alike
        return self.now if self.calls % self.every else self.step()

    def step(self) -> Run:
        """Return what is to run a call that was counted, and do what there is to do."""
        # A call beside another one, in another thread, or while a graph is captured, is none to try anything with.
        if not self.problem.may_measure() or not self._busy.acquire(blocking=False):
            return self._library
        try:
            return next(self._flow, None) or self.now
        except BaseException:  # Control-C, say
            if self.decided is None:
                self._flow = self._begin()  # a generator that has raised is over
            raise
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
            if self.decided is None:
                self.decide(self.problem.settle())

    def decide(self, way: W, run: Run | None = None) -> None:
        """Choose a way for good."""
        _undecided.pop(id(self), None)
        self._run_by(way, run)
        self.decided = way
        self._flow = iter(())  # whatever was being tried ends, and the other ways are free to go
        self._chosen(way, self.now)

    def _begin(self) -> Iterator[Run | None]:
        """Yield what runs each call with which there is something to do; ``None`` stands for :attr:`now`."""
        yield from self._rent()
        planner().put(self._compile)
        while self._futures is None or not all(each is None or each.done() for each in self._futures.values()):
            yield None
        self.every = 1
        problem, ways, runs = self.problem, dict[str, W](), dict[str, Run]()
        for name, future in self._futures.items():
            yield None  # each call loads one
            if future is None or not future.exception():
                with suppress(Exception):  # too large for this device, say
                    way = problem.named(name)
                    ways[name], runs[name] = way, problem.run(way)
        chosen = next(iter(runs), None)
        if len(runs) > 1:
            seconds = yield from self._trial(runs)
            preferred = problem.preferred(ways.values())
            record = record_of(Times(seconds, seconds), list(self._futures), preferred, problem.policy)
            chosen = None
            if record is not None:
                chosen = agree(problem.key(), "auto", record, runs.__contains__)["choice"]
        if chosen is None:
            self.decide(problem.library, self._library)
        else:
            self.decide(ways[chosen], runs[chosen])

    def _rent(self) -> Iterator[Run | None]:
        """Run by the library, or by a kernel for any size, until kernels of the problem's own pay."""
        kind, own, asked, each, price = self._kind, 0.0, False, 0.0, inf
        while True:
            asks = False
            if kind.shares and not asked:
                own += self.every * kind.predicted / max(kind.calls, 1)
                asks = own >= _PRICE_OF_SIZE
            elif not self.calls % _CALLS:
                calls = max(self.every, _CALLS)
                each = each or self.problem.saves()
                saves = calls * each
                if price == inf and is_ready():
                    price = self._recall()
                own += saves * (1.0 if self.way is self.problem.library else _LEFT)
                kind.saved, kind.predicted, kind.calls = kind.saved + saves, kind.predicted + saves, kind.calls + calls
                if background.available() and _pays_for_compiler():
                    asks = not asked and kind.shares is None and kind.saved >= max(_PRICE_FOR_ANY, 2 * own)
                    if not asks and (own if kind.shares else kind.saved) >= price:
                        kind.saved -= 0.0 if kind.shares else price
                        self.every = min(self.every, _CALLS)
                        return
                if self.every > 1 and 2 * saves < _HARDLY:
                    self.every = min(2 * self.every, _MOST_CALLS)
            if asks:
                asked, self.every = True, _CALLS
                yield from self._share()
            else:
                yield None

    def _recall(self) -> float:
        """Find out what was chosen earlier, if anything was, and return the price of what is to be compiled."""
        record = recall(self.problem.key(), "auto")
        if record is None:
            return PRICE
        self._known = [record["choice"]]
        return _PRICE_OF_ONE

    def _share(self) -> Iterator[Run | None]:
        """Have the kernel for any size found, and compiled if none has been of its class; take it if it is faster."""
        looked = threading.Event()
        planner().put(partial(self._find_for_any, looked))
        yield None
        while not looked.is_set():
            yield None
        if self._for_any is None:
            return
        name, way, shared = self._for_any
        while not shared.ready:
            yield None
        while shared.faster is None:
            if shared.trials < _SHAPES or self.calls % _PATIENCE == 0:
                shared.trials += 1
                self.every = 1
                seconds = yield from self._trial({"": self._library, name: self.problem.run(way)})
                self.every = _CALLS
                ratio = seconds[name] / seconds.get("", inf) if name in seconds else inf
                shared.ratios.append(ratio)
                if ratio < 1:
                    self._run_by(way)
                return
            yield None
        if shared.faster:
            self._run_by(way)

    def _find_for_any(self, looked: threading.Event) -> None:
        with suppress(Exception):  # there is always the library
            found = self.problem.for_any()
            if found is not None:
                name, way, key = found
                if key not in self._kind.shared:
                    self._kind.shared[key] = Shared(self.problem.compiled(name))
                self._for_any = name, way, self._kind.shared[key]
        self._kind.shares = self._for_any is not None
        looked.set()

    def _run_by(self, way: W, run: Run | None = None) -> None:
        self.way, self.now = way, run or self.problem.run(way)
        # Where determinism is asked for from some call on, all calls after it are the library's.
        self.every = 1

    def _compile(self) -> None:
        """Have ways compiled: what was chosen earlier, or all that are worth trying."""
        try:
            wanted = self.problem.near() if self._known is None else self._known
            more = [] if self._for_any is None else [self._for_any[0]]
            self._futures = {name: self.problem.compiled(name) for name in dict.fromkeys([*wanted, *more])}
        except Exception:  # there is always the library
            self._futures = {}

    def _trial(self, runs: Mapping[str, Run]) -> Generator[Run | None, None, dict[str, float]]:
        problem = self.problem
        return take_turns(runs, self._library, problem.stopwatch, problem.gradients, problem.policy.spread)


def _pays_for_compiler() -> bool:
    """Return whether it is imported, or all calls so far pay for that."""
    return "triton" in sys.modules or sum(each.predicted for each in list(_kinds.values())) >= _PRICE_OF_COMPILER


def settle_all(told: Callable[[str, int, int], None] = lambda what, done, of: None) -> None:
    """Choose now for every problem that calls have been made of."""
    undecided = [each for reference in _undecided.valuerefs() if (each := reference()) is not None]
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
