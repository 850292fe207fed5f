"""Programs that have just begun: ours and torch's own functions over many lengths, with empty caches."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from einops_fast import attention, fast_einsum, ops, wait_for_kernels
from einops_fast.profiles.first_calls.cases import FAMILIES, LengthsCase
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found, JobStudy, apart
from einops_fast.profiles.processes import Job
from einops_fast.profiles.reporting.cells import Line, times
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean
from einops_fast.profiles.study import Maker
from einops_fast.profiles.timing.accuracy import EPSILON
from einops_fast.profiles.ways import Call, Inputs, Way, answer, bind, in_float64

PASSES, QUICK_PASSES = 10, 3  # Passes before kernels are waited for
STEADY = 3  # Passes whose median is the steady one

# What tables call the times of a program.
SHOWN = {
    "first": "first pass",
    "slowest": "slowest call",
    "second": "second pass",
    "last": "last pass",
    "steady": "with kernels",
}


Pair = tuple[Callable[..., Any], Callable[..., Any]]  # The native function of a case, and ours


def _einsum(case: LengthsCase, functional: Any) -> Pair:
    return partial(sys.modules["torch"].einsum, case.equation), partial(fast_einsum, case.equation)


def _attention(case: LengthsCase, functional: Any) -> Pair:
    causal = case.operation == "causal attention"
    ours = partial(attention, "b h i d, b h j d, b h j e -> b h i e", causal=causal)
    return partial(functional.scaled_dot_product_attention, is_causal=causal), ours


FUNCTIONS: dict[str, Callable[[LengthsCase, Any], Pair]] = {
    "einsum": _einsum,
    "attention": _attention,
    "causal attention": _attention,
    "layer_norm": lambda case, functional: (
        lambda x, weight, bias: functional.layer_norm(x, weight.shape, weight, bias),
        lambda x, weight, bias: ops.layer_norm(x, weight=weight, bias=bias),
    ),
    "softmax": lambda case, functional: (partial(functional.softmax, dim=-1), partial(ops.softmax, dim=-1)),
    "rms_norm + linear": lambda case, functional: (
        lambda x, weight, matrix: functional.linear(functional.rms_norm(x, weight.shape, weight), matrix),
        lambda x, weight, matrix: ops.linear(ops.rms_norm(x, weight=weight), matrix),
    ),
}


def batches(
    case: LengthsCase, framework: Framework, dtype: str, backward: bool, lengths: Sequence[int]
) -> Iterator[Inputs]:
    """Yield the operands of a pass, all made before it as a loader of data would: one batch for each length."""
    weights = framework.normal(case.weights, dtype, 0)
    for seed, length in enumerate(lengths, 1):
        shapes, result = case.at(length)
        *operands, cotangent = framework.normal([*shapes, result], dtype, seed)
        if backward:
            for each in (*operands, *weights):
                framework.track(each)
        yield Inputs((*operands, *weights), (cotangent,) if backward else (), backward=backward)


def _milliseconds(phase: str, row: Row) -> float | None:
    return times(1e3, row.phases.get(phase))


class FirstCallsStudy(JobStudy):
    """A row per dtype, case, direction and way, whose time is that of the first pass."""

    about = "programs whose lengths vary: the first calls, the next ones, and those that have their kernels"
    note = "These programs ran in the mode 'auto', each in a process with empty caches."
    families = FAMILIES
    makers: Mapping[str, Maker] = dict.fromkeys(("native", "ours"), apart)
    title, kernels, digits = "Programs whose lengths vary", "kernels", ".1f"
    shown: Mapping[str, Callable[[Row], float | None]] = {
        f"{told}, ms": partial(_milliseconds, phase) for phase, told in SHOWN.items()
    }
    # Afterwards the pass with kernels is left out: there may be hundreds to compile.
    longest = 150.0

    def program(self, job: Job, case: LengthsCase, framework: Any) -> Iterator[Found]:
        """Make the passes of a job, whose first calls they are; then wait for its kernels, and make some more."""
        native, ours = FUNCTIONS[case.operation](case, framework.torch.nn.functional)
        ways = {"native": Way("native", native, framework), "ours": Way("ours", ours, framework)}
        made = batches(case, framework, job.dtype, job.backward, case.lengths)
        calls = [bind(ways[job.what], given) for given in made]
        # What the first call is about isn't that the framework's library is loaded.
        [matrix] = framework.normal([(64, 64)], job.dtype, 0)
        framework.track(matrix)
        framework.gradient(lambda: matrix @ matrix, [matrix], [matrix.detach()])
        framework.synchronize()
        count = QUICK_PASSES if job.quick else PASSES
        passes, slowest = zip(*[_pass(calls, case.calls, framework) for _ in range(count)], strict=True)
        kernels = len(list(Path(os.environ.get("TRITON_CACHE_DIR", os.devnull)).rglob("*.cubin")))
        phases = {"first": passes[0], "second": passes[1], "last": passes[-1], "slowest": max(slowest)}
        error, allowed = _errors(job, case, framework, ways)
        found = Found(phases, f"{kernels} compiled", passes[0], error=error, allowed=allowed)
        yield found
        if job.quick:  # there may be hundreds to compile
            return
        wait_for_kernels()
        _pass(calls, case.calls, framework)
        steady = median(_pass(calls, case.calls, framework)[0] for _ in range(STEADY))
        yield replace(found, phases={**phases, "steady": steady})

    def summed_up(self, lines: Sequence[Line]) -> Iterator[str]:
        for shown, value in self.shown.items():
            both = [(value(line.native), value(line.ours)) for line in lines
                    if line.native and line.native.seconds and line.ours.seconds]  # fmt: skip
            if ratios := [native / ours for native, ours in both if native and ours]:
                yield f"{shown.removesuffix(', ms')}: native/ours {geomean(ratios):.2f}, worst {min(ratios):.2f}"


def _pass(calls: Sequence[Call], times: int, framework: Framework) -> tuple[float, float]:
    """Return the seconds of a pass, and those of its slowest call as the host has it."""
    slowest = 0.0
    start = end = perf_counter()
    for call in calls:
        for _ in range(times):
            begin = end
            call()
            end = perf_counter()
            slowest = max(slowest, end - begin)
    framework.synchronize()
    return perf_counter() - start, slowest


def _errors(job: Job, case: LengthsCase, framework: Framework, ways: dict[str, Way]) -> tuple[float, float]:
    """Return the largest error of the shortest and the longest batch, and how large it may be."""

    def results(way: Way, given: Inputs, dtype: str) -> list[Any]:
        values, gradients = answer(way, given, (), dtype)
        return [each.detach().double() for each in (*values, *gradients)]

    error, allowed = 0.0, 4 * EPSILON[job.dtype]
    lengths = [min(case.lengths), max(case.lengths)]
    for given in batches(case, framework, job.dtype, job.backward, lengths):
        expected = results(ways["native"], in_float64(given), "float64")
        found, native = (
            max(float((one - right).abs().max() / right.abs().max().clamp_min(1e-30))
                for one, right in zip(results(way, given, job.dtype), expected, strict=True))
            for way in (ways[job.what], ways["native"])
        )  # fmt: skip
        error, allowed = max(error, found), max(allowed, 3 * native)
    return error, allowed
