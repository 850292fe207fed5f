"""What happens while a program runs: how often each plan is run, how long it and its steps take, and how they are run.

A :class:`Recorder` observes plans as they are compiled (see :mod:`einops_fast.observing.observers`) and keeps one
record per plan and label. Times are taken on the device that the operands are on, and read when they are asked for.
"""

from __future__ import annotations

import statistics
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from inspect import unwrap
from math import prod
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from einops_fast.dtypes import dtype_name
from einops_fast.planning.cost import ITEM_SIZES

if TYPE_CHECKING:
    from einops_fast.backends.base import Backend
    from einops_fast.compiler.report import Fusion
    from einops_fast.explanation import Explanation
    from einops_fast.observing.calls import Called
    from einops_fast.planning.plan import Plan

Program = list[tuple[Callable[..., Any], tuple[int, ...]]]
"""The calls of a plan, each with the slots that it reads."""

current_label: ContextVar[str] = ContextVar("einops_fast_label", default="")
"""What the records of calls are tagged with."""

_MOST_SAMPLES = 4096
"""Times that are kept of one plan or step; of more calls, the first ones have their times taken."""

_MOST_RECORDS = 10_000
"""Plans that are kept: a program whose shapes are new in each call mustn't fill the memory."""

_MOST_PENDING = 64
"""Times of a device that wait to be read; more would hold on to its events."""

_MOST_NATIVE = 1e8
"""Products of a contraction up to which the framework's own einsum is timed beside a plan."""

_LONG = 1e-2
"""Seconds after which it isn't timed once more."""

_LIBRARIES = frozenset({"einops_fast", "numpy", "torch", "mxnet", "cupy", "opt_einsum", "contextlib", "functools"})


def caller() -> str:
    """Return the file and line of the innermost frame that is the user's own; empty in a library's thread."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Times:
    """Seconds of the calls of one thing."""

    def __init__(self, between: Callable[[Any, Any], float]) -> None:
        self.calls = 0  # how many there were
        self._between = between
        self._samples: list[float] = []
        self._pending: list[tuple[Any, Any]] = []

    def add(self, start: Any, end: Any) -> None:
        """A call, between two moments; of ``None`` only the call counts."""
        self.calls += 1
        if start is not None and end is not None and len(self._samples) < _MOST_SAMPLES:
            self._pending.append((start, end))
            if len(self._pending) >= _MOST_PENDING:
                self._read()

    @property
    def median(self) -> float | None:
        """Of one call; the first doesn't count if there are others, since plans and kernels are made then."""
        self._read()
        later = self._samples[1:] or self._samples
        return statistics.median(later) if later else None

    @property
    def first(self) -> float | None:
        """Of the first call."""
        self._read()
        return self._samples[0] if self._samples else None

    @property
    def total(self) -> float:
        """Of all calls; calls whose times weren't taken count as the median."""
        middle = self.median or 0.0
        return sum(self._samples) + middle * (self.calls - len(self._samples))

    def _read(self) -> None:
        pending, self._pending = self._pending, []
        self._samples += [self._between(start, end) for start, end in pending]


@dataclass
class PlanRecord:
    """The calls of one plan under one label."""

    plan: Plan  # what was run
    label: str  # the caller's
    inside: bool  # it was run as part of another plan, as pairs are where gradients are recorded
    times: Times  # of whole calls
    steps: tuple[Times, ...]  # of the plan's steps
    runs: tuple[Callable[..., Any], ...] = field(repr=False)  # what each step became
    callers: Counter[str] = field(default_factory=Counter)  # how many calls came from which file and line
    # seconds of the framework's own einsum on the operands of the first call; `None` if it wasn't timed
    native: float | None = None
    gradients: tuple[bool, ...] = ()  # which operands had gradients at the first call
    backward: bool = False  # it was run to compute gradients
    precision: str = "ieee"  # what the products of float32 could have then

    @cached_property
    def explanation(self) -> Explanation:
        """The plan in words and numbers."""
        from einops_fast.explanation import explanation_of

        return explanation_of(self.plan)

    @cached_property
    def floor(self) -> float:
        """Seconds to move operands and result once at the device's bandwidth, or for the FLOPs at its rate.

        The ceilings are those that times are predicted with: of the kind of device, not measured here.
        """
        plan = self.plan
        elements = prod(plan.sizes[label] for label in plan.subscripts.output)
        for operand in plan.operands:
            elements += prod(size for size, stride in zip(operand.shape, operand.strides, strict=True) if stride)
        moved = ITEM_SIZES.get(plan.numerics.compute, 8) * elements
        flops, on = sum(cost.flops for cost in plan.costs), plan.target.ceilings
        return max(moved / on.bandwidth, flops / on.gemm_rate(plan.numerics.compute))


class Recorder:
    """Observes plans, and keeps what it sees."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin anew, also with plans that are watched already."""
        self.began = perf_counter()
        self.records: dict[tuple[_Watch, str, bool], PlanRecord] = {}  # by plan and label
        # how often patched calls went to the framework's own function, by its name, equation, label, caller and reason
        self.native: Counter[tuple[str, str, str, str, str]] = Counter()
        self.attended: Counter[tuple[str, str]] = Counter()  # patched attention that went to ours, by label and caller
        self.aside = 0.0  # seconds that were spent on timing the framework's own functions
        self.fusions: list[Fusion] = []  # what was fused in compiled programs, and what wasn't
        # kinds of calls of operators and of attention, with their labels
        self.calls: dict[tuple[str, Called], None] = {}

    def watch(self, plan: Plan, backend: Backend) -> _Watch:
        """Record a plan that is being compiled."""
        return _Watch(self, plan, backend)

    def left_to_native(self, backend: str, equation: str, reason: str) -> None:
        """Count a patched call that went to the framework's own function."""
        self.native[backend, equation, current_label.get(), caller(), reason] += 1

    def attention(self) -> None:
        """Count a patched call of attention that is ours."""
        self.attended[current_label.get(), caller()] += 1

    def called(self, call: Called) -> None:
        """Keep an operator or an attention of a new kind that was called; a contraction is watched."""
        if len(self.calls) < _MOST_RECORDS:
            self.calls[current_label.get(), call] = None

    def fusion(self, found: Fusion) -> None:
        """Keep what was fused in a program that is being compiled, or could not be."""
        self.fusions.append(found)

    @property
    def plans(self) -> list[PlanRecord]:
        """The records so far; other threads may go on."""
        return list(self.records.values())

    def record(self, watch: _Watch, inside: bool) -> PlanRecord:
        """The record of a call that begins now."""
        key = watch, current_label.get(), inside
        found = self.records.get(key)
        if found is None:
            # A plan that is forgotten and made again gets a record of its own.
            found = PlanRecord(
                watch.plan,
                key[1],
                inside,
                Times(watch.backend.between),
                tuple(Times(watch.backend.between) for _ in watch.plan.steps),
                watch.runs,
                backward=watch.backend.is_backward(),
                precision=watch.backend.float32_precision(),
            )
            # The calls of what comes after the last one that is kept are timed for nobody.
            if len(self.records) < _MOST_RECORDS:
                self.records[key] = found
        found.callers[caller()] += 1
        return found


# The records of the plans that a thread is in the middle of, the innermost last.
_running = threading.local()


class _Watch:
    """A plan that is recorded by one recorder."""

    def __init__(self, recorder: Recorder, plan: Plan, backend: Backend) -> None:
        self.plan, self.backend = plan, backend
        self.runs: tuple[Callable[..., Any], ...] = ()
        self._recorder = recorder

    def program(self, program: Program) -> Program:
        """Return the calls of the plan's steps, each timed."""
        # Of who looks on besides, each would see the other's wrapping only.
        self.runs = tuple(unwrap(run) for run, _ in program)
        return [(self._timed(at, run), reads) for at, (run, reads) in enumerate(program)]

    def whole(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return the plan as one callable, recorded."""
        mark, record = self.backend.mark, self._recorder.record

        def observed(*operands: Any) -> Any:
            stack = _running.__dict__.setdefault("records", [])
            found = record(self, bool(stack))
            stack.append((self, found))
            start = mark(operands[0])
            try:
                return run(*operands)
            finally:
                found.times.add(start, mark(operands[0]))
                stack.pop()
                if found.times.calls == 1 and not found.inside:
                    self._time_native(found, operands)
                if found.times.calls == 1:
                    found.gradients = tuple([bool(getattr(each, "requires_grad", False)) for each in operands])

        return observed

    def _time_native(self, found: PlanRecord, operands: tuple[Any, ...]) -> None:
        """Time the framework's own einsum, where that can be done aside, doesn't take long and has the same dtype."""
        plan, began = self.plan, perf_counter()
        if prod(plan.sizes.values()) > _MOST_NATIVE or any(getattr(each, "requires_grad", False) for each in operands):
            return
        equation = plan.subscripts.equation
        try:
            if dtype_name(self.backend.native(equation, operands).dtype) != plan.numerics.result:
                return
            times = list[float]()
            while len(times) < 3 and sum(times) < _LONG:  # a single one may have been interrupted
                start = self.backend.mark(operands[0])
                self.backend.native(equation, operands)
                times.append(self.backend.between(start, self.backend.mark(operands[0])))
            found.native = min(times)
        except Exception:  # whatever it can't do, has no time
            pass
        self._recorder.aside += perf_counter() - began

    def _timed(self, at: int, run: Callable[..., Any]) -> Callable[..., Any]:
        mark = self.backend.mark

        def timed(*arrays: Any) -> Any:
            start = mark(arrays[0])
            result = run(*arrays)
            end = mark(arrays[0])
            for watch, found in reversed(_running.__dict__.get("records", ())):
                if watch is self:
                    found.steps[at].add(start, end)
                    break
            return result

        timed.__wrapped__ = run  # type: ignore[attr-defined]
        return timed
