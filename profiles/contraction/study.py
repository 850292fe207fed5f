"""Contractions of many kinds: ours against whatever else contracts the same arrays, and the device itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from einops_fast.profiles.cases import BACKWARD, Case
from einops_fast.profiles.contraction.ahead import compile_ahead
from einops_fast.profiles.contraction.extra_cases import FAMILIES
from einops_fast.profiles.contraction.own_cases import chosen_cases
from einops_fast.profiles.contraction.peers import NATIVE, PEERS, Peer, make_ways, present
from einops_fast.profiles.contraction.sweep_cases import fitting
from einops_fast.profiles.contraction.tables import OURS, tables
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.profilers.traces import write_trace
from einops_fast.profiles.reporting.records import Ceiling, Extent, Note, Options, Record, Row, skipped
from einops_fast.profiles.timing.ceilings import Work, backward_work, forward_work, measure_ceilings
from einops_fast.profiles.timing.measure import BRIEF, FULL, QUICK, Effort, Timing, compare, fastest, paired_ratio
from einops_fast.profiles.timing.watch import watched
from einops_fast.profiles.ways import Call, Way, bind, inputs, our_way
from einops_fast.runtime.plan_cache import clear_plans

__all__ = ["about", "families", "frameworks", "measure", "own_cases", "peers", "tables"]

about = "many equations against all that contracts the same arrays, and the device"

frameworks: tuple[str, ...] = ("numpy", "torch")
"""CuPy's einsum is measured beside torch's; ask by name for ours on CuPy arrays, and for MXNet, whose own einsum
takes seconds for most of the cases."""

families: dict[str, tuple[Case, ...]] = FAMILIES
own_cases = True
peers: tuple[str, ...] = tuple(PEERS)

DTYPES = {
    ("torch", "cpu"): ("float32", "bfloat16"),
    ("torch", "gpu"): ("float16", "float32"),
    ("cupy", "gpu"): ("float16", "float32"),
}

UNWATCHED = ("compile",)
"""Ways whose memory and kernels aren't looked at: they would have to be compiled once more."""


def measure(framework: Framework, options: Options) -> Iterator[Record]:
    """A row per dtype, case and implementation, with the floor of ceilings from the same process.

    Some rows come again at the end, with memory and kernels: once watched, a GPU may launch more slowly.
    """
    effort = QUICK if options.quick else BRIEF if framework.device == "gpu" else FULL
    cases = fitting(chosen_cases(FAMILIES, options), framework.device)
    trained = [case for case in cases if _is_trained(framework, case, options)]
    dtypes = options.dtypes or DTYPES.get((framework.name, framework.device), ("float32",))
    tasks = {
        dtype: [
            (case, backward)
            for backward, chosen in ((False, cases), (True, trained))
            for case in chosen
            if options.left(framework.name, dtype, case, backward)
        ]
        for dtype in dtypes
    }
    yield Extent(sum(map(len, tasks.values())))
    peers, told = present(framework, options.peers)
    yield from told
    if framework.device == "gpu":
        each = [(case, dtype, backward) for dtype, chosen in tasks.items() for case, backward in chosen]
        yield from map(Note, compile_ahead(framework.name, each, peers, framework.threads))
    done: list[tuple[Case, Row]] = []
    for dtype in filter(tasks.get, dtypes):
        try:
            ceilings = measure_ceilings(framework, dtype, effort)
        except Unavailable as missing:
            yield skipped(framework.name, OURS, str(missing), dtype=dtype)
            continue
        yield Ceiling(framework.name, dtype, ceilings.bandwidth, ceilings.flops)
        yield Note(
            f"{framework.name} {dtype} reaches {ceilings.bandwidth / 1e9:.0f} GB/s in a copy"
            f" and {ceilings.flops / 1e9:.0f} GFLOP/s in a GEMM"
        )
        for case, backward in tasks[dtype]:
            work = (backward_work if backward else forward_work)(case, dtype, ceilings)
            for row in _rows(framework, case, dtype, peers, work, effort, backward):
                yield row
                if row.what not in UNWATCHED and not row.failure:
                    done.append((case, row))
    for case, row in done:
        make = partial(_call, framework, case, row, peers)
        if row.what == OURS and not row.backward:
            row = _with_extra_memory(row, framework, make)
        yield watched(row, framework, make)
        if options.trace:
            yield from write_trace(options.trace, row, framework, make)


def _is_trained(framework: Framework, case: Case, options: Options) -> bool:
    """Whether the gradients of a case are measured: of the named ones, and of the user's own."""
    if options.forward_only or framework.name not in ("torch", "mxnet"):
        return False
    return case.name in BACKWARD or (options.cases not in FAMILIES)


def _rows(
    framework: Framework,
    case: Case,
    dtype: str,
    peers: Sequence[Peer],
    work: Work,
    effort: Effort,
    backward: bool,
) -> Iterator[Row]:
    guests = {peer.name for peer in peers if peer.guest}
    # Backward is timed against the native einsum alone.
    rivals = [peer for peer in peers if peer.name == NATIVE] if backward else peers
    ways = [*make_ways(rivals, case, dtype), our_way(OURS, framework, case)]
    for timing, best, to_best in _against_best(case, ways, dtype, effort, backward=backward):
        row = Row.of(framework.name, case, dtype, timing, work, backward=backward)
        yield replace(row, guest=timing.name in guests, best=best, to_best=to_best)


def _against_best(
    case: Case, ways: Sequence[Way], dtype: str, effort: Effort, *, backward: bool = False
) -> list[tuple[Timing, str, float | None]]:
    """What came out for each way; for ours also which of the others is the fastest, and the ratio to that."""
    try:
        timings = compare(case, ways, dtype, effort=effort, backward=backward)
    except Exception as error:  # a case that doesn't fit the machine's memory, say, is not the end of the table
        timings = [Timing.failed(OURS, error)]
    best = fastest(timing for timing in timings if timing.name != OURS)
    return [
        (timing, best.name, paired_ratio(timing, best)) if best and timing.name == OURS else (timing, "", None)
        for timing in timings
    ]


def _call(framework: Framework, case: Case, row: Row, peers: Sequence[Peer]) -> Call:
    """The call that a row is of, on new operands."""
    rivals = [peer for peer in peers if peer.name == row.what]
    ways = [our_way(OURS, framework, case), *make_ways(rivals, case, row.dtype)]
    way = next(way for way in ways if way.name == row.what)
    return bind(way, inputs(case, framework, row.dtype, 1, row.backward, shared=False))


def _with_extra_memory(row: Row, framework: Framework, make: Callable[[], Call]) -> Row:
    """The row with what one call needs in memory, what its plan keeps included."""
    with suppress(Exception):  # what can't be watched was measured all the same
        call = make()
        clear_plans()
        return replace(row, extra_bytes=framework.extra_memory(call))
    return row
