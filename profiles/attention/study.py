"""Attention: ours, chosen automatically, against each implementation alone, torch's own call and plain einsum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from einops_fast.errors import OperandError
from einops_fast.profiles.attention.ahead import compile_ahead
from einops_fast.profiles.attention.cases import FAMILIES, AttentionCase, scaled
from einops_fast.profiles.attention.check import Extras, allowed_error, largest_error, reference
from einops_fast.profiles.attention.tables import tables
from einops_fast.profiles.attention.ways import (
    NAIVE,
    NATIVE,
    OURS,
    WAYS,
    attention_inputs,
    attention_ways,
    chosen_by_ours,
    extras,
)
from einops_fast.profiles.cases import ITEM_SIZES, select
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.profilers.traces import made, write_trace
from einops_fast.profiles.reporting.records import Ceiling, Extent, Note, Options, Record, Row, is_own, skipped
from einops_fast.profiles.timing.ceilings import Ceilings, Work, measure_ceilings
from einops_fast.profiles.timing.limits import FIRST_CALL, limited
from einops_fast.profiles.timing.measure import QUICK, Effort, Timing, fastest, paired_ratio, time_checked, too_wrong
from einops_fast.profiles.timing.memory import peak_memory
from einops_fast.profiles.ways import Way, bind

__all__ = ["about", "families", "frameworks", "measure", "own_cases", "peers", "tables"]

about = "attention in every layout and with every feature, against each implementation alone"

frameworks: tuple[str, ...] = ("torch",)
families: dict[str, tuple[AttentionCase, ...]] = FAMILIES
own_cases = False
peers: tuple[str, ...] = tuple(name for name in WAYS if not is_own(name))

DTYPES = {"cpu": ("float32",), "gpu": ("bfloat16", "float16")}

ROWS_ONLY = "float16"
"""Of this one only the ``rows`` are measured, unless someone asks for it: it takes as long as bfloat16."""

ON_CPU = (OURS, NATIVE, NAIVE)

CPU_CASES = (
    "row-2x16x8192x64",
    "row-2x16x8192x64-causal",
    "layout-bshd",
    "feature-window",
    "feature-softcap",
    "feature-bias",
    "feature-mask",
    "feature-values-odd",
    "heads-32-8-causal",
    "varlen",
    "decode-8x16k",
)
"""The public ones on a CPU."""

EFFORTS = {
    "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
    "gpu": Effort(rounds=15, seconds=0.6, warm_up=0.01, lost=1.5, settling=0.1),
}


@dataclass(frozen=True)
class _Job:
    """One case in one direction, and what all its ways share."""

    framework: Framework
    case: AttentionCase
    dtype: str
    backward: bool
    given: Extras
    names: tuple[str, ...]

    def ways(self) -> list[Way]:
        return attention_ways(self.case, self.framework, self.given, self.names, self.dtype, self.backward)

    def row(self, timing: Timing, work: Work) -> Row:
        row = Row.of(self.framework.name, self.case, self.dtype, timing, work, backward=self.backward)
        return replace(row, guest=not is_own(timing.name))


def measure(framework: Framework, options: Options) -> Iterator[Record]:
    """A row per dtype, case, direction and way, with the most memory it holds; ours with what was chosen."""
    if framework.name != "torch":
        yield skipped(framework.name, OURS, "attention is measured on torch's tensors")
        return
    effort = QUICK if options.quick else EFFORTS[framework.device]
    cases = _cases(framework, options)
    directions = (False,) if options.forward_only else (False, True)
    dtypes = options.dtypes or DTYPES[framework.device]
    tasks = {
        dtype: [
            (case, backward)
            for case in cases
            if options.dtypes or dtype != ROWS_ONLY or case in FAMILIES["rows"]
            for backward in directions[: 2 if case.trained else 1]
            if options.left(framework.name, dtype, case, backward)
        ]
        for dtype in dtypes
    }
    yield Extent(sum(map(len, tasks.values())))
    # Ours comes last: its choice measures what is compiled by then.
    measured = options.peers or peers
    names = (*(name for name in WAYS if name != OURS and (is_own(name) or name in measured)), OURS)
    if framework.device == "cpu":
        names = tuple(name for name in names if name in ON_CPU)
    for dtype in filter(tasks.get, dtypes):
        try:
            ceilings = measure_ceilings(framework, dtype, effort)
        except Unavailable as missing:
            yield skipped(framework.name, OURS, str(missing), dtype=dtype)
            continue
        yield Ceiling(framework.name, dtype, ceilings.bandwidth, ceilings.flops)
        if framework.device == "gpu":
            yield from map(Note, compile_ahead(tasks[dtype], dtype, names, framework.threads))
        for case, backward in tasks[dtype]:
            job = _Job(framework, case, dtype, backward, extras(case, framework), names)
            work = _work(case, dtype, ceilings, backward)
            try:
                yield from _rows(job, work, effort, options.trace)
            except Exception as error:  # a case that doesn't fit the machine's memory, say, isn't the end
                yield job.row(Timing.failed(OURS, error), work)


def _cases(framework: Framework, options: Options) -> list[AttentionCase]:
    found = select(FAMILIES[options.cases], options.only)
    if framework.device == "gpu":
        return list(found)
    # Two cores take minutes for all; whoever asks for others by name gets them.
    few = found if options.only or options.cases != "public" else [case for case in found if case.name in CPU_CASES]
    return [scaled(case, "cpu") for case in few]


def _work(case: AttentionCase, dtype: str, ceilings: Ceilings, backward: bool) -> Work:
    return Work.of(case.elements(backward) * ITEM_SIZES[dtype], case.flops(backward), ceilings)


def _rows(job: _Job, work: Work, effort: Effort, trace: str) -> Iterator[Record]:
    checked = _check(job)
    right = [(way, timing) for way, timing in checked if not timing.failure]
    ways = [way for way, _ in right]
    # Not the inputs of the check: nothing remembered from there can help.
    operands = attention_inputs(job.case, job.framework, job.dtype, 1, job.backward)
    calls = [bind(way, operands) for way in ways]
    arounds = [way.around for way in ways]
    timings = time_checked([timing for _, timing in right], calls, job.framework.clock(), arounds, effort)
    native = next((timing for timing in timings if timing.name == NATIVE), None)
    best = fastest(timing for timing in timings if not is_own(timing.name))
    for way, call, timing in zip(ways, calls, timings, strict=True):
        row = job.row(replace(timing, speedup=paired_ratio(native, timing) if native else None), work)
        if best is not None and is_own(way.name):
            row = replace(row, best=best.name, to_best=paired_ratio(timing, best))
        if way.name == OURS:
            row = replace(row, chosen=chosen_by_ours(job.case, job.given, operands.operands))
        with way.around(), suppress(Exception):  # who can't tell was measured all the same
            row = replace(row, peak_bytes=peak_memory(job.framework, call))
        yield row
        if trace:
            with way.around():
                yield from write_trace(trace, row, job.framework, made(call))
    yield from (job.row(timing, work) for _, timing in checked if timing.failure)


def _check(job: _Job) -> list[tuple[Way, Timing]]:
    """The error of every way that can do the case, on inputs of its own."""
    case, framework = job.case, job.framework
    given = attention_inputs(case, framework, job.dtype, 0, job.backward)
    expected = reference(case, given.operands, given.cotangent, job.given)
    limit = allowed_error(case, job.dtype)
    checked = []
    for way in job.ways():
        try:
            with way.around(), limited(FIRST_CALL, "the first call"):
                # What is right mustn't be left over from who came before.
                framework.spoil([case.result_shape, *(case.shapes if job.backward else ())], job.dtype)
                results = [way.call(*given.operands)]
                if job.backward:
                    results += bind(way, given)()
            error = largest_error(case, results, expected)
        except OperandError as cannot:
            if way.name == OURS:
                checked.append((way, Timing.failed(way.name, cannot)))
            continue  # it isn't made for this: explain_attention says why
        except Exception as failure:
            checked.append((way, Timing.failed(way.name, failure)))
            continue
        checked.append((way, Timing(way.name, error=error, failure=too_wrong(error, limit))))
    return checked
