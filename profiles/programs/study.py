"""Programs in steps: eager, compiled by torch, and compiled by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from einops_fast.profiles.frameworks import Framework, load
from einops_fast.profiles.processes import Child, Job, begun, empty_caches
from einops_fast.profiles.programs.cases import FAMILIES, Found
from einops_fast.profiles.reporting.cells import AFTER, BEFORE, lines_of, side_by_side, table, times
from einops_fast.profiles.reporting.records import Ceiling, Note, Options, Record, Row
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import FULL, Effort, Timing
from einops_fast.profiles.ways import Way

__all__ = ["ProgramsStudy"]

LONGEST = 300.0  # Seconds until a program must have made its first steps
ALLOWED = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}
"""How far the losses of the first steps may be from those of the eager program, relative to them."""


def _unmade(task: Task) -> Way:
    raise NotImplementedError("programs run in processes of their own")


class ProgramsStudy(Study):
    """A row per case and way, whose time is that of a step; its phases tell of the first ones."""

    about = "whole programs, unmodified: the first step and the later ones, peak memory, the same losses"
    families = FAMILIES
    makers: Mapping[str, Callable[[Task], Way]] = dict.fromkeys(
        ("eager", "compile", "ours", "optimize", "attention()", "max-autotune", "optimize+compile"), _unmade
    )
    native = "eager"
    peers = ("compile", "max-autotune", "optimize", "optimize+compile", "attention()")
    unrivalled = ("optimize", "optimize+compile", "attention()")
    on_cpu = ("eager", "compile", "ours")
    guests = ("optimize", "attention()", "max-autotune", "optimize+compile")
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}
    drawn = False

    def offered(self, framework: Framework, options: Options) -> tuple[tuple[str, ...], list[Record]]:
        names, told = super().offered(framework, options)
        note = "All ways of a program compiled side by side, in processes with empty caches; they were timed in turns."
        return names, [Note(note), *told]

    def rows(self, task: Task, effort: Effort, ceilings: Ceiling) -> Iterator[Row]:
        """A row for each way: all compile side by side, one at a time is timed."""
        framework, case = task.framework, task.case
        names = [name for name in task.names if name != "attention()" or case.model == "two_einsums"]
        running: dict[str, Child] = {}
        with ExitStack() as stack:
            for name in names:
                caches = stack.enter_context(empty_caches())
                job = Job(case.name, name, task.dtype, task.backward, framework.device, framework.threads)
                running[name] = stack.enter_context(begun(self.name, job, caches, LONGEST))
            for process in running.values():
                process.ready()
            found = {name: _answer(process) for name, process in running.items()}
        eager = found.get(self.native)
        timings = {name: _judged(name, each, eager, ALLOWED[task.dtype]) for name, each in found.items()}
        ruled_out = (self.ours, *self.unrivalled)
        rivals = {name: each.seconds for name, each in timings.items() if each.seconds and name not in ruled_out}
        best = min(rivals, key=lambda name: rivals[name], default="")
        for name, timing in timings.items():
            others: dict[str, Any] = {"backward": task.backward, "guest": name in self.guests}
            each = found[name]
            if isinstance(each, Found):
                phases = {"first": each.first, "passed": each.passed, "kernels": each.kernels}
                others |= {"phases": phases, "peak_bytes": each.peak or None}
                if name == self.ours:
                    others |= {"kernels": f"{each.fused} fused"}
                    if best:
                        others |= {"best": best, "to_best": each.step / rivals[best]}
            yield Row.of(framework.name, case, task.dtype, timing, **others)

    def do(self, job: Job) -> Iterator[Found]:
        from einops_fast.profiles.programs.program import measured

        yield from measured(job, load("torch", job.device, job.threads))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table of all cases."""
        lines = lines_of(rows, self.native)
        ways = [name for name in self.makers if any(name in line.ways for line in lines)]
        columns = dict(BEFORE)
        columns["step, ms: " + " / ".join(ways)] = side_by_side(ways, lambda row: times(1e3, row.seconds), ".4g")
        columns["first step, s: " + " / ".join(ways)] = side_by_side(ways, lambda row: row.phases.get("first"), ".4g")
        columns["peak, GB: " + " / ".join(ways)] = side_by_side(ways, lambda row: times(1e-9, row.peak_bytes), ".4g")
        columns |= {"fused": AFTER["kernels of ours"], "check": AFTER["check"]}
        ratios = [line.ours.to_best for line in lines if line.ours.to_best]
        told = "ours / the best of eager and compiled: {:.2f}, worst {:.2f}"
        summary = [told.format(geomean(ratios), max(ratios))] if ratios else []
        return [table("Whole programs", lines, columns, *summary)]


def _answer(process: Child) -> Found | str:
    """Return what a process has found, or why it has failed."""
    try:
        return Found(**process.answer())
    except RuntimeError as error:
        return str(error)


def _judged(name: str, found: Found | str, eager: Found | str | None, allowed: float) -> Timing:
    """Return what a way took, if the losses of its first steps are those of the eager program."""
    if isinstance(found, str):
        return Timing(name, failure=found.strip().splitlines()[-1], details=found)
    if not isinstance(eager, Found):
        return Timing(name, found.step, found.spread, host=found.host)
    pairs = zip(found.losses, eager.losses, strict=True)
    error = max(abs(one - other) / max(abs(other), 1e-6) for one, other in pairs)
    wrong = "" if error <= allowed else f"wrong: losses differ by {error:.1%}"
    return Timing(
        name, None if wrong else found.step, found.spread, eager.step / found.step, error, wrong, host=found.host
    )
