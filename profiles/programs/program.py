"""One program, one way: what its first steps take, and then what its later ones do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from statistics import median, quantiles
from time import perf_counter
from typing import Any

import torch

import einops_fast
from einops_fast.nn import optimize
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found
from einops_fast.profiles.processes import Job
from einops_fast.profiles.programs.cases import ProgramCase
from einops_fast.profiles.programs.models import MODELS, Program

FIRST_STEPS = 4  # Whose losses are compared
ROUNDS, SECONDS = 7, 0.4  # Of as many steps as take so long


def _optimized(program: Program) -> Any:
    optimize(program.module)
    return program.module


# How each way has a program run.
COMPILERS: dict[str, Callable[[Program], Any]] = {
    "eager": lambda program: program.module,
    "compile": lambda program: torch.compile(program.module),
    "max-autotune": lambda program: torch.compile(program.module, mode="max-autotune-no-cudagraphs"),
    "ours": lambda program: einops_fast.compile(program.module),
    "optimize": _optimized,
    "optimize+compile": lambda program: torch.compile(_optimized(program)),
    "attention()": lambda program: program.named,
}


class Step:
    """A step of a program: the next batch, both ways where it is trained, and an update of its weights."""

    def __init__(self, program: Program, call: Callable[..., Any], *, trained: bool) -> None:
        self.program, self.call, self.trained, self.at = program, call, trained, 0
        weights = [each for each in program.module.parameters() if each.requires_grad]
        fused = bool(weights) and weights[0].is_cuda
        self.update = torch.optim.AdamW(weights, lr=1e-4, fused=fused) if trained and weights else None

    def __call__(self) -> Any:
        batch = self.program.batches[self.at % len(self.program.batches)]
        self.at += 1
        if not self.trained:
            with torch.no_grad():
                return self.call(*batch)
        made = self.call(*batch)
        made.backward(self.program.cotangent)
        if self.update is None:
            for each in batch:
                each.grad = None
        else:
            self.update.step()
            self.update.zero_grad()
        return made.detach()


def measured(job: Job, case: ProgramCase, framework: Framework) -> Iterator[Found]:
    """Make the first steps, whose compilers begin with nothing; then measure the next ones."""
    from einops_fast.profiles.programs import pretrained  # noqa: F401  adds models to the others

    on_gpu = framework.device == "gpu"
    torch.manual_seed(0)
    program = MODELS[case.model](case.extents, "cuda" if on_gpu else "cpu", getattr(torch, job.dtype))
    batches = len(program.batches)
    step = Step(program, COMPILERS[job.what](program), trained=case.trained)
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
    times = max(1, round(SECONDS / (perf_counter() - start) / batches)) * batches
    hosts, steps = zip(*[_round(step, times, framework) for _ in range(ROUNDS)], strict=True)
    lower, middle, upper = quantiles(steps, n=4)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    yield replace(found, seconds=middle, spread=upper - lower, host=median(hosts), peak_bytes=peak)


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
