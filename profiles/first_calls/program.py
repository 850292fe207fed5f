"""One program whose lengths vary: what its passes take, and once more after it has waited for its kernels."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from einops_fast import attention, fast_einsum, ops, wait_for_kernels
from einops_fast.profiles.first_calls.cases import LengthsCase
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found
from einops_fast.profiles.processes import Job
from einops_fast.profiles.timing.accuracy import EPSILON
from einops_fast.profiles.ways import Call, Inputs, Way, answer, bind, in_float64

PASSES, QUICK_PASSES = 10, 3  # Passes before kernels are waited for
STEADY = 3  # Passes whose median is the steady one


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


# The process


def measured(job: Job, case: LengthsCase, framework: Any) -> Iterator[Found]:
    """Make the passes of a job, whose first calls they are; yield what is found before the wait, too."""
    native, ours = FUNCTIONS[case.operation](case, framework.torch.nn.functional)
    ways = {"native": Way("native", native, framework), "ours": Way("ours", ours, framework)}
    calls = [bind(ways[job.what], given) for given in batches(case, framework, job.dtype, job.backward, case.lengths)]
    _wake(framework, job.dtype)
    passes, slowest = zip(
        *[_pass(calls, case.calls, framework) for _ in range(QUICK_PASSES if job.quick else PASSES)], strict=True
    )
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


def _wake(framework: Framework, dtype: str) -> None:
    """Have the framework's library loaded, which isn't what the first call is about."""
    [matrix] = framework.normal([(64, 64)], dtype, 0)
    framework.track(matrix)
    framework.gradient(lambda: matrix @ matrix, [matrix], [matrix.detach()])
    framework.synchronize()


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
    error, allowed = 0.0, 4 * EPSILON[job.dtype]
    lengths = [min(case.lengths), max(case.lengths)]
    for given in batches(case, framework, job.dtype, job.backward, lengths):
        expected = _all_of(ways["native"], in_float64(given), "float64")
        error = max(error, _error(_all_of(ways[job.what], given, job.dtype), expected))
        allowed = max(allowed, 3 * _error(_all_of(ways["native"], given, job.dtype), expected))
    return error, allowed


def _all_of(way: Way, given: Inputs, dtype: str) -> list[Any]:
    results, gradients = answer(way, given, (), dtype)
    return [each.detach().double() for each in (*results, *gradients)]


def _error(found: Sequence[Any], expected: Sequence[Any]) -> float:
    pairs = zip(found, expected, strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs)
