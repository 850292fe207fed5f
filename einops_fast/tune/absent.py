"""Compile for a GPU that isn't here what calls would begin on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from einops_fast.attention.attend import plan_of
from einops_fast.backends import get_backend
from einops_fast.backends.absent_gpu import AbsentGpu, aiming
from einops_fast.backends.torch.attention.implementations.triton import Triton
from einops_fast.backends.torch.beginning import differentiate
from einops_fast.backends.triton.contraction.choice import Choice, StepProblem
from einops_fast.backends.triton.launching.rehearsing import Rehearsed, Source, aimed_at, compile_elsewhere, rehearsing
from einops_fast.errors import OperandError
from einops_fast.observing.calls import Called
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused
from einops_fast.runtime import background
from einops_fast.runtime.tuning import ANY_SIZE, autotune
from einops_fast.tune.again import numbers_like, optimizer_of, precision_of, request_of, run_of, subscripts_of
from einops_fast.tune.recorded import in_words


def tune_absent(
    calls: Sequence[Called], gpu: AbsentGpu, told: Callable[[str, int, int], None]
) -> list[tuple[Called, str]]:
    """Compile what calls would launch; return those that failed, and why."""
    background.take_all_processors()
    failed: dict[Called, str] = {}
    pieces: dict[Future[Any], Called] = {}
    submitted: set[Source] = set()
    with at_absent(gpu):
        for done, call in enumerate(calls, 1):
            try:
                for launches in launches_of(call):
                    new = [each for each in launches if each.source not in submitted]
                    submitted |= {each.source for each in new}
                    pieces[compile_elsewhere(new)] = call
            except Exception as error:  # of a version that took other arguments, say
                failed[call] = in_words(error)
            told("planned", done, len(calls))
        works: set[Called] = set()
        for done, piece in enumerate(as_completed(pieces), 1):
            told("compiled", done, len(pieces))
            call, reason = pieces[piece], piece.exception()
            if reason is None:
                works.add(call)
            else:
                failed.setdefault(call, in_words(reason))
    # Of several ways, some may have tiles that are too large.
    return [(call, why) for call, why in failed.items() if call not in works]


@contextmanager
def at_absent(gpu: AbsentGpu) -> Iterator[None]:
    """Plan for a GPU that isn't here, and compile for it, in this block."""
    with aiming(gpu), aimed_at(gpu.arch), autotune("auto"):
        yield


def launches_of(call: Called) -> Iterator[Sequence[Rehearsed]]:
    """List the kernels of each way to compute a call on a GPU, which has to be aimed at."""
    with torch.set_grad_enabled(call.direction == "both"):
        if call.kind == "einsum":
            yield from _of_contraction(call)
        elif call.kind == "attention":
            yield _of_attention(call)
        else:
            arrays = [None if each is None else numbers_like(each, "meta") for each in call.arrays]
            modes: tuple[Any, ...] = ("auto", ANY_SIZE)
            for mode in modes:
                with autotune(mode), rehearsing() as launches:
                    differentiate(run_of(call, arrays)(*arrays), arrays)
                yield launches


def _of_attention(call: Called) -> Sequence[Rehearsed]:
    arrays = [None if each is None else numbers_like(each, "meta") for each in call.arrays]
    plan = plan_of(request_of(call), dict(zip(call.given["names"], arrays, strict=True)), "torch")
    plan = replace(plan, spec=replace(plan.spec, device="cuda:0"))
    lacking = Triton().lacks(plan.spec)
    if lacking is not None:
        raise OperandError(lacking)
    with rehearsing() as launches:
        differentiate(Triton().prepared(plan, arrays).run(*arrays), arrays)
    return launches


def _of_contraction(call: Called) -> Iterator[Sequence[Rehearsed]]:
    """List the kernels of each candidate for each step."""
    backend, given, subscripts = get_backend("torch"), call.given, subscripts_of(call)
    operands = [numbers_like(each, "meta") for each in call.arrays if each is not None]
    memory = "".join([subscripts.output[at] for at in given["memory"]])
    target = backend.target(operands).replace(in_order=given["order"] == "C", memory=memory)
    dtype = None if given["dtype"] is None else getattr(torch, given["dtype"])
    numerics = backend.numerics_of(subscripts, operands, dtype, "safe")
    plan = make_plan(subscripts, [backend.inspect(each) for each in operands], target, numerics, optimizer_of(call))
    likeness = torch.empty(0, dtype=getattr(torch, numerics.compute), device="meta")
    for step in plan.steps:
        if not isinstance(step, Fused):
            continue
        with precision_of(call):
            run = backend.emit(step)
        if isinstance(run, Choice):  # it is none if it is small
            problem = StepProblem(run, [likeness] * len(step.reads), 0, True)
            any_size = problem.for_any()
            for way in (*map(problem.of_name, problem.near()), None if any_size is None else any_size[1]):
                launches = () if way is None else way.launches(True)
                if launches:
                    yield launches
