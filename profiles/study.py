"""The template of a study: it checks all ways to compute a case, times them in turns, and yields a row for each.

A study is data: its cases, a maker for each way, and what it needs here; its own is how a result is checked.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from traceback import format_exc
from typing import Any, ClassVar

from einops_fast.profiles.cases import AnyCase, select
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.own_cases import read_cases
from einops_fast.profiles.processes import Job, run_ahead
from einops_fast.profiles.profilers.traces import watched
from einops_fast.profiles.reporting import records
from einops_fast.profiles.reporting.cells import comparison, lines_of
from einops_fast.profiles.reporting.charts import Chart, general_charts
from einops_fast.profiles.reporting.records import Ceiling, Note, Options, Record, Row, is_ours, is_own, skipped
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.timing import measure as runner
from einops_fast.profiles.timing.ceilings import Work, measure_ceilings
from einops_fast.profiles.ways import Call, Inputs, Way, bind, inputs

Plan = dict[str, list[tuple[Any, list[bool]]]]  # Cases with their directions, by dtype


@dataclass(frozen=True)
class Task:
    """One case in one dtype and direction."""

    framework: Any  # whose arrays
    case: Any
    dtype: str
    backward: bool
    names: tuple[str, ...] = ()  # of the ways that are measured, as far as they are made for the case
    shared: Any = None  # what `Study.shared` made for both directions


Maker = Callable[[Task], Callable[..., Any] | Way]


class Study(ABC):
    """What is measured in each framework, and the tables that it makes."""

    about: ClassVar[str]  # what it measures, in a few words
    # measured unless others are asked for, where they are installed; torch by itself is about torch's tensors alone.
    frameworks: tuple[str, ...] = ("torch",)
    # the cases by family; `--cases` chooses one, and `--only-run` selects from it.
    families: Mapping[str, Sequence[AnyCase]]
    own_cases: bool = False  # whether `--cases` may also be a file of einsums
    # what makes the call of each way of a task, or the whole way, or raises `Unavailable` for what it isn't made for.
    makers: Mapping[str, Maker]
    # what raises `Unavailable` where a way can't run on a framework at all.
    needs: Mapping[str, Callable[[Framework], object]] = {}
    ours: ClassVar[str] = "ours"  # the name of our implementation in its rows
    native: ClassVar[str] = "native"  # the name of the way that ratios are to
    peers: tuple[str, ...] = ()  # what ours can be measured against, for `--peers`
    unrivalled: tuple[str, ...] = ()  # peers that compute something else, and aren't compared with ours
    guests: tuple[str, ...] = ()  # ways whose failure isn't held against the run
    on_cpu: tuple[str, ...] = ()  # ways that are measured on a CPU if nobody asks for others; all if empty
    dtypes: Mapping[str, tuple[str, ...]]  # measured by default, by framework and device or by device
    # how long to measure, by device.
    efforts: Mapping[str, runner.Effort] = {"cpu": runner.FULL, "gpu": runner.BRIEF}
    hides_launches: bool = False  # on a GPU, the host queues a whole call before its time begins
    drawn: bool = True  # its rows have one time each, for charts
    profiled: bool = False  # the kernels of each call are looked at too
    compiled: tuple[str, ...] = ()  # ways that are compiled before anything is timed, within `ahead_seconds`
    ahead_seconds: float = 120.0

    @property
    def name(self) -> str:
        """What commands call the study: its folder, spelled with dashes."""
        return type(self).__module__.split(".")[-2].replace("_", "-")

    # What a study may say in its own way

    def shared(self, task: Task) -> Any:
        """Return what both directions of a case need, for :attr:`Task.shared`; the task has none yet."""
        return None

    def way(self, task: Task, name: str) -> Way:
        """Return a way to compute a case; raise :class:`Unavailable` if it isn't made for it."""
        made = self.makers[name](task)
        return made if isinstance(made, Way) else Way(name, made, task.framework)

    def ways(self, task: Task) -> list[Way]:
        """Return the ways to compute a case, without those that aren't made for it."""
        ways = []
        for name in task.names:
            with suppress(Unavailable):
                ways.append(self.way(task, name))
        return ways

    def inputs(self, task: Task, seed: int) -> Inputs:
        """Return operands of a case."""
        return inputs(task.case, task.framework, task.dtype, seed, task.backward)

    def check(self, task: Task, ways: Sequence[Way]) -> list[runner.Timing]:
        """Return whether each way is right; without those that aren't made for the case."""
        return runner.check(task.case, ways, task.dtype, backward=task.backward)

    def timed(self, task: Task, effort: runner.Effort, ceilings: Ceiling) -> list[runner.Timing]:
        """Check and time the ways of a case."""
        return runner.time_ways(
            self.check(task, self.ways(task)),
            lambda: self.inputs(task, 1),
            effort,
            hiding_launches=ceilings.bandwidth if self.hides_launches else None,
        )

    def told(self, task: Task, row: Row, timing: runner.Timing) -> Row:
        """Return the row with what only this study knows about a call."""
        return row

    def do(self, job: Job) -> Iterator[Any]:
        """Do a job that the study has started, in this process: yield what is found, as records."""
        raise NotImplementedError(f"the study {self.name!r} starts no jobs")

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """Return charts, with names for files: of forward calls, per framework and dtype."""
        reached = {(each.framework, each.dtype): each for each in ceilings}
        groups = _groups(row for row in rows if self.drawn and not row.backward and row.dtype)
        several = len({framework for framework, _ in groups}) > 1
        charts = []
        for (framework, dtype), group in groups.items():
            named = f"{framework}-{dtype}" if several else dtype
            for chart in general_charts(group, reached.get((framework, dtype)), f"{framework}, {dtype}"):
                charts.append(replace(chart, name=f"{named}-{chart.name}".removesuffix("-")))
        return charts

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Return a table of each framework and dtype forward, and one forward and backward, a line per case."""
        tables = []
        for (framework, dtype), group in _groups(self.in_order(rows)).items():
            lines = lines_of(group, self.native)
            for backward, direction in ((False, "forward"), (True, "forward and backward")):
                some = [line for line in lines if line.ours.backward is backward]
                ways = dict.fromkeys(way for line in some for way in line.ways)
                if some:
                    title = f"{self.name}: {framework}, {dtype}, {direction}"
                    tables.append(comparison(title, some, sorted(ways, key=lambda way: not is_ours(way))))
        return tables

    # What is the same for all

    def in_order(self, rows: Iterable[Row]) -> list[Row]:
        """Return rows in the order of the families, not in that of the run, where what matters most comes first."""
        order = {name: place for place, name in enumerate(self._known())}
        return sorted(rows, key=lambda row: order.get(row.case, len(order)))

    def family(self, cases: str) -> Sequence[AnyCase]:
        known = self.families.get(cases)
        return read_cases(Path(cases)) if known is None else known

    def _known(self) -> dict[str, AnyCase]:
        return {case.name: case for family in self.families.values() for case in family}

    def plan(self, framework: Framework, options: Options) -> Plan:
        """Return the cases to measure, by dtype, with their directions."""
        device = framework.device
        dtypes = options.dtypes or self.dtypes.get(f"{framework.name} {device}") or self.dtypes[device]
        # Two cores take minutes for all, and a GPU for all dtypes; whoever asks for others gets them.
        asked = options.only or options.cases != "public" if device == "cpu" else options.dtypes
        plan: Plan = {dtype: [] for dtype in dtypes}
        for dtype, tasks in plan.items():
            for case in select(self.family(options.cases), options.only):
                small = case.scaled(device, dtype)
                if small is None or not (asked or case.by_default(device, dtype)):
                    continue
                both = framework.differentiable and not options.forward_only
                tasks.append((small, [*small.directions()] if both else [False]))
        return plan

    def offered(self, framework: Framework, options: Options) -> tuple[tuple[str, ...], list[Record]]:
        """Return the names of the ways that are measured here, and why others can't be."""
        everywhere = framework.device == "gpu" or not self.on_cpu
        names, told = [], []
        for name in self.makers:
            usual = (not options.peers or is_own(name)) and (everywhere or name in self.on_cpu)
            if not (usual or name in (self.ours, self.native, *options.peers)):
                continue
            try:
                if name in self.needs:
                    self.needs[name](framework)
            except Unavailable as missing:
                told.append(skipped(framework.name, name, str(missing), details=format_exc()))
            else:
                names.append(name)
        return tuple(names), list(told)

    def measure(self, framework: Framework, options: Options) -> Iterator[Record]:
        """Measure a framework: a row per dtype, case, direction and way.

        Rows of a study that looks at kernels come again at the end: once profiled, a GPU may launch more slowly.
        """
        if self.frameworks == ("torch",) and framework.name != "torch":
            yield skipped(framework.name, self.ours, "this is measured on torch's tensors")
            return
        effort = runner.QUICK if options.quick else self.efforts[framework.device]
        plan = self.plan(framework, options)
        yield records.Extent(sum(len(directions) for tasks in plan.values() for _, directions in tasks))
        names, told = self.offered(framework, options)
        yield from told
        if framework.device == "gpu":
            yield from map(Note, self.compile_ahead(framework, plan, names))
        later: list[tuple[Task, Row]] = []
        for dtype in filter(plan.get, plan):
            try:
                ceilings = measure_ceilings(framework, dtype, effort)
            except Unavailable as missing:
                yield skipped(framework.name, self.ours, str(missing), dtype=dtype)
                continue
            yield ceilings
            yield Note(
                f"{framework.name} {dtype} reaches {ceilings.bandwidth / 1e9:.0f} GB/s in a copy"
                f" and {ceilings.flops / 1e9:.0f} GFLOP/s in a GEMM"
            )
            for case, directions in plan[dtype]:
                framework.forget()
                task = Task(framework, case, dtype, False, names)
                task = replace(task, shared=self.shared(task))
                for task in (replace(task, backward=backward) for backward in directions):
                    for row in self.rows(task, effort, ceilings):
                        yield row
                        if (self.profiled or options.trace) and not row.failure:
                            later.append((replace(task, shared=None), row))
        for task, row in later:
            if row.what == "compile":
                continue  # it would have to be compiled once more
            try:
                way, call = self.one_call(task, row.what)
            except Exception:  # of memory, say, which others still hold
                continue
            with way.around():
                yield from watched(row, way.framework, call, options.trace)

    def rows(self, task: Task, effort: runner.Effort, ceilings: Ceiling) -> Iterator[Row]:
        """Yield a row for every way of a case; the case's failure as that of ours."""
        passes = task.case.passes(task.backward)
        work = Work.of(passes, task.dtype, ceilings) if passes else None
        try:
            timed = self.timed(task, effort, ceilings)
        except Exception as error:  # a case that doesn't fit the machine's memory, say, isn't the end
            timed = [runner.Timing.failed(self.ours, error)]
        native = next((timing for timing in timed if timing.name == self.native), None)
        rivals = [timing for timing in timed if timing.name in self.peers and timing.name not in self.unrivalled]
        best = runner.fastest(rivals)
        for timing in timed:
            if native and timing.name not in self.unrivalled:
                timing = replace(timing, speedup=runner.paired_ratio(native, timing))
            row = Row.of(task.framework.name, task.case, task.dtype, timing, work, backward=task.backward)
            row = replace(row, guest=row.guest or timing.name in self.guests)
            if best is not None and is_own(timing.name):
                row = replace(row, best=best.name, to_best=runner.paired_ratio(timing, best))
            if timing.call is not None and timing.way is not None:
                # Who can't tell was measured all the same.
                with timing.way.around(), suppress(Exception):
                    row = replace(row, peak_bytes=timing.way.framework.peak_memory(timing.call))
                with timing.way.around(), suppress(Exception):
                    row = self.told(task, row, timing)
            yield row

    def one_call(self, task: Task, name: str) -> tuple[Way, Call]:
        """Return a way of a case by its name, and a call of it on new operands."""
        task = replace(task, names=(name,))
        task = replace(task, shared=self.shared(task))
        [way] = self.ways(task)
        return way, bind(way, self.inputs(task, 1))

    # Compiling

    def compile_ahead(self, framework: Framework, plan: Plan, names: Sequence[str]) -> list[str]:
        """Compile what the cases need in several processes; return what the reader has to know."""
        known = self._known()
        jobs = [
            (framework.name, case.name, dtype, backward, name)
            for dtype, tasks in plan.items()
            for case, directions in tasks
            for backward in directions
            for name in self.compiled
            if name in names and case.name in known and case.compiles(name)
        ]
        return run_ahead(self.name, jobs, framework.threads, self.ahead_seconds)

    def ahead(self, framework: Any, job: Sequence[Any]) -> None:
        """Call one way of one case once."""
        _, name, dtype, backward, what = job
        case = self._known()[name].scaled("gpu", dtype)
        task = Task(framework, case, dtype, backward)
        way, call = self.one_call(task, what)
        with way.around():
            call()


def _groups(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.framework, row.dtype), []).append(row)
    return groups
