"""The tables of the contraction study: every case, and in a few lines what follows from all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from einops_fast.profiles.contraction.peers import NATIVE
from einops_fast.profiles.reporting.case_tables import verdict
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import Table, geomean, milliseconds, ratio

__all__ = ["BEHIND", "OURS", "tables"]

OURS = "fast_einsum"

BEHIND = 1.02
"""Ours is behind from this ratio to the best peer on; what is nearer is within the noise of a run."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Per framework and dtype a table of all cases, and one of those that were also run backward."""
    groups = groupby(rows, key=lambda row: (row.framework, row.dtype, row.backward))
    return [
        _backward(framework, dtype, list(group)) if backward else _forward(framework, dtype, list(group))
        for (framework, dtype, backward), group in groups
    ]


def _forward(framework: str, dtype: str, rows: Sequence[Row]) -> Table:
    others = [name for name in dict.fromkeys(row.what for row in rows) if name != OURS]
    times = [f"{name} ms" for name in others]
    ratios = ("ours/floor", "best peer", "ours/best", "ours/native")
    columns = ("case", "equation", "shapes", *times, "ours ms", *ratios, "extra bytes", "kernels of ours", "check")
    cells = []
    cases = _by_case(rows)
    for name, ways in cases.items():
        ours = ways[OURS]
        cells.append(
            (
                name,
                ours.equation,
                ours.sizes,
                *(milliseconds(ways[other].seconds if other in ways else None) for other in others),
                milliseconds(ours.seconds),
                ratio(_to_floor(ours)),
                ours.best or "–",
                ratio(ours.to_best),
                ratio(_to_native(ours)),
                "" if ours.extra_bytes is None else f"{ours.extra_bytes:,}",
                ours.kernels,
                verdict(list(ways.values())),
            )
        )
    every = [ways[OURS] for ways in cases.values()]
    measured = {
        "ours/floor": {row.case: value for row in every if (value := _to_floor(row)) is not None},
        "ours/best peer": {row.case: row.to_best for row in every if row.to_best is not None},
        "ours/native": {row.case: value for row in every if (value := _to_native(row)) is not None},
    }
    behind = {name: value for name, value in measured["ours/best peer"].items() if value > BEHIND}
    failed = [row.case for row in every if row.failure]
    lines = [*_means(measured), _behind(behind, cases, len(measured["ours/best peer"]))]
    if failed:
        lines.append(f"Ours failed: {', '.join(failed)}.")
    figures = {**_figures(framework, dtype, measured), "behind": behind, "failed": failed}
    return Table(f"{framework}, {dtype}: ours against {_native_name(framework)}", columns, cells, tuple(lines), figures)


def _backward(framework: str, dtype: str, rows: Sequence[Row]) -> Table:
    columns = ("case", "equation", "shapes", "native ms", "ours ms", "ours/native", "check")
    cells = []
    cases = _by_case(rows)
    for name, ways in cases.items():
        ours = ways[OURS]
        native = milliseconds(ways[NATIVE].seconds if NATIVE in ways else None)
        times = (native, milliseconds(ours.seconds), ratio(_to_native(ours)))
        cells.append((name, ours.equation, ours.sizes, *times, verdict(list(ways.values()))))
    every = [ways[OURS] for ways in cases.values()]
    measured = {"ours/native": {row.case: value for row in every if (value := _to_native(row)) is not None}}
    figures = {**_figures(framework, dtype, measured), "failed": [row.case for row in every if row.failure]}
    title = f"{framework}, {dtype}, backward: forward and all gradients, ours against {_native_name(framework)}"
    return Table(title, columns, cells, tuple(_means(measured)), figures)


def _by_case(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """The rows of each case by way; without a case that an interruption left without ours."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.what] = row
    return {name: ways for name, ways in cases.items() if OURS in ways}


def _to_floor(row: Row) -> float | None:
    return row.seconds / row.floor if row.seconds is not None and row.floor is not None else None


def _to_native(row: Row) -> float | None:
    return 1 / row.speedup if row.speedup is not None else None


def _means(measured: Mapping[str, Mapping[str, float]]) -> list[str]:
    found = {what: values for what, values in measured.items() if values}
    if not found:
        return []
    means = (f"{what} {geomean(values.values()):.2f} ({_cases(len(values))})" for what, values in found.items())
    worst = ((what, *max(values.items(), key=lambda item: item[1])) for what, values in found.items())
    return [
        f"Geometric means: {', '.join(means)}.",
        f"Worst: {', '.join(f'{what} {value:.2f} ({name})' for what, name, value in worst)}.",
    ]


def _behind(behind: Mapping[str, float], cases: Mapping[str, Mapping[str, Row]], among: int) -> str:
    """How many cases ours is behind in, the worst first."""
    ordered = sorted(behind, key=lambda name: -behind[name])
    names = ", ".join(f"{name} ({behind[name]:.2f}, {cases[name][OURS].best})" for name in ordered)
    told = f"Behind the best peer by over {BEHIND - 1:.0%}: {len(behind)} of {_cases(among)}"
    return f"{told}: {names}." if names else f"{told}."


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


def _figures(framework: str, dtype: str, measured: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The summary, for programs."""
    return {
        "framework": framework,
        "dtype": dtype,
        "cases": {what: len(values) for what, values in measured.items()},
        "geomean": {what: geomean(values.values()) for what, values in measured.items() if values},
        "worst": {what: max(values, key=lambda name: values[name]) for what, values in measured.items() if values},
    }


def _native_name(framework: str) -> str:
    return "np.einsum(optimize=True)" if framework == "numpy" else f"{framework}.einsum"
