"""Programs in steps: eager, compiled by torch, and compiled by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, Any

import einops_fast
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found, JobStudy, apart
from einops_fast.profiles.processes import Job
from einops_fast.profiles.programs.cases import FAMILIES, ProgramCase
from einops_fast.profiles.reporting.cells import Line, times
from einops_fast.profiles.reporting.records import Ceiling, Row
from einops_fast.profiles.reporting.report import geomean
from einops_fast.profiles.study import Maker, Task
from einops_fast.profiles.timing.measure import Effort, Timing

if TYPE_CHECKING:
    from einops_fast.profiles.programs.models import Program

# How far the losses of the first steps may be from those of the eager program, relative to them.
ALLOWED = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}
BY_NAME = "attention()"  # The way of the program that is one call of attention
GRAPHS = ("compile+graphs", "ours+graphs")  # Compared with each other
FIRST_STEPS = 4  # Whose losses are compared
ROUNDS, SECONDS = 7, 0.4  # Of as many steps as take so long


def _optimized(program: Program) -> Any:
    from einops_fast.nn import optimize

    optimize(program.module)
    return program.module


# How each way has a program run.
COMPILERS: dict[str, Callable[[Any, Program], Any]] = {
    "eager": lambda torch, program: program.module,
    "compile": lambda torch, program: torch.compile(program.module),
    "ours": lambda torch, program: einops_fast.compile(program.module),
    "max-autotune": lambda torch, program: torch.compile(program.module, mode="max-autotune-no-cudagraphs"),
    "optimize": lambda torch, program: _optimized(program),
    "optimize+compile": lambda torch, program: torch.compile(_optimized(program)),
    "attention()": lambda torch, program: program.named,
    # With steps captured in CUDA graphs, where the host's time is no part of a step's.
    "compile+graphs": lambda torch, program: torch.compile(program.module, mode="reduce-overhead"),
    "ours+graphs": lambda torch, program: einops_fast.compile(program.module, mode="reduce-overhead"),
}


class Step:
    """A step of a program: the next batch, both ways where it is trained, and an update of its weights."""

    def __init__(self, program: Program, call: Callable[..., Any], *, trained: bool) -> None:
        import torch

        self.torch, self.program, self.call, self.trained, self.at = torch, program, call, trained, 0
        weights = [each for each in program.module.parameters() if each.requires_grad]
        fused = bool(weights) and weights[0].is_cuda
        self.update = torch.optim.AdamW(weights, lr=1e-4, fused=fused) if trained and weights else None

    def __call__(self) -> Any:
        batch = self.program.batches[self.at % len(self.program.batches)]
        self.at += 1
        with self.torch.set_grad_enabled(self.trained):
            made = self.call(*batch)
        if not self.trained:
            return made
        made.backward(self.program.cotangent)
        if self.update is None:
            for each in batch:
                each.grad = None
        else:
            self.update.step()
            self.update.zero_grad()
        return made.detach()


class ProgramsStudy(JobStudy):
    """A row per case and way, whose time is that of a step; its phases tell of the first ones."""

    about = "whole programs, unmodified: the first step and the later ones, peak memory, the same losses"
    note = "All ways of a program compiled side by side, in processes with empty caches; they were timed in turns."
    families = FAMILIES
    makers: Mapping[str, Maker] = dict.fromkeys(COMPILERS, apart)
    native = "eager"
    peers = tuple(name for name in COMPILERS if name != "ours")
    unrivalled = ("optimize", "optimize+compile", BY_NAME, *GRAPHS)
    on_cpu = ("eager", "compile", "ours")
    guests = ("max-autotune", *unrivalled)
    title, kernels, digits = "Whole programs", "fused", ".4g"
    shown: Mapping[str, Callable[[Row], float | None]] = {
        "step, ms": lambda row: times(1e3, row.seconds),
        "first step, s": lambda row: row.phases.get("first"),
        "peak, GB": lambda row: times(1e-9, row.peak_bytes),
    }
    together = True
    longest = 300.0

    def program(self, job: Job, case: ProgramCase, framework: Any) -> Iterator[Found]:
        """Make the first steps, whose compilers begin with nothing; then measure the next ones."""
        # Imports torch, which the process that reports needn't.
        from einops_fast.profiles.programs.pretrained import MODELS

        torch, on_gpu = framework.torch, framework.device == "gpu"
        torch.manual_seed(0)
        program = MODELS[case.model](case.extents, "cuda" if on_gpu else "cpu", getattr(torch, job.dtype))
        batches = len(program.batches)
        step = Step(program, COMPILERS[job.what](torch, program), trained=case.trained)
        with einops_fast.fusions() if job.what == "ours" else nullcontext() as log:
            framework.synchronize()
            start = perf_counter()
            losses = [_told(step())]
            phases = {"first": perf_counter() - start}
            losses += [_told(step()) for _ in range(max(FIRST_STEPS, batches) - 1)]
            phases["passed"] = perf_counter() - start
            einops_fast.wait_for_kernels()
            phases["kernels"] = perf_counter() - start
            for _ in range(2 * batches):
                step()
            framework.synchronize()
        found = Found(phases, f"{len(log.fused)} fused" if log else "", losses=losses)
        yield found
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        start = perf_counter()
        step()
        framework.synchronize()
        count = max(1, round(SECONDS / (perf_counter() - start) / batches)) * batches
        hosts, steps = zip(*[_round(step, count, framework) for _ in range(ROUNDS)], strict=True)
        lower, middle, upper = quantiles(steps, n=4)
        peak = torch.cuda.max_memory_allocated() if on_gpu else None
        yield replace(found, seconds=middle, spread=upper - lower, host=median(hosts), peak_bytes=peak)

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
        captured = [[line.ways[name].seconds for name in GRAPHS] for line in lines if {*GRAPHS} <= {*line.ways}]
        if ratios := [found for theirs, ours in captured if (found := times(1, ours, theirs))]:
            yield f"the same in CUDA graphs, ours / compiled: {geomean(ratios):.2f}, worst {max(ratios):.2f}"


def _round(step: Step, times: int, framework: Framework) -> tuple[float, float]:
    """Return seconds of a step: until the host is through, and until the device is."""
    start = perf_counter()
    for _ in range(times):
        step()
    queued = perf_counter() - start
    framework.synchronize()
    return queued / times, (perf_counter() - start) / times


def _told(made: Any) -> float:
    return float(made.detach().float().square().mean().sqrt())
