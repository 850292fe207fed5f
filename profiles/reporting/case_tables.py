"""What tables with a line per case and a column per way have in common: those of attention and of the operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean

__all__ = ["best_over_ours", "by_case", "comparison", "gigabytes", "megabytes", "number", "teraflops", "verdict"]

OURS = "ours"

BEHIND = 0.98
"""Ours is behind below this ratio to the best peer; what is nearer to 1 is within the noise of a run."""


def by_case(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    """The rows of each case by way."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.what] = row
    return cases


def teraflops(row: Row | None) -> float | None:
    """TFLOP/s of a row."""
    return row.flops / row.seconds * 1e-12 if row is not None and row.flops and row.seconds else None


def gigabytes(row: Row | None) -> float | None:
    """GB/s of a row."""
    return row.moved / row.seconds * 1e-9 if row is not None and row.moved and row.seconds else None


def number(value: float | None) -> str:
    """A throughput as the cell of a table: ``435``, ``9.6``."""
    return "–" if value is None else f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def megabytes(row: Row | None) -> str:
    """The most memory that a call holds, as the cell of a table."""
    return "–" if row is None or row.peak_bytes is None else f"{row.peak_bytes * 1e-6:.1f}"


def best_over_ours(row: Row | None) -> float | None:
    """Time of the best peer over that of ours."""
    return 1 / row.to_best if row is not None and row.to_best else None


def verdict(rows: Sequence[Row]) -> str:
    """Whether all is right; what others fail at is told in other words, unless they are wrong."""
    failed = [f"{row.what} {row.failure}" for row in rows if row.failure and not row.guest]
    absent = [f"{row.what}: {row.failure}" for row in rows if row.failure and row.guest]
    told = f"failed: {'; '.join(failed)}" if failed else "right"
    return f"{told} (without {'; '.join(absent)})" if absent else told


def comparison(cases: Mapping[str, Mapping[str, Row]]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """What follows for ours from all cases: in lines, and for programs."""
    ours = {name: found[OURS] for name, found in cases.items() if OURS in found}
    ratios = {name: value for name, row in ours.items() if (value := best_over_ours(row)) is not None}
    failed = [name for name, row in ours.items() if row.failure]
    lines = []
    if ratios:
        lines.append(f"Time of the best peer over ours: geometric mean {geomean(ratios.values()):.2f} ({len(ratios)}).")
        behind = sorted((value, name) for name, value in ratios.items() if value < BEHIND)
        told = ", ".join(f"{name} ({value:.2f}, {ours[name].best})" for value, name in behind)
        lines.append(f"Behind the best peer by over {1 - BEHIND:.0%}: {len(behind)}{f': {told}' if told else ''}.")
    if failed:
        lines.append(f"Ours failed: {', '.join(failed)}.")
    figures = {
        "best/ours": ratios,
        "geomean": geomean(ratios.values()) if ratios else None,
        "failed": failed,
    }
    return tuple(lines), figures
