"""The tables of the attention study: throughput of every way, and in a few lines what follows from all cases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from einops_fast.profiles.attention_ways import OURS, WAYS
from einops_fast.profiles.records import Row
from einops_fast.profiles.report import Table, geomean, milliseconds, ratio

__all__ = ["by_case", "speed", "tables", "teraflops"]

BEHIND = 0.98
"""Ours is behind below this ratio to the best peer; what is nearer to 1 is within the noise of a run."""


def tables(rows: Sequence[Row]) -> list[Table]:
    """Per dtype a table of forward calls, and one of forward and backward."""
    ordered = sorted(rows, key=lambda row: (row.framework, row.dtype, row.backward))
    return [
        _table(dtype, backward, list(group))
        for (_, dtype, backward), group in groupby(ordered, key=lambda row: (row.framework, row.dtype, row.backward))
    ]


def teraflops(row: Row | None) -> float | None:
    """TFLOP/s of a row."""
    return row.flops / row.seconds * 1e-12 if row is not None and row.flops and row.seconds else None


def speed(row: Row | None) -> str:
    """TFLOP/s as the cell of a table: ``435``, ``9.6``."""
    value = teraflops(row)
    return "–" if value is None else f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def by_case(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows of each case by way."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.what] = row
    return cases


def _table(dtype: str, backward: bool, rows: Sequence[Row]) -> Table:
    cases = by_case(rows)
    present = {row.what for row in rows}
    ways = [name for name in WAYS if name in present]
    columns = (
        "case", "sizes", *(f"{name} TFLOP/s" for name in ways), *(f"{name} ms" for name in ways),
        "best peer", "best/ours", "ours by", "GB/s", "ours/floor", "ours peak MB", "best peak MB", "check",
    )  # fmt: skip
    cells = []
    for name, found in cases.items():
        ours = found.get(OURS)
        some = ours or next(iter(found.values()))
        best = found.get(ours.best) if ours else None
        cells.append(
            (
                name,
                some.sizes,
                *(speed(found.get(way)) for way in ways),
                *(milliseconds(found[way].seconds if way in found else None) for way in ways),
                best.what if best else "–",
                ratio(_to_best(ours)),
                ours.chosen if ours else "–",
                f"{ours.moved / ours.seconds * 1e-9:.0f}" if ours and ours.moved and ours.seconds else "–",
                ratio(ours.seconds / ours.floor if ours and ours.seconds and ours.floor else None),
                _megabytes(ours),
                _megabytes(best),
                _check(list(found.values())),
            )
        )
    ratios = {name: value for name, found in cases.items() if (value := _to_best(found.get(OURS))) is not None}
    failed = [name for name, found in cases.items() if OURS in found and found[OURS].failure]
    direction = "forward and backward" if backward else "forward"
    figures = {
        "dtype": dtype,
        "direction": direction,
        "best/ours": ratios,
        "geomean": geomean(ratios.values()) if ratios else None,
        "failed": failed,
    }
    return Table(f"attention, {dtype}, {direction}", columns, cells, tuple(_lines(ratios, cases, failed)), figures)


def _to_best(row: Row | None) -> float | None:
    return 1 / row.to_best if row is not None and row.to_best else None


def _lines(ratios: Mapping[str, float], cases: Mapping[str, Mapping[str, Row]], failed: Sequence[str]) -> list[str]:
    lines = []
    if ratios:
        lines.append(f"Time of the best peer over ours: geometric mean {geomean(ratios.values()):.2f} ({len(ratios)}).")
        behind = sorted((value, name) for name, value in ratios.items() if value < BEHIND)
        told = ", ".join(f"{name} ({value:.2f}, {cases[name][OURS].best})" for value, name in behind)
        lines.append(f"Behind the best peer by over {1 - BEHIND:.0%}: {len(behind)}{f': {told}' if told else ''}.")
    if failed:
        lines.append(f"Ours failed: {', '.join(failed)}.")
    return lines


def _megabytes(row: Row | None) -> str:
    return "–" if row is None or row.peak_bytes is None else f"{row.peak_bytes * 1e-6:.1f}"


def _check(rows: Sequence[Row]) -> str:
    """Whether all is right; what others fail at is told in other words, unless they are wrong."""
    failed = [f"{row.what} {row.failure}" for row in rows if row.failure and not row.guest]
    absent = [f"{row.what}: {row.failure}" for row in rows if row.failure and row.guest]
    verdict = f"failed: {'; '.join(failed)}" if failed else "right"
    return f"{verdict} (without {'; '.join(absent)})" if absent else verdict
