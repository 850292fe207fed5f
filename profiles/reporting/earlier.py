"""A run beside an earlier one of the same study: how many times as long everything takes now, regressions marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from einops_fast.profiles.reporting.cells import milliseconds, ratio
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.reporting.results import Result, read_result

__all__ = ["compared", "earlier_result", "verdict"]

NOISE = 0.05
"""Ratios that are nearer to 1 than this say nothing, however steady the times."""


def earlier_result(paths: Sequence[Path], study: str) -> Result | None:
    """The last of the files that is of this study."""
    found = [result for result in map(read_result, paths) if result.study == study]
    return found[-1] if found else None


def compared(now: Result, before: Result) -> Table:
    """A line for whatever both have measured, the worst first, and for what fails now and didn't before."""
    known = {row.key: row for row in before.measured}
    both = [(row, known[row.key]) for row in now.measured if row.key in known]
    both.sort(key=lambda pair: -(_ratio(*pair) or float("inf")))
    cells = [
        (
            row.framework,
            row.dtype,
            row.case,
            row.what,
            "backward" if row.backward else "forward",
            milliseconds(then.seconds),
            milliseconds(row.seconds),
            ratio(_ratio(row, then)),
            verdict(row, then),
        )
        for row, then in both
    ]
    regressions = [cell for cell in cells if cell[-1] not in ("", "faster")]
    ratios = [value for row, then in both if (value := _ratio(row, then)) is not None]
    summary = [f"{len(regressions)} of {len(cells)} are regressions (marked)."]
    if ratios:
        summary.insert(0, f"Geometric mean of now/before: {geomean(ratios):.3f} ({len(ratios)} times).")
    if (now.device, now.threads) != (before.device, before.threads):
        summary.append(f"The earlier run was on another machine: {before.device}, CPU threads: {before.threads}.")
    columns = ("framework", "dtype", "case", "what", "direction", "before ms", "now ms", "now/before", "verdict")
    figures = {"geomean": geomean(ratios) if ratios else None, "regressions": len(regressions)}
    return Table(f"{now.study}: against the run of {before.date}", columns, cells, tuple(summary), figures)


def verdict(now: Row, then: Row) -> str:
    """``failed: regression`` where something got worse by more than the spread of both runs; ``faster``; or nothing."""
    if now.failure:
        return "" if then.failure else f"failed: regression, {now.failure}"
    value = _ratio(now, then)
    if value is None or now.seconds is None or then.seconds is None:
        return ""
    # An interquartile range to either side.
    doubt = max(NOISE * then.seconds, (now.spread or 0.0) + (then.spread or 0.0))
    if now.seconds - then.seconds > doubt:
        return "failed: regression"
    return "faster" if then.seconds - now.seconds > doubt else ""


def _ratio(now: Row, then: Row) -> float | None:
    return now.seconds / then.seconds if now.seconds is not None and then.seconds else None
