"""Programs in steps: eager, compiled by torch, and compiled by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found, JobStudy, apart
from einops_fast.profiles.processes import Job
from einops_fast.profiles.programs.cases import FAMILIES
from einops_fast.profiles.reporting.cells import Line, times
from einops_fast.profiles.reporting.records import Ceiling, Row
from einops_fast.profiles.reporting.report import geomean
from einops_fast.profiles.study import Maker, Task
from einops_fast.profiles.timing.measure import Effort, Timing

# How far the losses of the first steps may be from those of the eager program, relative to them.
ALLOWED = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}
BY_NAME = "attention()"  # The way of the program that is one call of attention


class ProgramsStudy(JobStudy):
    """A row per case and way, whose time is that of a step; its phases tell of the first ones."""

    about = "whole programs, unmodified: the first step and the later ones, peak memory, the same losses"
    note = "All ways of a program compiled side by side, in processes with empty caches; they were timed in turns."
    families = FAMILIES
    makers: Mapping[str, Maker] = dict.fromkeys(
        ("eager", "compile", "ours", "optimize", BY_NAME, "max-autotune", "optimize+compile"), apart
    )
    native = "eager"
    peers = ("eager", "compile", "max-autotune", "optimize", "optimize+compile", BY_NAME)
    unrivalled = ("optimize", "optimize+compile", BY_NAME)
    on_cpu = ("eager", "compile", "ours")
    guests = ("optimize", BY_NAME, "max-autotune", "optimize+compile")
    title, kernels, digits = "Whole programs", "fused", ".4g"
    shown: Mapping[str, Callable[[Row], float | None]] = {
        "step, ms": lambda row: times(1e3, row.seconds),
        "first step, s": lambda row: row.phases.get("first"),
        "peak, GB": lambda row: times(1e-9, row.peak_bytes),
    }
    together = True
    longest = 300.0

    def program(self, job: Job, case: Any, framework: Framework) -> Iterator[Found]:
        # Imports torch, which the process that reports needn't.
        from einops_fast.profiles.programs.program import measured

        return measured(job, case, framework)

    def timed(self, task: Task, effort: Effort, ceilings: Ceiling) -> list[Timing]:
        if task.case.model != "two_einsums":
            task = replace(task, names=tuple(name for name in task.names if name != BY_NAME))
        return super().timed(task, effort, ceilings)

    def judged(self, task: Task, found: Found, native: Found | str | None) -> tuple[float, str]:
        if not isinstance(native, Found):
            return 0.0, ""
        pairs = zip(found.losses, native.losses, strict=True)
        error = max(abs(one - other) / max(abs(other), 1e-6) for one, other in pairs)
        return error, "" if error <= ALLOWED[task.dtype] else f"wrong: losses differ by {error:.1%}"

    def summed_up(self, lines: Sequence[Line]) -> Iterator[str]:
        if ratios := [line.ours.to_best for line in lines if line.ours.to_best]:
            yield f"ours / the best of eager and compiled: {geomean(ratios):.2f}, worst {max(ratios):.2f}"
