"""The template of a study: it checks all ways to compute a case, times them in turns, and yields a row for each.

A study says which cases there are, which ways, and how a result is checked; everything else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from einops_fast.profiles.cases import Named, select
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.processes import run_ahead
from einops_fast.profiles.profilers.kernels import watched
from einops_fast.profiles.profilers.traces import write_trace
from einops_fast.profiles.reporting.charts import Chart, general_charts
from einops_fast.profiles.reporting.records import Ceiling, Extent, Note, Options, Record, Row, is_own, skipped
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.timing.ceilings import Ceilings, Work, measure_ceilings
from einops_fast.profiles.timing.measure import (
    BRIEF,
    FULL,
    QUICK,
    Effort,
    Timed,
    Timing,
    check,
    fastest,
    paired_ratio,
    time_ways,
)
from einops_fast.profiles.timing.memory import peak_memory
from einops_fast.profiles.timing.ranges import phase
from einops_fast.profiles.ways import Call, Inputs, Way, bind, inputs

__all__ = ["Study", "Task"]


@dataclass(frozen=True)
class Task:
    """One case in one dtype and direction.

    Attributes:
        framework: whose arrays.
        case: what is computed.
        dtype: of the operands.
        backward: gradients are wanted.
        offered: what :meth:`Study.offered` found.
        shared: what :meth:`Study.shared` made for both directions.
    """

    framework: Any
    case: Any
    dtype: str
    backward: bool
    offered: Any = None
    shared: Any = None


class Study(ABC):
    """What is measured in each framework, and the tables that it makes.

    Attributes:
        about: what it measures, in a few words.
        frameworks: measured unless others are asked for, where they are installed.
        families: the cases by family; ``--cases`` chooses one, and ``--only-run`` selects from it.
        own_cases: whether ``--cases`` may also be a file of einsums.
        ours: the name of our implementation in its rows.
        native: the name of the way that ratios are to.
        peers: what ours can be measured against, for ``--peers``.
        unrivalled: peers that compute something else, and aren't compared with ours.
        guests: ways whose failure isn't held against the run.
        needs_torch: it is about torch's tensors alone.
        dtypes: measured by default, by framework and device or by device.
        efforts: how long to measure, by device.
        hides_launches: on a GPU, the host queues a whole call before its time begins.
        profiled: the kernels of each call are looked at too.
        compiled: ways that are compiled before anything is timed.
        ahead_seconds: the longest that is waited for that.
    """

    about: ClassVar[str]
    frameworks: tuple[str, ...] = ("torch",)
    families: Mapping[str, tuple[Any, ...]]
    own_cases: bool = False
    ours: ClassVar[str] = "ours"
    native: ClassVar[str] = "native"
    peers: tuple[str, ...] = ()
    unrivalled: tuple[str, ...] = ()
    guests: tuple[str, ...] = ()
    needs_torch: bool = True
    dtypes: Mapping[str, tuple[str, ...]]
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": BRIEF}
    hides_launches: bool = False
    profiled: bool = False
    compiled: tuple[str, ...] = ()
    ahead_seconds: float = 120.0

    # What a study may say in its own way

    def wanted(self, framework: Framework, dtype: str, options: Options) -> Sequence[Named]:
        """The cases of the options, before they are scaled."""
        return select(self.families[options.cases], options.only)

    def scaled(self, case: Any, device: str, dtype: str) -> Any:
        """The case at a size that the device finishes soon, or ``None`` for not at all."""
        return case

    def directions(self, framework: Framework, case: Any, options: Options) -> tuple[bool, ...]:
        """Which directions of a case are measured: False for forward, True for forward and backward."""
        return (False,) if options.forward_only else (False, True)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[Any, list[Record]]:
        """What ours is measured against here, for :meth:`ways`; and what to tell about the others."""
        return None, []

    def shared(self, task: Task) -> Any:
        """What both directions of a case need, for :attr:`Task.shared`; the task has none yet."""
        return None

    @abstractmethod
    def ways(self, task: Task) -> list[Way]:
        """The ways to compute a case."""

    def inputs(self, task: Task, framework: Framework, seed: int, *, shared: bool = False) -> Inputs:
        """Operands of a case; ``shared`` ones have the same values in every framework."""
        return inputs(task.case, framework, task.dtype, seed, task.backward, shared=shared)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        """Whether each way is right; without those that aren't made for the case."""
        return check(task.case, ways, task.dtype, backward=task.backward)

    def told(self, task: Task, row: Row, timed: Timed) -> Row:
        """The row with what only this study knows about a call."""
        return row

    def compiled_for(self, case: Any, dtype: str, backward: bool, offered: Any) -> tuple[str, ...]:
        """Which ways of a case have to be compiled ahead."""
        return self.compiled

    @abstractmethod
    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The tables of what was measured."""

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """The charts of what was measured, with names for files: of forward calls, per framework and dtype."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            if not row.backward and row.dtype:
                groups.setdefault((row.framework, row.dtype), []).append(row)
        several = len({framework for framework, _ in groups}) > 1
        charts = []
        for (framework, dtype), group in groups.items():
            reached = next((each for each in ceilings if (each.framework, each.dtype) == (framework, dtype)), None)
            named = f"{framework}-{dtype}" if several else dtype
            for chart in general_charts(group, reached, f"{framework}, {dtype}"):
                charts.append(replace(chart, name=named if chart.name == "floor" else f"{named}-{chart.name}"))
        return charts

    # What is the same for all

    def measure(self, framework: Framework, options: Options) -> Iterator[Record]:
        """Measure a framework: a row per dtype, case, direction and way.

        Rows of a study that looks at kernels come again at the end: once profiled, a GPU may launch more slowly.
        """
        if self.needs_torch and framework.name != "torch":
            yield skipped(framework.name, self.ours, "this is measured on torch's tensors")
            return
        effort = QUICK if options.quick else self.efforts[framework.device]
        plan = self.plan(framework, options)
        yield Extent(sum(len(directions) for tasks in plan.values() for _, directions in tasks))
        offered, told = self.offered(framework, options, [case for tasks in plan.values() for case, _ in tasks])
        yield from told
        if framework.device == "gpu" and self.compiled:
            yield from map(Note, self.compile_ahead(framework, plan, offered))
        later: list[tuple[Task, Row]] = []
        for dtype in filter(plan.get, plan):
            try:
                ceilings = measure_ceilings(framework, dtype, effort)
            except Unavailable as missing:
                yield skipped(framework.name, self.ours, str(missing), dtype=dtype)
                continue
            yield Ceiling(framework.name, dtype, ceilings.bandwidth, ceilings.flops)
            yield Note(
                f"{framework.name} {dtype} reaches {ceilings.bandwidth / 1e9:.0f} GB/s in a copy"
                f" and {ceilings.flops / 1e9:.0f} GFLOP/s in a GEMM"
            )
            for case, directions in plan[dtype]:
                framework.forget()
                task = Task(framework, case, dtype, False, offered)
                task = replace(task, shared=self.shared(task))
                for task in (replace(task, backward=backward) for backward in directions):
                    for row in self.rows(task, effort, ceilings):
                        yield row
                        if (self.profiled or options.trace) and not row.failure:
                            later.append((replace(task, shared=None), row))
        yield from self._profiled(later, options.trace)

    def plan(self, framework: Framework, options: Options) -> dict[str, list[tuple[Any, list[bool]]]]:
        """The cases that are still to be measured, by dtype, with their directions."""
        device = framework.device
        dtypes = options.dtypes or self.dtypes.get(f"{framework.name} {device}") or self.dtypes[device]
        plan: dict[str, list[tuple[Any, list[bool]]]] = {}
        for dtype in dtypes:
            cases = (self.scaled(case, device, dtype) for case in self.wanted(framework, dtype, options))
            tasks = [
                (case, [way for way in self.directions(framework, case, options)
                        if options.left(framework.name, dtype, case, way)])
                for case in cases if case is not None
            ]  # fmt: skip
            plan[dtype] = [task for task in tasks if task[1]]
        return plan

    def rows(self, task: Task, effort: Effort, ceilings: Ceilings) -> Iterator[Row]:
        """A row for every way of a case; the case's failure as that of ours."""
        work = Work.of(task.case.passes(task.backward), task.dtype, ceilings)
        try:
            timed = self._timed(task, effort, ceilings)
        except Exception as error:  # a case that doesn't fit the machine's memory, say, isn't the end
            yield self._row(task, Timing.failed(self.ours, error), work)
            return
        native = next((each.timing for each in timed if each.timing.name == self.native), None)
        rivals = [each.timing for each in timed if each.timing.name in self.peers]
        best = fastest(timing for timing in rivals if timing.name not in self.unrivalled)
        for each in timed:
            timing = each.timing
            if native and timing.name not in self.unrivalled:
                timing = replace(timing, speedup=paired_ratio(native, timing))
            row = replace(self._row(task, timing, work), host=each.host)
            if best is not None and is_own(timing.name):
                row = replace(row, best=best.name, to_best=paired_ratio(timing, best))
            if each.call is not None:
                # Who can't tell was measured all the same.
                with each.way.around(), suppress(Exception):
                    row = replace(row, peak_bytes=peak_memory(each.way.framework, each.call))
                with each.way.around(), suppress(Exception):
                    row = self.told(task, row, each)
            yield row

    def _timed(self, task: Task, effort: Effort, ceilings: Ceilings) -> list[Timed]:
        ways = {way.name: way for way in self.ways(task)}
        checked = [(ways[timing.name], timing) for timing in self.check(task, list(ways.values()))]
        shared = len({way.framework.name for way in ways.values()}) > 1
        return time_ways(
            checked,
            lambda framework: self.inputs(task, framework, 1, shared=shared),
            effort,
            label=f"{task.case.name}/{{}}/{phase(task.backward)}",
            hiding_launches=ceilings.bandwidth if self.hides_launches else None,
        )

    def _row(self, task: Task, timing: Timing, work: Work) -> Row:
        row = Row.of(task.framework.name, task.case, task.dtype, timing, work, backward=task.backward)
        return replace(row, guest=timing.absent or timing.name in self.guests)

    def _profiled(self, later: Sequence[tuple[Task, Row]], trace: str) -> Iterator[Record]:
        """Yield the rows again, with kernels, and write traces; each call is made anew on new operands."""
        for task, row in later:
            if row.what == "compile":
                continue  # it would have to be compiled once more
            try:
                way, call = self.one_call(task, row.what)
            except Exception:  # of memory, say, which others still hold
                continue
            with way.around():
                if self.profiled:
                    row = watched(row, way.framework, call)
                    yield row
                if trace:
                    yield from write_trace(trace, row, way.framework, call)

    def one_call(self, task: Task, name: str) -> tuple[Way, Call]:
        """A way of a case by its name, and a call of it."""
        if task.shared is None:
            task = replace(task, shared=self.shared(task))
        way = next(way for way in self.ways(task) if way.name == name)
        return way, bind(way, self.inputs(task, way.framework, 1))

    # Compiling ahead

    def compile_ahead(self, framework: Framework, plan: Mapping[str, Any], offered: Any) -> list[str]:
        """Compile what the cases need in several processes; returns what the reader has to know."""
        known = {case.name for family in self.families.values() for case in family}
        jobs = [
            (framework.name, case.name, dtype, backward, name)
            for dtype, tasks in plan.items()
            for case, directions in tasks
            for backward in directions
            for name in self.compiled_for(case, dtype, backward, offered)
            if case.name in known
        ]
        return run_ahead(self.name, jobs, framework.threads, self.ahead_seconds)

    @property
    def name(self) -> str:
        """What commands call the study: its folder, spelled with dashes."""
        return type(self).__module__.split(".")[-2].replace("_", "-")

    def ahead(self, framework: Any, job: Sequence[Any]) -> None:
        """Call one way of one case once."""
        _, name, dtype, backward, what = job
        found = {case.name: case for family in self.families.values() for case in family}
        case = self.scaled(found[name], "gpu", dtype)
        offered, _ = self.offered(framework, Options(peers=(what,)), [case])
        task = Task(framework, case, dtype, backward, offered)
        way, call = self.one_call(task, what)
        with way.around():
            call()
