"""The one table of all studies, a line per case: numbers of its rows, and how cells show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeVar

from einops_fast.profiles.reporting.records import Row, is_ours
from einops_fast.profiles.reporting.report import Table, geomean

NOTHING = "–"
UNKNOWN_SPREAD = 0.02  # of the time, where only one round was timed
NOISE = "≈"  # within the noise of each other

Kind = TypeVar("Kind")


def table(title: str, lines: Iterable[Kind], columns: Mapping[str, Callable[[Kind], str]], *summary: str) -> Table:
    """Return the table of these lines, without columns that say nothing of any."""
    lines = list(lines)
    found = {head: [cell(line) for line in lines] for head, cell in columns.items()}
    told = {head: cells for head, cells in found.items() if set(cells) - {NOTHING, ""}}
    return Table(title, tuple(told), list(zip(*told.values(), strict=True)), summary)


def by_case(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Return the rows of each case by way."""
    cases: dict[str, dict[str, Row]] = {}
    for row in rows:
        cases.setdefault(row.case, {})[row.what] = row
    return cases


# Numbers of a row


def times(factor: float, numerator: float | None, denominator: float | None = 1.0) -> float | None:
    """Return a factor times a ratio, where there is one."""
    return factor * numerator / denominator if numerator is not None and denominator else None


def teraflops(row: Row) -> float | None:
    """Return TFLOP/s of a row."""
    return times(1e-12, row.flops or None, row.seconds)


def gigabytes(row: Row) -> float | None:
    """Return GB/s of a row."""
    return times(1e-9, row.moved, row.seconds)


def over_floor(row: Row) -> float | None:
    """Return time of a row over the device's floor."""
    return times(1, row.seconds, row.floor)


def best_over_ours(row: Row) -> float | None:
    """Return time of the best peer over that of ours."""
    return times(1, 1.0, row.to_best)


def speedup(row: Row) -> float | None:
    """Return time of the native way over this."""
    return row.speedup


def interval(row: Row) -> tuple[float, float]:
    """Return the ends of the seconds of a row: half of the interquartile range of its rounds to each side."""
    seconds = row.seconds or 0.0
    half = (UNKNOWN_SPREAD * seconds if row.spread is None else row.spread) / 2
    return max(seconds - half, 0.01 * seconds), seconds + half


def within_noise(row: Row, other: Row | None) -> bool:
    """Return whether two rows were timed whose intervals overlap."""
    if other is None or row.seconds is None or other.seconds is None:
        return False
    (low, high), (other_low, other_high) = interval(row), interval(other)
    return low <= other_high and other_low <= high


def is_behind(ours: Row, other: Row | None, slower: float | None) -> bool:
    """Return whether a row of ours takes ``slower`` times as long as another, and that is more than 1 beyond noise."""
    return (slower or 0.0) > 1 and not within_noise(ours, other)


# Cells


def milliseconds(seconds: float | None) -> str:
    """Return seconds as the cell of a table."""
    return NOTHING if seconds is None else f"{seconds * 1e3:.3f}"


def ratio(value: float | None) -> str:
    """Return a ratio as the cell of a table."""
    return NOTHING if value is None else f"{value:.2f}"


def megabytes(count: int | None) -> str:
    """Return bytes as the cell of a table."""
    return NOTHING if count is None else f"{count * 1e-6:.1f}"


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.0f}" if value >= 99.5 else f"{value:.3g}"


def _compared(value: Callable[[Row], float | None], other: Callable[[Line], Row | None]) -> Callable[[Line], str]:
    """Return the cell with a ratio of another row to ours, marked where it is within noise."""
    return lambda line: ratio(value(line.ours)) + f" {NOISE}" * within_noise(line.ours, other(line))


def verdict(rows: Iterable[Row]) -> str:
    """Return whether all is right; what others fail at is told in other words, unless they are wrong."""
    rows = list(rows)
    failed = [f"{row.what} {row.failure}" for row in rows if row.failure and not row.guest]
    absent = [f"{row.what}: {row.failure}" for row in rows if row.failure and row.guest]
    told = f"failed: {'; '.join(failed)}" if failed else "right"
    return f"{told} (without {'; '.join(absent)})" if absent else told


def side_by_side(ways: Sequence[str], value: Callable[[Row], float | None], digits: str) -> Callable[[Line], str]:
    """Return the cell with a number of each way of a line."""

    def cell(line: Line) -> str:
        values = [value(line.ways[way]) if way in line.ways else None for way in ways]
        return " / ".join(NOTHING if each is None else format(each, digits) for each in values)

    return cell


# A line per case


@dataclass(frozen=True)
class Line:
    """The rows of a case by way: among them that of ours, and the one of ours forward alone."""

    ways: Mapping[str, Row]
    ours: Row
    native: Row | None
    forward: Row | None = None

    @property
    def best(self) -> Row | None:
        return self.ways.get(self.ours.best)

    @property
    def is_even(self) -> bool:
        """Whether ours is within noise of the faster of the best peer and the native way."""
        timed = [row for row in (self.best, self.native) if row and row.seconds]
        return within_noise(self.ours, min(timed, key=lambda row: row.seconds or inf, default=None))

    @property
    def is_behind(self) -> bool:
        """Whether ours is slower than the best peer or the native way, beyond noise."""
        to_native = times(1, 1.0, self.ours.speedup)
        return is_behind(self.ours, self.best, self.ours.to_best) or is_behind(self.ours, self.native, to_native)


def lines_of(rows: Sequence[Row], native: str) -> list[Line]:
    """Return a line for each case and direction that ours was measured in, or has failed in."""
    lines, forward = [], {row.case: row for row in rows if is_ours(row.what) and not row.backward}
    for backward in (False, True):
        for case, ways in by_case(row for row in rows if row.backward is backward).items():
            lines += [
                Line(ways, row, ways.get(native), forward.get(case) if backward else None)
                for what, row in ways.items()
                if is_ours(what)
            ]
    return lines


def _backward_alone(line: Line) -> str:
    """Tell the time of backward, and the share of its floor: what both directions take beyond a call forward."""
    both, alone = line.ours, line.forward
    if alone is None or not both.seconds or not alone.seconds or both.seconds <= alone.seconds:
        return NOTHING
    seconds = both.seconds - alone.seconds
    share = ((both.floor or 0.0) - (alone.floor or 0.0)) / seconds
    return f"{milliseconds(seconds)}, {share:.0%}"


def _time_of(way: str) -> Callable[[Line], str]:
    return lambda line: milliseconds(line.ways[way].seconds) if way in line.ways else NOTHING


def _peak_of(row: Row | None) -> str:
    return megabytes(row.peak_bytes if row else None)


# Columns before those of the ways.
BEFORE: dict[str, Callable[[Line], str]] = {
    "case": lambda line: line.ours.case,
    "called": lambda line: line.ours.equation,
    "sizes": lambda line: line.ours.sizes,
}

# Columns after those of the ways.
AFTER: dict[str, Callable[[Line], str]] = {
    "ours spread ms": lambda line: milliseconds(line.ours.spread),
    "backward ms, of floor": _backward_alone,
    "ours/floor": lambda line: ratio(over_floor(line.ours)),
    "best peer": lambda line: line.ours.best or NOTHING,
    "best/ours": _compared(best_over_ours, lambda line: line.best),
    "native/ours": _compared(speedup, lambda line: line.native),
    "GB/s": lambda line: _number(gigabytes(line.ours)),
    "TFLOP/s": lambda line: _number(teraflops(line.ours)),
    "ours by": lambda line: line.ours.chosen or NOTHING,
    "kernels of ours": lambda line: line.ours.kernels or NOTHING,
    "host µs": lambda line: f"{line.ours.host * 1e6:.0f}" if line.ours.host else NOTHING,
    "moved MB": lambda line: megabytes(line.ours.moved),
    "ours peak MB": lambda line: _peak_of(line.ours),
    "native peak MB": lambda line: _peak_of(line.native),
    "best peak MB": lambda line: _peak_of(line.best),
    "check": lambda line: verdict(line.ways.values()),
}

# What is summed up as a geometric mean; more is better but for the first.
RATIOS: dict[str, Callable[[Row], float | None]] = {
    "ours/floor": over_floor,
    "best/ours": best_over_ours,
    "native/ours": speedup,
}


def noise_told(lines: Sequence[Line]) -> list[str]:
    """Return a sentence about the lines in which ours is within noise of others, if any."""
    even = {"the best peer": sum(within_noise(line.ours, line.best) for line in lines),
            "native": sum(within_noise(line.ours, line.native) for line in lines)}  # fmt: skip
    told = [f"{count} of {name}" for name, count in even.items() if count]
    return [f"{NOISE}: within noise, as spreads overlap: {', '.join(told)}."] if told else []


def comparison(title: str, lines: Sequence[Line], ways: Sequence[str]) -> Table:
    """Return the table of a framework, dtype and direction, with what follows for ours from all cases."""
    ours = [line.ours for line in lines]
    ratios: dict[str, dict[str, float]] = {}
    for name, value in RATIOS.items():
        found = {row.case: number for row in ours if (number := value(row)) is not None}
        if found:
            ratios[name] = found
    behind = {line.ours.case: best_over_ours(line.ours) or 0.0 for line in lines
              if is_behind(line.ours, line.best, line.ours.to_best)}  # fmt: skip
    failed = [row.case for row in ours if row.failure]
    means = {name: geomean(values.values()) for name, values in ratios.items()}
    worst = {name: (max if name == "ours/floor" else min)(values, key=values.__getitem__)
             for name, values in ratios.items()}  # fmt: skip
    summary = []
    if ratios:
        told = (f"{name} {means[name]:.2f} ({len(values)})" for name, values in ratios.items())
        summary.append(f"Geometric means: {', '.join(told)}.")
        told = (f"{name} {ratios[name][case]:.2f} ({case})" for name, case in worst.items())
        summary.append(f"Worst: {', '.join(told)}.")
    if "best/ours" in ratios:
        best = {row.case: row.best for row in ours}
        names = ", ".join(
            f"{case} ({behind[case]:.2f}, {best[case]})" for case in sorted(behind, key=lambda case: behind[case])
        )
        count = f"Behind the best peer: {len(behind)} of {len(ratios['best/ours'])}"
        summary.append(f"{count}: {names}." if names else f"{count}.")
    summary += noise_told(lines)
    if failed:
        summary.append(f"Ours failed: {', '.join(failed)}.")
    columns = {**BEFORE, **{f"{way} ms": _time_of(way) for way in ways}, **AFTER}
    figures = {"ratios": ratios, "geomean": means, "worst": worst, "behind": behind, "failed": failed}
    return replace(table(title, lines, columns, *summary), figures=figures)
