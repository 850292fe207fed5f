"""What is drawn, for files and for the page alike: charts of bars and of points, as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from einops_fast.profiles.cases import curve
from einops_fast.profiles.reporting.cells import by_case, gigabytes, teraflops, times
from einops_fast.profiles.reporting.records import Ceiling, Row, is_ours

__all__ = ["Bars", "BarsLine", "Chart", "Points", "bars", "curves", "general_charts", "series", "ways_of"]

PRODUCT = 16
"""FLOPs per byte from which on a curve is told in FLOP/s and not in B/s."""

Value = Callable[[Row], float | None]


@dataclass(frozen=True)
class BarsLine:
    """A case: its name with what ours reaches, values by way, what is told besides, and whether ours failed."""

    label: str
    values: dict[str, float]
    about: str = ""
    failed: bool = False


@dataclass(frozen=True)
class Bars:
    """A line per case.

    Attributes:
        title: of the panel.
        x: the label of its axis.
        lines: from top to bottom.
        barred: ways with a bar in each line; all others have a mark.
        ratios: bars begin at 1 in place of 0, and the axis is logarithmic.
    """

    title: str
    x: str
    lines: tuple[BarsLine, ...]
    barred: tuple[str, ...]
    ratios: bool = True


@dataclass(frozen=True)
class Points:
    """Points of every way in a plane.

    Attributes:
        title: of the panel.
        x: the label of its axis, which is logarithmic.
        y: the label of the other.
        series: by way, x and y of each point, and its name.
        joined: they are curves.
        roof: corners of the line that no point is above.
        roof_label: what it is.
        from_zero: the y axis begins at 0 in place of being logarithmic.
    """

    title: str
    x: str
    y: str
    series: dict[str, tuple[tuple[float, float, str], ...]]
    joined: bool = False
    roof: tuple[tuple[float, float], ...] = ()
    roof_label: str = ""
    from_zero: bool = False


@dataclass(frozen=True)
class Chart:
    """Panels of one kind beside each other, with a name for files and the failures of ways to be told below."""

    name: str
    title: str
    panels: tuple[Bars | Points, ...]
    failures: tuple[str, ...] = ()


def ways_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The names of the ways, ours first."""
    return tuple(sorted(dict.fromkeys(row.what for row in rows), key=lambda name: not is_ours(name)))


def general_charts(rows: Sequence[Row], ceiling: Ceiling | None, title: str) -> list[Chart]:
    """Charts of any study, those that there are measurements for.

    Args:
        rows: of one framework, dtype and direction.
        ceiling: what the device reaches.
        title: what the charts are of.
    """
    charts = []
    failures = tuple(f"{row.case}: {row.what} {row.failure}" for row in rows if row.failure)
    if any(row.floor for row in rows):
        panel = _against(rows, lambda row: times(1, row.seconds, row.floor), _FLOOR)
        charts.append(Chart("floor", f"{title}: time over the device's floor", (panel,), failures))
    if any(row.speedup for row in rows if is_ours(row.what)):
        panel = _against(rows, lambda row: row.speedup, _NATIVE)
        charts.append(Chart("native", f"{title}: native time over this", (panel,)))
    priced = [row for row in rows if row.seconds and row.moved]
    if priced:
        panels = tuple(_throughput(name, some) for name, some in sorted(curves(priced).items()))
        charts.append(Chart("throughput", f"{title}: throughput over size", panels))
    if any(row.flops for row in priced):
        charts.append(Chart("roofline", f"{title}: roofline", (_roofline(priced, ceiling),)))
    return charts


_FLOOR = "time / floor, log scale (at 1 the device itself does no more)"
_NATIVE = "native time / this, log scale (right of 1 is faster)"


def _against(rows: Sequence[Row], value: Value, x: str) -> Bars:
    """Return a bar of ours in each case that has it, the longest first, with marks of the others."""
    ours = next((row.what for row in rows if is_ours(row.what)), "")
    lines = []
    for name, ways in by_case(rows).items():
        own = ways.get(ours)
        if own is not None:
            found = value(own)
            # What was measured without a native time beside it has no ratio.
            told = "failed" if own.failure else "no ratio" if found is None else f"{found:.2f}"
            values = {what: number for what, row in ways.items() if (number := value(row))}
            about = " ".join(filter(None, (own.equation, own.sizes, own.failure)))
            lines.append((found or 0.0, BarsLine(f"{name}  {told}", values, about, bool(own.failure))))
    lines.sort(key=lambda line: -line[0])
    return Bars("", x, tuple(line for _, line in lines), (ours,))


def bars(rows: Sequence[Row], ways: Sequence[str], value: Value, x: str, *, ratios: bool) -> tuple[Bars, ...]:
    """A panel per direction with a bar for each way in each case."""
    panels = []
    for backward, title in ((False, "forward"), (True, "forward and backward")):
        found = by_case(row for row in rows if row.backward is backward and row.seconds)
        present = tuple(way for way in ways if any(way in of for of in found.values()))
        lines = tuple(
            BarsLine(case, {way: value(of[way]) or 0.0 for way in present if way in of}) for case, of in found.items()
        )
        panels.append(Bars(title, x, lines, present, ratios))
    return tuple(panel for panel in panels if panel.lines)


def curves(rows: Iterable[Row]) -> dict[str, list[tuple[int, Row]]]:
    """Sizes and rows by curve; what is no point of one, by the bytes that it moves."""
    found: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        name, size = curve(row.case) or ("", row.moved or 0)
        found.setdefault(name, []).append((size, row))
    return found


def series(points: Sequence[tuple[float, Row]], value: Value) -> dict[str, tuple[tuple[float, float, str], ...]]:
    """The points of each way, by x."""
    return {
        way: tuple(sorted((x, y, row.case) for x, row in points if row.what == way and (y := value(row))))
        for way in ways_of(row for _, row in points)
    }


def _throughput(name: str, points: Sequence[tuple[int, Row]]) -> Points:
    product = bool(name) and max((row.flops or 0) / (row.moved or 1) for _, row in points) > PRODUCT
    unit, value = ("TFLOP/s", teraflops) if product else ("GB/s", gigabytes)
    x = f"{name}: size" if name else "bytes of operands and result"
    return Points(name, x, unit, series(points, value), joined=bool(name))


def _roofline(rows: Sequence[Row], ceiling: Ceiling | None) -> Points:
    points = [((row.flops or 0) / (row.moved or 1), row) for row in rows if row.flops]
    found = series(points, teraflops)
    roof: tuple[tuple[float, float], ...] = ()
    label = ""
    if ceiling is not None:
        corner = ceiling.flops / ceiling.bandwidth
        xs = [x for x, _ in points]
        ends = (min(*xs, corner), corner, max(*xs, corner))
        roof = tuple((x, min(x * ceiling.bandwidth, ceiling.flops) * 1e-12) for x in ends)
        label = f"{ceiling.bandwidth * 1e-9:.0f} GB/s, {ceiling.flops * 1e-12:.3g} TFLOP/s"
    return Points("", "FLOPs per byte of operands and result", "TFLOP/s", found, roof=roof, roof_label=label)
