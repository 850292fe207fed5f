"""Contractions of many kinds: ours against whatever else contracts the same arrays, and the device itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import einops_fast
from einops_fast.plan_cache import clear_plans
from einops_fast.profiles.cases import BACKWARD, Case, scaled, select
from einops_fast.profiles.ceilings import Ceilings, floor, measure_ceilings
from einops_fast.profiles.contraction_tables import OURS, tables
from einops_fast.profiles.extra_cases import FAMILIES
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.kernels import kernel_times, summary
from einops_fast.profiles.measure import BRIEF, FULL, QUICK, Effort, Timing, compare, paired_ratio, reason
from einops_fast.profiles.peers import NATIVE, Peer, make_ways, present
from einops_fast.profiles.records import Note, Options, Row
from einops_fast.profiles.ways import Way, bind, inputs

__all__ = ["families", "frameworks", "measure", "tables"]

frameworks: tuple[str, ...] = ("numpy", "torch")
"""CuPy's einsum is measured beside torch's; ask by name for ours on CuPy arrays, and for MXNet, whose own einsum
takes seconds for most of the cases."""

families: dict[str, tuple[Case, ...]] = FAMILIES

DTYPES = {
    ("torch", "cpu"): ("float32", "bfloat16"),
    ("torch", "gpu"): ("float16", "float32"),
    ("cupy", "gpu"): ("float16", "float32"),
}


def measure(framework: Framework, options: Options) -> Iterator[Row | Note]:
    """A row per dtype, case and implementation, with the floor of ceilings from the same process.

    Rows of ours come again at the end, with memory and kernels: once watched, a GPU may launch more slowly.
    """
    effort = QUICK if options.quick else BRIEF if framework.device == "gpu" else FULL
    cases = [scaled(case, framework.device) for case in select(FAMILIES[options.cases], options.only)]
    peers, notes = present(framework, options.peers)
    yield from map(Note, notes)
    done: list[tuple[Case, Row]] = []
    for dtype in options.dtypes or DTYPES.get((framework.name, framework.device), ("float32",)):
        try:
            ceilings = measure_ceilings(framework, dtype, effort)
        except Unavailable as missing:
            yield Note(f"{framework.name} {dtype} is left out: {missing}")
            continue
        yield Note(
            f"{framework.name} {dtype} reaches {ceilings.bandwidth / 1e9:.0f} GB/s in a copy"
            f" and {ceilings.flops / 1e9:.0f} GFLOP/s in a GEMM"
        )
        for case in cases:
            for row in _forward(framework, case, dtype, peers, ceilings, effort):
                yield row
                if row.what == OURS and not row.failure:
                    done.append((case, row))
        for case in cases:
            if framework.name == "torch" and case.name in BACKWARD:
                yield from _backward(framework, case, dtype, peers, effort)
    for case, row in done:
        yield _watched(framework, case, row)


def _forward(
    framework: Framework, case: Case, dtype: str, peers: Sequence[Peer], ceilings: Ceilings, effort: Effort
) -> Iterator[Row]:
    least = floor(case, dtype, ceilings)
    guests = {peer.name for peer in peers if peer.guest}
    for timing, best, to_best in _against_best(
        case, [*make_ways(peers, case, dtype), _ours(framework, case)], dtype, effort
    ):
        row = Row.of(framework.name, case, dtype, timing, least)
        yield replace(row, guest=timing.name in guests, best=best, to_best=to_best)


def _backward(framework: Framework, case: Case, dtype: str, peers: Sequence[Peer], effort: Effort) -> Iterator[Row]:
    native = make_ways([peer for peer in peers if peer.name == NATIVE], case, dtype)
    for timing, best, to_best in _against_best(case, [*native, _ours(framework, case)], dtype, effort, backward=True):
        yield replace(Row.of(framework.name, case, dtype, timing), backward=True, best=best, to_best=to_best)


def _against_best(
    case: Case, ways: Sequence[Way], dtype: str, effort: Effort, *, backward: bool = False
) -> list[tuple[Timing, str, float | None]]:
    """What came out for each way; for ours also which of the others is the fastest, and the ratio to that."""
    try:
        timings = compare(case, ways, dtype, effort=effort, backward=backward)
    except Exception as error:  # a case that doesn't fit the machine's memory, say, is not the end of the table
        timings = [Timing(OURS, failure=reason(error))]
    others = [timing for timing in timings if timing.name != OURS and timing.seconds is not None]
    best = min(others, key=lambda timing: timing.seconds or 0.0, default=None)
    return [
        (timing, best.name, paired_ratio(timing, best)) if best and timing.name == OURS else (timing, "", None)
        for timing in timings
    ]


def _ours(framework: Framework, case: Case) -> Way:
    return Way(OURS, partial(einops_fast.fast_einsum, case.called), framework)


def _watched(framework: Framework, case: Case, row: Row) -> Row:
    """The row with what one call needs in memory, what its plan keeps included, and what runs in it."""
    try:
        call = bind(_ours(framework, case), inputs(case, framework, row.dtype, 1, shared=False))
        clear_plans()
        extra = framework.extra_memory(call)
        return replace(row, extra_bytes=extra, kernels=summary(kernel_times(framework, call)))
    except Exception:  # what can't be watched was measured all the same
        return row
