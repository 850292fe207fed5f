"""The operators of ``einops_fast.ops``: ours against torch's own, torch.compile, Liger-Kernel and QuACK."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from einops_fast.profiles.cases import ITEM_SIZES, select
from einops_fast.profiles.contraction.peers import Compiler
from einops_fast.profiles.frameworks import CACHE_FLUSH_BYTES, Framework, Unavailable
from einops_fast.profiles.ops.ahead import compile_ahead
from einops_fast.profiles.ops.bound import Bound, OpInputs, OpWay
from einops_fast.profiles.ops.cases import CPU_NAMES, FAMILIES, HALF, MODELS, OpCase, scaled
from einops_fast.profiles.ops.check import (
    allowed_error,
    dropout_wrong,
    dropped_share,
    errors,
    model_errors,
    relative_error,
)
from einops_fast.profiles.ops.models import model_reference
from einops_fast.profiles.ops.tables import tables
from einops_fast.profiles.ops.ways import LINEAR, NATIVE, OURS, PACKED, WAYS, libraries, make_ways, op_inputs
from einops_fast.profiles.profilers.traces import made, write_trace
from einops_fast.profiles.reporting.records import Ceiling, Extent, Note, Options, Record, Row, is_own, skipped
from einops_fast.profiles.timing.ceilings import Ceilings, Work, measure_ceilings
from einops_fast.profiles.timing.limits import FIRST_CALL, limited
from einops_fast.profiles.timing.measure import QUICK, Effort, Timing, fastest, paired_ratio, time_checked, too_wrong
from einops_fast.profiles.timing.memory import peak_memory
from einops_fast.profiles.timing.watch import host_seconds
from einops_fast.profiles.ways import Call
from einops_fast.runtime.budget import forget_spending

__all__ = ["about", "families", "frameworks", "measure", "own_cases", "peers", "tables"]

about = "fused layers against torch's own, torch.compile, Liger-Kernel and QuACK"

frameworks: tuple[str, ...] = ("torch",)
families: dict[str, tuple[OpCase, ...]] = FAMILIES
own_cases = False
peers: tuple[str, ...] = tuple(name for name in WAYS if name != OURS)

DTYPES = {"cpu": ("float32",), "gpu": ("bfloat16", "float32")}

ON_CPU = (OURS, NATIVE, PACKED, LINEAR)

EFFORTS = {
    "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
    "gpu": Effort(rounds=11, seconds=0.2, warm_up=0.002, lost=1.5, settling=0.1),
}

COMPILING = 90.0
"""Seconds that torch.compile may take for all cases together."""

MOST_FLUSHES = 256
"""How often the cache is emptied before a call at most."""


@dataclass(frozen=True)
class _Job:
    """One case in one dtype, and what all its ways share."""

    framework: Any
    case: OpCase
    dtype: str
    ways: tuple[OpWay, ...]
    ceilings: Ceilings

    def inputs(self, seed: int) -> OpInputs:
        return op_inputs(self.case, self.framework, self.dtype, seed)

    def row(self, timing: Timing, backward: bool) -> Row:
        moved = self.case.elements(backward) * ITEM_SIZES[self.dtype]
        work = Work.of(moved, self.case.flops(backward), self.ceilings)
        row = Row.of(self.framework.name, self.case, self.dtype, timing, work, backward=backward)
        return replace(row, guest=not is_own(timing.name))


@dataclass(frozen=True)
class _Checked:
    """A way with what came out of its checks, forward and in both directions."""

    way: OpWay
    timings: tuple[Timing, Timing]
    unavailable: bool = False


def measure(framework: Framework, options: Options) -> Iterator[Record]:
    """A row per dtype, case, direction and way, with its host time and the most memory that it holds."""
    if framework.name != "torch":
        yield skipped(framework.name, OURS, "the operators are measured on torch's tensors")
        return
    on_gpu = framework.device == "gpu"
    effort = QUICK if options.quick else EFFORTS[framework.device]
    cases = _cases(framework, options)
    dtypes = options.dtypes or DTYPES[framework.device]
    names = tuple(name for name in WAYS if name == OURS or name in (options.peers or peers))
    if not on_gpu:
        names = tuple(name for name in names if name in ON_CPU or name in options.peers)
    directions = (False,) if options.forward_only else (False, True)
    ceilings: dict[str, Ceilings] = {}
    for dtype in dtypes:
        try:
            ceilings[dtype] = measure_ceilings(framework, dtype, effort)
        except Unavailable as missing:
            yield skipped(framework.name, OURS, str(missing), dtype=dtype)
            continue
        yield Ceiling(framework.name, dtype, ceilings[dtype].bandwidth, ceilings[dtype].flops)
    # Who asks for a dtype gets it, and on a CPU all is small.
    every = bool(options.dtypes) or not on_gpu
    wanted = [(case, dtype) for case in cases for dtype in ceilings if every or dtype in HALF or not case.halves]
    tasks = {
        (case, dtype): [way for way in directions if options.left(framework.name, dtype, case, way)]
        for case, dtype in wanted
    }
    tasks = {task: left for task, left in tasks.items() if left}
    yield Extent(sum(map(len, tasks.values())))
    yield from libraries(framework, names, cases)
    if on_gpu:
        yield from map(Note, compile_ahead(list(tasks), names, framework.threads))
    compiler = Compiler(_torch(framework), altogether=COMPILING)
    for (named, dtype), left in tasks.items():
        _forget(framework)
        case = scaled(named, framework.device, dtype)
        ways = tuple(make_ways(case, framework, names, compiler, dtype))
        job = _Job(framework, case, dtype, ways, ceilings[dtype])
        try:
            checked = _check(job)
        except Exception as error:
            yield from (_failed(job, error, backward) for backward in left)
            continue
        for backward in left:
            try:
                yield from _rows(job, checked, backward, effort, options.trace)
            except Exception as error:  # a case that doesn't fit the machine's memory, say, isn't the end
                yield _failed(job, error, backward)


def _failed(job: _Job, error: Exception, backward: bool) -> Row:
    """The row of ours where nothing could be measured; nobody's fault if what it needs isn't here."""
    missing = isinstance(error, Unavailable)
    row = job.row(Timing(OURS, failure=str(error)) if missing else Timing.failed(OURS, error), backward)
    return replace(row, guest=missing)


def _torch(framework: Any) -> Any:
    return framework.torch


def _forget(framework: Any) -> None:
    """Give memory back, which the next case may need in larger pieces, and let it choose as if it were the first."""
    forget_spending()
    if framework.device == "gpu":
        framework.torch.cuda.empty_cache()


def _cases(framework: Framework, options: Options) -> Sequence[OpCase]:
    found = select(FAMILIES[options.cases], options.only)
    if framework.device == "gpu" or options.only or options.cases != "public":
        return found
    # Two cores take minutes for all; whoever asks for others by name gets them.
    return [case for case in found if case.name in CPU_NAMES]


def _rows(job: _Job, checked: Sequence[_Checked], backward: bool, effort: Effort, trace: str) -> Iterator[Record]:
    # Not the inputs of the check: nothing remembered from there can help.
    given = job.inputs(1)
    right = [each for each in checked if not each.timings[backward].failure]
    calls = [_call(job, each.way.bind(given, True), given, backward) for each in right]
    torch = job.framework.torch
    around = torch.enable_grad if backward else torch.no_grad
    hosts = [_host(job, call, around) for call in calls]
    clock = job.framework.clock(flushes=_flushes(job, hosts))
    timings = time_checked([each.timings[backward] for each in right], calls, clock, [around] * len(calls), effort)
    native = next((timing for timing in timings if timing.name == NATIVE), None)
    best = fastest(timing for timing in timings if not is_own(timing.name) and timing.name != LINEAR)
    for call, timing, host in zip(calls, timings, hosts, strict=True):
        # Without its activation it isn't the same.
        speedup = paired_ratio(native, timing) if native and timing.name != LINEAR else None
        row = replace(job.row(replace(timing, speedup=speedup), backward), host=host)
        if best is not None and is_own(timing.name):
            row = replace(row, best=best.name, to_best=paired_ratio(timing, best))
        traced: list[Note] = []
        with around():
            with suppress(Exception):  # who can't tell was measured all the same
                row = replace(row, peak_bytes=peak_memory(job.framework, call))
            if trace:
                traced += write_trace(trace, row, job.framework, made(call))
        yield row
        yield from traced
    for each in checked:
        if each.timings[backward].failure:
            row = job.row(each.timings[backward], backward)
            yield replace(row, guest=row.guest or each.unavailable)


def _host(job: _Job, call: Call, around: Callable[[], Any]) -> float | None:
    """Seconds of the host for a call, where that isn't the time itself."""
    if job.framework.device != "gpu":
        return None
    with around():
        return host_seconds(job.framework, call)


def _flushes(job: _Job, hosts: Sequence[float | None]) -> int:
    """How often the cache is to be emptied for the host to queue all of a call while that runs, and half as much."""
    wanted = 1.5 * max((host or 0.0 for host in hosts), default=0.0)
    return min(1 + ceil(wanted * job.ceilings.bandwidth / CACHE_FLUSH_BYTES), MOST_FLUSHES)


def _call(job: _Job, bound: Bound, given: OpInputs, backward: bool) -> Call:
    """Forward alone, or forward and backward."""
    if not backward:
        return bound.forward
    grad = job.framework.torch.autograd.grad

    def both() -> Any:
        return grad(bound.forward(), bound.leaves, given.cotangents or None)

    return both


def _check(job: _Job) -> list[_Checked]:
    """Whether each way is right, on inputs of its own: torch's functions first, whose errors are the measure."""
    given = job.inputs(0)
    expected = None
    if job.case.op in MODELS:
        expected = _answer(job, model_reference(job.case, job.framework, job.dtype), _exact(given))
    checked: list[_Checked] = []
    native: tuple[float, float] | None = None
    for way in sorted(job.ways, key=lambda way: way.name != NATIVE):
        try:
            with limited(FIRST_CALL, "the first call"):
                timings = _compared(job, way, given, expected, native)
        except Exception as failure:
            missing = isinstance(failure, Unavailable)
            failed = Timing(way.name, failure=str(failure)) if missing else Timing.failed(way.name, failure)
            checked.append(_Checked(way, (failed, failed), missing))
            continue
        if way.name == NATIVE and not timings[1].failure:
            native = timings[0].error or 0.0, timings[1].error or 0.0
        checked.append(_Checked(way, timings))
    order = [way.name for way in job.ways]
    return sorted(checked, key=lambda each: order.index(each.way.name))


Answer = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Results and gradients."""


def _answer(job: _Job, way: OpWay, given: OpInputs) -> Answer:
    """What one call gives; a module without dropout."""
    bound = way.bind(given, False)
    # What is right mustn't be left over from who came before.
    job.framework.spoil([tuple(each.shape) for each in (*given.cotangents, *given.operands)], job.dtype)
    results = _tuple(bound.forward())
    return results, job.framework.torch.autograd.grad(results, bound.leaves, given.cotangents or None)


def _exact(given: OpInputs) -> OpInputs:
    operands = tuple(each.detach().double().requires_grad_() for each in given.operands)
    return OpInputs(operands, given.target, tuple(each.double() for each in given.cotangents))


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _compared(
    job: _Job, way: OpWay, given: OpInputs, expected: Answer | None, native: tuple[float, float] | None
) -> tuple[Timing, Timing]:
    """What is wrong with results, with and without gradients, and with results and gradients together."""
    case = replace(job.case, activation="") if way.name == LINEAR else job.case
    results, gradients = _answer(job, way, given)
    with job.framework.torch.no_grad():
        alone = _tuple(way.bind(given, False).forward())
    if expected is not None:
        found = model_errors(results, gradients, *expected)
        alone_error, _ = model_errors(alone, gradients, *expected)
    else:
        found = errors(case, given, results, gradients)
        # With dropout each call drops others.
        alone_error = 0.0 if case.p else max(map(relative_error, alone, results))
    limits = [allowed_error(case, job.dtype, native[at] if native else None, gradient=bool(at)) for at in (False, True)]
    dropped = ""
    if case.p:
        if expected is None:
            dropped = dropped_share(case, *gradients[:2])
        else:
            bound = way.bind(given, True)
            with job.framework.torch.no_grad():
                first, second = (_tuple(bound.forward())[0] for _ in range(2))
            dropped = dropout_wrong(first, second, expected[0][0], linear=case.op.endswith("attention"))
    forward = too_wrong(max(found[0], alone_error), limits[0]) or dropped
    backward = forward or too_wrong(found[1], limits[1])
    return (
        Timing(way.name, error=max(found[0], alone_error), failure=forward),
        Timing(way.name, error=max(found), failure=backward),
    )
