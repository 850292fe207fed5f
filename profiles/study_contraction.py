"""Contractions of many kinds: ours against the native einsum, opt_einsum and the device itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import einops_fast
from einops_fast.profiles.cases import CONTRACTIONS, Case, scaled, select
from einops_fast.profiles.ceilings import floor, measure_ceilings
from einops_fast.profiles.frameworks import Framework, Unavailable
from einops_fast.profiles.measure import FULL, QUICK, Way, compare
from einops_fast.profiles.records import Note, Options, Row
from einops_fast.profiles.report import Table, geomean, milliseconds, ratio

__all__ = ["cases", "frameworks", "measure", "tables"]

frameworks: tuple[str, ...] = ("numpy", "torch", "cupy")
"""MXNet's own einsum takes seconds for most of the cases; ask for it by name."""

cases: tuple[Case, ...] = CONTRACTIONS

DTYPES = {"torch": ("float32", "bfloat16"), "cupy": ("float32", "float16")}

NATIVE, THEIRS, OURS = "native", "opt_einsum", "fast_einsum"


def measure(framework: Framework, options: Options) -> Iterator[Row | Note]:
    """A row per dtype, case and implementation, with the floor of ceilings from the same process."""
    effort = QUICK if options.quick else FULL
    for dtype in options.dtypes or DTYPES.get(framework.name, ("float32",)):
        try:
            ceilings = measure_ceilings(framework, dtype, effort)
        except Unavailable as reason:
            yield Note(f"{framework.name} {dtype} is left out: {reason}")
            continue
        yield Note(
            f"{framework.name} {dtype} reaches {ceilings.bandwidth / 1e9:.0f} GB/s in a copy"
            f" and {ceilings.flops / 1e9:.0f} GFLOP/s in a GEMM"
        )
        for unscaled in select(cases, options.only):
            case = scaled(unscaled, framework.device)
            least = floor(case, dtype, ceilings)
            for timing in compare(case, _ways(case, framework), dtype, effort=effort):
                yield Row.of(framework.name, case, dtype, timing, least)


def tables(rows: Sequence[Row]) -> list[Table]:
    """A table per framework and dtype, with geometric means and the worst case of those that are right."""
    return [
        _table(framework, dtype, list(group))
        for (framework, dtype), group in groupby(rows, key=lambda row: (row.framework, row.dtype))
    ]


def _ways(case: Case, framework: Framework) -> list[Way]:
    # NumPy's plain einsum never calls BLAS; what ours has to beat is the one that does.
    options = {"optimize": True} if framework.name == "numpy" else {}
    ways = [Way(NATIVE, partial(framework.einsum, case.equation, **options), framework)]
    if framework.name != "mxnet":
        from opt_einsum import contract

        ways.append(Way(THEIRS, partial(contract, case.equation), framework))
    ways.append(Way(OURS, partial(einops_fast.fast_einsum, case.equation), framework))
    return ways


def _table(framework: str, dtype: str, rows: Sequence[Row]) -> Table:
    native = "np.einsum(optimize=True)" if framework == "numpy" else f"{framework}.einsum"
    times = ("native ms", "opt_einsum ms", "ours ms", "ours/native", "ours/floor")
    columns = ("case", "equation", "shapes", *times, "check")
    cells = []
    to_native: dict[str, float] = {}
    to_floor: dict[str, float] = {}
    for name, group in groupby(rows, key=lambda row: row.case):
        by_way = {row.what: row for row in group}
        # An interrupted run may end in the middle of a case.
        if OURS not in by_way:
            continue
        ours = by_way[OURS]
        if ours.seconds is not None and ours.floor is not None:
            to_floor[name] = ours.seconds / ours.floor
        if ours.speedup is not None:
            to_native[name] = 1 / ours.speedup
        failures = [f"{way} {row.failure}" for way, row in by_way.items() if row.failure]
        theirs = by_way.get(THEIRS)
        cells.append(
            (
                name,
                ours.equation,
                ours.sizes,
                milliseconds(by_way[NATIVE].seconds),
                milliseconds(theirs.seconds if theirs else None),
                milliseconds(ours.seconds),
                ratio(to_native.get(name)),
                ratio(to_floor.get(name)),
                f"failed: {'; '.join(failures)}" if failures else "right",
            )
        )
    summary = []
    if to_native and to_floor:
        worst = max(to_native, key=lambda name: to_native[name])
        summary.append(
            f"Geometric means: ours/native {geomean(to_native.values()):.2f} ({len(to_native)} cases),"
            f" ours/floor {geomean(to_floor.values()):.2f} ({len(to_floor)} cases)."
            f" Worst against native: {worst}, {to_native[worst]:.2f}."
        )
    return Table(f"{framework}, {dtype}: ours against {native}", columns, cells, tuple(summary))
