"""Programs that have just begun: ours and torch's own functions over many lengths, with empty caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from einops_fast.profiles.first_calls.cases import FAMILIES
from einops_fast.profiles.first_calls.program import Found, batches, measured, ways_of
from einops_fast.profiles.frameworks import Framework, load
from einops_fast.profiles.processes import Job, begun, empty_caches
from einops_fast.profiles.reporting.cells import AFTER, BEFORE, lines_of, side_by_side, table, times
from einops_fast.profiles.reporting.records import Ceiling, Note, Options, Record, Row
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import FULL, QUICK, Effort, Timing, too_wrong
from einops_fast.profiles.ways import Inputs, Way

__all__ = ["SHOWN", "FirstCallsStudy"]

PASSES, QUICK_PASSES = 10, 3  # Passes before kernels are waited for

# Seconds of a process, after which its pass with kernels is left out: there may be hundreds to compile.
LONGEST, QUICK_LONGEST = 150.0, 60.0

# What tables call the times of a program.
SHOWN = {
    "first": "first pass",
    "slowest": "slowest call",
    "second": "second pass",
    "last": "last pass",
    "steady": "with kernels",
}


class FirstCallsStudy(Study):
    """A row per dtype, case, direction and way, whose time is that of the first pass."""

    about = "programs whose lengths vary: the first calls, the next ones, and those that have their kernels"
    families = FAMILIES
    makers: Mapping[str, Callable[[Task], Way]] = {
        "native": lambda task: ways_of(task.case, task.framework)[0],
        "ours": lambda task: ways_of(task.case, task.framework)[1],
    }
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}
    drawn = False

    def offered(self, framework: Framework, options: Options) -> tuple[tuple[str, ...], list[Record]]:
        note = Note("These programs ran in the mode 'auto', each in a process with empty caches.")
        return tuple(self.makers), [note]

    def inputs(self, task: Task, framework: Framework, seed: int, *, shared: bool = False) -> Inputs:
        """Operands of the longest batch, for a trace."""
        longest = max(task.case.lengths)
        return next(iter(batches(task.case, framework, task.dtype, task.backward, [longest])))

    def rows(self, task: Task, effort: Effort, ceilings: Ceiling) -> Iterator[Row]:
        """A row for each of the two processes."""
        framework, before = task.framework, None
        passes, longest = (QUICK_PASSES, QUICK_LONGEST) if effort is QUICK else (PASSES, LONGEST)
        for what in task.names:
            job = Job(task.case.name, what, task.dtype, task.backward, framework.device, framework.threads, passes)
            others: dict[str, Any] = {}
            try:
                with empty_caches() as caches, begun(self.name, job, caches, longest) as process:
                    found = Found(**process.answer())
            except RuntimeError as error:
                timing = Timing(what, failure=str(error).splitlines()[-1], details=str(error))
            else:
                wrong, first = too_wrong(found.error, found.allowed), found.seconds["first"]
                speedup = before / first if before is not None else None
                timing = Timing(what, None if wrong else first, None, speedup, found.error, wrong)
                before = first
                others = {"phases": found.seconds, "kernels": f"{found.kernels} compiled"}
            yield Row.of(framework.name, task.case, task.dtype, timing, backward=task.backward, **others)

    def do(self, job: Job) -> Iterator[Found]:
        case = next(case for family in FAMILIES.values() for case in family if case.name == job.case)
        yield from measured(job, case.scaled(job.device, job.dtype), load("torch", job.device, job.threads))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table of all cases."""
        lines = lines_of(rows, self.native)
        columns = {
            **BEFORE,
            **{
                f"{shown}, ms: native / ours": side_by_side(tuple(self.makers), _time_of(phase), ".1f")
                for phase, shown in SHOWN.items()
            },
        }
        columns |= {"kernels": AFTER["kernels of ours"], "check": AFTER["check"]}
        summary = []
        for phase, shown in SHOWN.items():
            both = [(line.native.phases.get(phase), line.ours.phases.get(phase)) for line in lines
                    if line.native and line.native.seconds and line.ours.seconds]  # fmt: skip
            ratios = [native / ours for native, ours in both if native and ours]
            if ratios:
                summary.append(f"{shown}: native/ours {geomean(ratios):.2f}, worst {min(ratios):.2f}")
        return [table("Programs whose lengths vary", lines, columns, *summary)]


def _time_of(phase: str) -> Callable[[Row], float | None]:
    return lambda row: times(1e3, row.phases.get(phase))
