"""The three problems of apache/mxnet#18043 in every mode: side by side in one process per framework."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einops_fast.profiles.cases import MODES, PROBLEMS, Case, select
from einops_fast.profiles.frameworks import Framework, Unavailable, installed, load
from einops_fast.profiles.measure import FULL, QUICK, compare
from einops_fast.profiles.modes import make_way
from einops_fast.profiles.records import Note, Options, Row
from einops_fast.profiles.report import Table, milliseconds, ratio
from einops_fast.profiles.ways import Way

__all__ = ["families", "frameworks", "measure", "tables"]

frameworks: tuple[str, ...] = ("numpy", "torch", "mxnet", "cupy")
families: dict[str, tuple[Case, ...]] = {"public": PROBLEMS}


def measure(framework: Framework, options: Options) -> Iterator[Row | Note]:
    """A row per problem, dtype and mode."""
    torch = None
    # For torch itself, torch's einsum is the native one already.
    if framework.name != "torch" and installed("torch"):
        torch = load("torch", framework.device, framework.threads)
    default = ("float32", "float16") if framework.device == "gpu" else ("float32",)
    for dtype in options.dtypes or default:
        for case in select(PROBLEMS, options.only):
            try:
                timings = compare(
                    case,
                    _ways(case, framework, torch),
                    dtype,
                    effort=QUICK if options.quick else FULL,
                    backward=options.backward,
                )
            except Unavailable as reason:
                yield Note(f"{framework.name} {dtype} is left out: {reason}")
                break
            for timing in timings:
                yield Row.of(framework.name, case, dtype, timing)


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table of everything."""
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
    return [Table("apache/mxnet#18043: every mode against the framework's own einsum", columns, cells)]


def _ways(case: Case, framework: Framework, torch: Framework | None) -> list[Way]:
    ways = []
    for mode in MODES:
        try:
            ways.append(make_way(mode, case, framework, torch))
        except Unavailable:
            continue
    return ways
