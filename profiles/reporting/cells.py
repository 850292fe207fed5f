"""Tables of rows, by columns: a heading, and what a line shows below it. Of many ways, a line is a case."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from einops_fast.profiles.reporting.records import Row, is_ours
from einops_fast.profiles.reporting.report import Table, geomean

__all__ = [
    "BEST_OVER_OURS", "BEST_PEAK", "BEST_PEER", "CASE", "CHECK", "NATIVE_PEAK", "OURS_PEAK", "SIZES", "VERDICT",
    "Column", "Line", "best_over_ours", "by_case", "by_way", "comparison", "gigabytes", "lines_of", "megabytes",
    "milliseconds", "number", "of", "over_floor", "percent", "ratio", "table", "teraflops", "time_of", "times",
    "verdict",
]  # fmt: skip

BEHIND = 0.98
"""Ours is behind below this ratio to the best peer; what is nearer to 1 is within the noise of a run."""

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Column(Generic[Kind]):
    """A heading, and the cell of a line."""

    head: str
    cell: Callable[[Kind], str]


def table(
    title: str, lines: Iterable[Kind], columns: Sequence[Column[Kind]], summary: Sequence[str] = (), **figures: Any
) -> Table:
    """The table of these lines."""
    cells = [tuple(column.cell(line) for column in columns) for line in lines]
    return Table(title, tuple(column.head for column in columns), cells, tuple(summary), figures)


@dataclass(frozen=True)
class Line:
    """The rows of a case by way, and among them those of ours, of the best peer and of the native way."""

    ways: Mapping[str, Row]
    ours: Row | None
    best: Row | None
    native: Row | None

    @property
    def some(self) -> Row:
        """The row of ours, or else any."""
        return self.ours or next(iter(self.ways.values()))


def lines_of(rows: Sequence[Row], ours: str, native: str = "native") -> list[Line]:
    """A line for each case."""
    lines = []
    for ways in by_case(rows).values():
        own = ways.get(ours)
        lines.append(Line(ways, own, ways.get(own.best) if own else None, ways.get(native)))
    return lines


def by_way(ways: Iterable[str], unit: str, cell: Callable[[Row | None], str]) -> list[Column[Line]]:
    """A column for each way."""

    def column(way: str) -> Column[Line]:
        return Column(f"{way} {unit}", lambda line: cell(line.ways.get(way)))

    return list(map(column, ways))


def by_case(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """The rows of each case by way."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.what] = row
    return cases


# Numbers


def times(factor: float, numerator: float | None, denominator: float | None = 1.0) -> float | None:
    """A factor times a ratio, where there is one."""
    return factor * numerator / denominator if numerator is not None and denominator else None


def of(row: Row | None, name: str) -> Any:
    """A field of a row, if there is the row."""
    return getattr(row, name) if row is not None else None


def teraflops(row: Row | None) -> float | None:
    """TFLOP/s of a row."""
    return times(1e-12, of(row, "flops") or None, of(row, "seconds"))


def gigabytes(row: Row | None) -> float | None:
    """GB/s of a row."""
    return times(1e-9, of(row, "moved"), of(row, "seconds"))


def best_over_ours(row: Row | None) -> float | None:
    """Time of the best peer over that of ours."""
    return times(1, 1.0, of(row, "to_best"))


# Cells


def milliseconds(seconds: float | None) -> str:
    """Seconds as the cell of a table."""
    return "–" if seconds is None else f"{seconds * 1e3:.3f}"


def time_of(row: Row | None) -> str:
    """The time of a row as the cell of a table."""
    return milliseconds(of(row, "seconds"))


def ratio(value: float | None) -> str:
    """A ratio as the cell of a table."""
    return "–" if value is None else f"{value:.2f}"


def percent(value: float | None) -> str:
    """A share as the cell of a table."""
    return "–" if value is None else f"{value:.0%}"


def number(value: float | None) -> str:
    """A throughput as the cell of a table: ``435``, ``9.6``."""
    return "–" if value is None else f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def megabytes(row: Row | None) -> str:
    """The most memory that a call holds, as the cell of a table."""
    return "–" if of(row, "peak_bytes") is None else f"{of(row, 'peak_bytes') * 1e-6:.1f}"


def verdict(rows: Iterable[Row]) -> str:
    """Whether all is right; what others fail at is told in other words, unless they are wrong."""
    rows = list(rows)
    failed = [f"{row.what} {row.failure}" for row in rows if row.failure and not row.guest]
    absent = [f"{row.what}: {row.failure}" for row in rows if row.failure and row.guest]
    told = f"failed: {'; '.join(failed)}" if failed else "right"
    return f"{told} (without {'; '.join(absent)})" if absent else told


CHECK = Column[Row]("check", lambda row: f"failed: {row.failure}" if row.failure else "right")


# Columns of a line per case

CASE = Column[Line]("case", lambda line: line.some.case)
SIZES = Column[Line]("sizes", lambda line: line.some.sizes)
BEST_PEER = Column[Line]("best peer", lambda line: of(line.best, "what") or "–")
BEST_OVER_OURS = Column[Line]("best/ours", lambda line: ratio(best_over_ours(line.ours)))
OURS_PEAK = Column[Line]("ours peak MB", lambda line: megabytes(line.ours))
NATIVE_PEAK = Column[Line]("native peak MB", lambda line: megabytes(line.native))
BEST_PEAK = Column[Line]("best peak MB", lambda line: megabytes(line.best))
VERDICT = Column[Line]("check", lambda line: verdict(line.ways.values()))


def over_floor(row: Row | None) -> float | None:
    """Time of a row over the device's floor."""
    return times(1, of(row, "seconds"), of(row, "floor"))


def comparison(rows: Sequence[Row]) -> tuple[list[str], dict[str, Any]]:
    """What follows for ours from all cases: in lines, and for programs."""
    ours = {row.case: row for row in rows if is_ours(row.what)}
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
    figures = {"best/ours": ratios, "geomean": geomean(ratios.values()) if ratios else None, "failed": failed}
    return lines, figures
