"""Programs that have just begun: ours and torch's own functions over many lengths, with empty caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from einops_fast.profiles.first_calls.cases import FAMILIES, LengthsCase, scaled
from einops_fast.profiles.first_calls.program import NATIVE, OURS, Job, batches, in_a_new_process, ways_of
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting import cells
from einops_fast.profiles.reporting.charts import Chart
from einops_fast.profiles.reporting.records import Ceiling, Note, Options, Record, Row
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.ceilings import Ceilings
from einops_fast.profiles.timing.measure import FULL, QUICK, Effort, Timing, too_wrong
from einops_fast.profiles.ways import Inputs, Way

__all__ = ["FirstCallsStudy"]

PASSES, QUICK_PASSES = 10, 3
"""Passes before kernels are waited for."""

LONGEST, QUICK_LONGEST = 150.0, 60.0
"""Seconds of a process, after which its pass with kernels is left out: there may be hundreds to compile."""

SHOWN = {
    "first": "first pass",
    "slowest": "slowest call",
    "second": "second pass",
    "last": "last pass",
    "steady": "with kernels",
}
"""What tables call the times of a program."""


class FirstCallsStudy(Study):
    """A row per dtype, case, direction and way, whose time is that of the first pass."""

    about = "programs whose lengths vary: the first calls, the next ones, and those that have their kernels"
    families = FAMILIES
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}

    def scaled(self, case: LengthsCase, device: str, dtype: str) -> LengthsCase:
        return scaled(case, device)

    def directions(self, framework: Framework, case: LengthsCase, options: Options) -> tuple[bool, ...]:
        return (case.trained and not options.forward_only,)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[None, list[Record]]:
        return None, [Note("These programs ran in the mode 'auto', each in a process with empty caches.")]

    def ways(self, task: Task) -> list[Way]:
        return ways_of(task.case, task.framework)

    def inputs(self, task: Task, framework: Framework, seed: int, *, shared: bool = False) -> Inputs:
        """Operands of the longest batch, for a trace."""
        longest = max(task.case.lengths)
        return next(iter(batches(task.case, framework, task.dtype, task.backward, [longest])))

    def rows(self, task: Task, effort: Effort, ceilings: Ceilings) -> Iterator[Row]:
        """A row for each of the two processes."""
        framework, before = task.framework, None
        passes, longest = (QUICK_PASSES, QUICK_LONGEST) if effort is QUICK else (PASSES, LONGEST)
        for what in (NATIVE, OURS):
            job = Job(task.case.name, what, task.dtype, task.backward, framework.device, framework.threads, passes)
            try:
                found = in_a_new_process(job, longest)
            except RuntimeError as error:
                timing = Timing(what, failure=str(error).splitlines()[-1], details=str(error))
                yield Row.of(framework.name, task.case, task.dtype, timing, backward=task.backward)
                continue
            wrong = too_wrong(found.error, found.allowed)
            first = found.seconds["first"]
            timing = Timing(
                what,
                None if wrong else first,
                speedup=before / first if before is not None else None,
                error=found.error,
                failure=wrong,
            )
            before = first
            row = Row.of(framework.name, task.case, task.dtype, timing, backward=task.backward)
            yield replace(row, phases=found.seconds, kernels=f"{found.kernels} compiled")

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table of all cases."""
        lines = cells.lines_of(rows, OURS, NATIVE)
        columns = [cells.CASE, cells.SIZES]
        columns += [cells.Column(f"{shown}, ms: {NATIVE} / {OURS}", _both(phase)) for phase, shown in SHOWN.items()]
        columns += [cells.Column("kernels", lambda line: line.some.kernels), cells.VERDICT]
        pairs = [(line.native, line.ours) for line in lines]
        right = [(native, ours) for native, ours in pairs if native and ours and native.seconds and ours.seconds]
        summary = []
        for phase, shown in SHOWN.items():
            both = [(native.phases.get(phase), ours.phases.get(phase)) for native, ours in right]
            ratios = [native / ours for native, ours in both if native and ours]
            if ratios:
                summary.append(f"{shown}: {NATIVE}/{OURS} {geomean(ratios):.2f}, worst {min(ratios):.2f}")
        return [cells.table("Programs whose lengths vary", lines, columns, summary)]

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """None: a row has several times."""
        return []


def _both(phase: str) -> Callable[[cells.Line], str]:
    def cell(line: cells.Line) -> str:
        seconds = [row.phases.get(phase) if row is not None else None for row in (line.native, line.ours)]
        return " / ".join("–" if each is None else f"{each * 1e3:.1f}" for each in seconds)

    return cell
