"""The three problems of apache/mxnet#18043 in every mode: side by side in one process per framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from einops_fast.profiles.cases import MODES, PROBLEMS, Case
from einops_fast.profiles.contraction.own_cases import chosen_cases
from einops_fast.profiles.einsum.modes import make_way
from einops_fast.profiles.frameworks import Framework, Unavailable, installed, load
from einops_fast.profiles.profilers.traces import write_trace
from einops_fast.profiles.reporting.records import Ceiling, Extent, Options, Record, Row, skipped
from einops_fast.profiles.reporting.report import Table, milliseconds, ratio
from einops_fast.profiles.timing.ceilings import backward_work, forward_work, measure_ceilings
from einops_fast.profiles.timing.measure import FULL, QUICK, Effort, Timing, compare
from einops_fast.profiles.timing.watch import watched
from einops_fast.profiles.ways import Call, Way, bind, inputs

__all__ = ["about", "families", "frameworks", "measure", "own_cases", "peers", "tables"]

about = "the problems of apache/mxnet#18043 in every mode"

frameworks: tuple[str, ...] = ("numpy", "torch", "mxnet", "cupy")
families: dict[str, tuple[Case, ...]] = {"public": PROBLEMS}
own_cases = True
peers: tuple[str, ...] = ()

DIFFERENTIABLE = ("torch", "mxnet")


def measure(framework: Framework, options: Options) -> Iterator[Record]:
    """A row per dtype, direction, problem and mode; then some again, with memory and kernels."""
    torch = None
    # For torch itself, torch's einsum is the native one already.
    if framework.name != "torch" and installed("torch"):
        torch = load("torch", framework.device, framework.threads)
    effort = QUICK if options.quick else FULL
    default = ("float32", "float16") if framework.device == "gpu" else ("float32",)
    dtypes = options.dtypes or default
    cases = chosen_cases(families, options)
    trains = framework.name in DIFFERENTIABLE and not options.forward_only
    tasks = {
        dtype: [
            (case, backward)
            for backward in ((False, True) if trains else (False,))
            for case in cases
            if options.left(framework.name, dtype, case, backward)
        ]
        for dtype in dtypes
    }
    yield Extent(sum(map(len, tasks.values())))
    done: list[tuple[Case, Way, Row]] = []
    for dtype in filter(tasks.get, dtypes):
        try:
            ceilings = measure_ceilings(framework, dtype, effort)
        except Unavailable as missing:
            yield skipped(framework.name, "every mode", str(missing), dtype=dtype)
            continue
        yield Ceiling(framework.name, dtype, ceilings.bandwidth, ceilings.flops)
        for case, backward in tasks[dtype]:
            work = (backward_work if backward else forward_work)(case, dtype, ceilings)
            ways = _ways(case, framework, None if backward else torch)
            for way, timing in zip(ways, _timings(case, ways, dtype, effort, backward), strict=True):
                row = Row.of(framework.name, case, dtype, timing, work, backward=backward)
                yield row
                if not row.failure:
                    done.append((case, way, row))
    for case, way, row in done:
        make = partial(_call, case, way, row)
        with way.around():
            yield watched(row, way.framework, make)
            if options.trace:
                yield from write_trace(options.trace, row, way.framework, make)


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table of forward calls, and one of forward and backward."""
    title = "apache/mxnet#18043: every mode against the framework's own einsum"
    found = [_table(title, [row for row in rows if not row.backward])]
    backward = [row for row in rows if row.backward]
    return [*found, _table(f"{title}, forward and backward", backward)] if backward else found


def _table(title: str, rows: Sequence[Row]) -> Table:
    columns = ("framework", "problem", "dtype", "mode", "shape", "median ms", "native/this", "check")
    cells = [
        (
            row.framework,
            row.case.removeprefix("mx"),
            row.dtype,
            row.what,
            row.sizes,
            milliseconds(row.seconds),
            ratio(row.speedup),
            f"failed: {row.failure}" if row.failure else "right",
        )
        for row in rows
    ]
    return Table(title, columns, cells)


def _timings(case: Case, ways: Sequence[Way], dtype: str, effort: Effort, backward: bool) -> list[Timing]:
    try:
        return compare(case, ways, dtype, effort=effort, backward=backward)
    except Exception as error:  # of memory, say: the other cases may fit
        return [Timing.failed(way.name, error) for way in ways]


def _call(case: Case, way: Way, row: Row) -> Call:
    """The call that a row is of, on new operands."""
    return bind(way, inputs(case, way.framework, row.dtype, 1, row.backward))


def _ways(case: Case, framework: Framework, torch: Framework | None) -> list[Way]:
    ways = []
    for mode in MODES:
        try:
            ways.append(make_way(mode, case, framework, torch))
        except Unavailable:
            continue
    return ways
