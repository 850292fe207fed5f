"""Charts as Vega-Lite specifications: the page, SVG and PNG are drawn from the same one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any
from zlib import crc32

from einops_fast.profiles.cases import curve
from einops_fast.profiles.reporting.cells import (
    NOISE,
    Line,
    by_case,
    gigabytes,
    interval,
    over_floor,
    speedup,
    teraflops,
)
from einops_fast.profiles.reporting.records import Ceiling, Row, is_ours, is_own

OURS, BEHIND = "#0072b2", "#b80000"
NATIVE = "native", "einsum"

# Colours and shapes of all others, told apart by those who see fewer colours.
STYLES = (
    ("#d55e00", "square"), ("#e69f00", "diamond"), ("#009e73", "triangle-up"), ("#cc79a7", "triangle-down"),
    ("#555555", "cross"), ("#4a4a9c", "triangle-right"), ("#56b4e9", "triangle-left"), ("#8a5a2b", "wedge"),
)  # fmt: skip

# Whose are which; a name that isn't here takes the place that it falls on, the same in every chart.
PLACES = (
    NATIVE, ("opt_einsum", "einsum_optimize", "cudnn", "sdpa"), ("compile", "no_einsum", "fa4"),
    ("cupy", "th_einsum", "flash", "liger"), ("flex", "quack"), ("efficient", "linear"), ("triton", "patched"),
    ("naive", "contract_expression"),
)  # fmt: skip

MANY = 4  # Cases from which on they are worth a curve or a plane

PRODUCT = 16  # FLOPs per byte from which on a curve is told in FLOP/s and not in B/s

CONFIG = {
    "aria": False,
    "axis": {"labelLimit": 0, "titleFontWeight": "normal", "gridColor": "#dddddd"},
    "legend": {"labelLimit": 0, "orient": "bottom", "columns": 5, "symbolStrokeWidth": 2},
    "title": {"anchor": "start", "limit": 0, "subtitleColor": "#444444", "subtitleLimit": 0},
    "view": {"stroke": None},
}

MARK = {"type": "point", "size": 36, "fill": "white", "strokeWidth": 1.6, "opacity": 1}

Value = Callable[[Row], float | None]
Spec = dict[str, Any]


@dataclass(frozen=True)
class Chart:
    """A specification, and the end of its file's name; nothing for a study's main chart."""

    name: str
    spec: Spec


def _label(way: str) -> str:
    return f"{way} (ours)" if is_own(way) and way != "ours" else way


def _style(way: str) -> tuple[str, str]:
    if is_ours(way):
        return OURS, "circle"
    place = next((at for at, names in enumerate(PLACES) if way in names), crc32(way.encode()) % len(STYLES))
    return STYLES[place]


def chart(name: str, title: str, panels: Sequence[Spec], rows: Iterable[Row], told: Sequence[str] = ()) -> Chart:
    """Set panels side by side, with one legend for all of them, ours first, and words above."""
    ways = sorted(dict.fromkeys(row.what for row in rows), key=lambda way: (not is_ours(way), not is_own(way)))
    colours, shapes = zip(*map(_style, ways), strict=True)
    names = list(map(_label, ways))
    encoding = {
        "color": {"field": "way", "type": "nominal", "title": None, "scale": {"domain": names, "range": colours}},
        "shape": {"field": "way", "type": "nominal", "title": None, "scale": {"domain": names, "range": shapes}},
    }
    for panel in panels:
        for layer in panel["layer"]:
            for channel in layer.pop("by_way", ()):
                layer["encoding"][channel] = {**layer["encoding"].get(channel, {}), **encoding[channel]}
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": {"text": title, "subtitle": ["Thin lines are the interquartile ranges of rounds.", *told]},
        "background": "white",
        "config": CONFIG,
        "columns": 3,
        "concat": list(panels),
        "resolve": {"scale": {"color": "shared", "shape": "shared"}},
    }
    return Chart(name, spec)


def _noise(row: Row, value: float) -> tuple[float, float]:
    """Return the ends of a value, which is longer or shorter by the share that its time is."""
    low, high = (end / (row.seconds or 1.0) for end in interval(row))
    return value * low, value * high


# A line per case


def case_chart(
    name: str, title: str, rows: Sequence[Row], value: Value, axis: str, *, ratios: bool, failures: Sequence[str] = ()
) -> Chart | None:
    """Return a line per case and a panel per direction: ours as a bar, red where it is behind, and the others as marks.

    ``ratios`` begin at 1 on a logarithmic axis, the largest first; others begin at 0 and keep their order.
    """
    panels = []
    for backward, direction in ((False, "forward"), (True, "forward and backward")):
        group = [row for row in rows if row.backward is backward]
        if any(is_ours(row.what) for row in group):
            panels.append(_case_panel(group, value, axis, direction, ratios))
    told = "Red: behind the native call or the best peer. "
    told = f"{told}{NOISE}: within noise of the faster of them, as the thin lines overlap."
    lines = [told, *(line for text in failures for line in wrap(f"failed: {text}", 110))]
    return chart(name, title, panels, rows, lines) if panels else None


def _case_panel(rows: Sequence[Row], value: Value, axis: str, title: str, ratios: bool) -> Spec:
    labels: dict[str, float] = {}
    points = []
    for case, ways in by_case(rows).items():
        own = next((row for what, row in ways.items() if is_ours(what)), None)
        if own is None:
            continue
        found = value(own)
        told = "failed" if own.failure else "–" if found is None else f"{found:.3g}"
        line = Line(ways, own, next((ways[name] for name in NATIVE if name in ways), None))
        label = f"{case}  {told}" + f" {NOISE}" * line.is_even
        labels[label] = found or 0.0
        for what, row in ways.items():
            if number := value(row):
                low, high = _noise(row, number)
                point = {"case": label, "way": _label(what), "value": number, "low": low, "high": high}
                points.append({**point, "ours": row is own, "behind": row is own and line.is_behind})
    order = sorted(labels, key=lambda label: -labels[label]) if ratios else list(labels)
    scale = {"type": "log", "nice": False, "padding": 8} if ratios else {"zero": True}
    failed = {"condition": {"test": "indexof(datum.label, '  failed') >= 0", "value": BEHIND}, "value": "black"}
    x = {"field": "value", "type": "quantitative", "title": axis, "scale": scale}
    noise = {"x": {"field": "low", "type": "quantitative", "title": axis, "scale": scale}, "x2": {"field": "high"}}
    behind = {"condition": {"test": "datum.behind", "value": BEHIND}}
    dark = {"condition": {"test": "datum.ours", "value": "black"}}
    start = 1 if ratios else 0
    return {
        "title": title,
        "width": 460,
        "height": {"step": 16},
        "data": {"values": points},
        "encoding": {
            "y": {"field": "case", "type": "nominal", "title": None, "scale": {"domain": order},
                  "axis": {"labelColor": failed, "ticks": False}},
        },
        "layer": [
            {"transform": [{"filter": "datum.ours"}], "mark": {"type": "bar", "height": 8},
             "encoding": {"x": x, "x2": {"datum": start}, "color": behind}, "by_way": ["color"]},
            {"transform": [{"filter": "!datum.ours"}], "mark": MARK,
             "encoding": {"x": x}, "by_way": ["color", "shape"]},
            {"mark": {"type": "rule", "strokeWidth": 1.2}, "encoding": {**noise, "color": dark}, "by_way": ["color"]},
            {"data": {"values": [{}]}, "mark": {"type": "rule", "color": "black"},
             "encoding": {"x": {"datum": start, "type": "quantitative"}, "y": None}},
        ],
    }  # fmt: skip


# Curves and points in a plane


def curves(rows: Iterable[Row]) -> dict[str, list[tuple[float, Row]]]:
    """Return sizes and rows by curve, if it has many; those that are no point of one by the bytes that they move."""
    found: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        name, size = curve(row.case) or ("", row.moved or 0)
        found.setdefault(name, []).append((size, row))
    return {name: points for name, points in found.items() if _are_many(row for _, row in points)}


def _are_many(rows: Iterable[Row]) -> bool:
    return len({row.case for row in rows}) >= MANY


def plane(
    title: str,
    points: Sequence[tuple[float, Row]],
    value: Value,
    axes: tuple[str, str],
    *,
    joined: bool = False,
    roof: Mapping[float, float] | None = None,
    roof_label: str = "",
) -> Spec:
    """Return a panel with a mark for each row at x and its value; no value is above the line of ``roof``."""
    values = []
    for x, row in points:
        if number := value(row):
            low, high = _noise(row, number)
            values.append({"x": x, "value": number, "way": _label(row.what), "low": low, "high": high})
    across = {"field": "x", "type": "quantitative", "title": axes[0],
              "scale": {"type": "log", "base": 2 if joined else 10, "nice": False}}  # fmt: skip
    scale = {"zero": True} if joined else {"type": "log"}
    up = {"field": "value", "type": "quantitative", "title": f"{axes[1]} (more is better)", "scale": scale}
    noise = {"y": {**up, "field": "low"}, "y2": {"field": "high"}}
    layers: list[Spec] = [
        {"mark": {"type": "rule"}, "encoding": {"x": across, **noise}, "by_way": ["color"]},
        {"mark": MARK, "encoding": {"x": across, "y": up}, "by_way": ["color", "shape"]},
    ]
    if joined:
        layers.insert(0, {"mark": "line", "encoding": {"x": across, "y": up}, "by_way": ["color"]})
    if roof:
        corners = [{"x": x, "value": y} for x, y in roof.items()]
        line = {"mark": {"type": "line", "color": "black"}, "encoding": {"x": across, "y": up}}
        last = [{**corners[-1], "told": roof_label}]
        text = {"mark": {"type": "text", "align": "right", "dy": -6},
                "encoding": {"x": across, "y": up, "text": {"field": "told"}}}  # fmt: skip
        layers += [{"data": {"values": corners}, **line}, {"data": {"values": last}, **text}]
    return {"title": title, "width": 300, "height": 220, "data": {"values": values}, "layer": layers}


# Of any study


def general_charts(rows: Sequence[Row], ceiling: Ceiling | None, title: str) -> list[Chart]:
    """Return charts of forward calls of one framework and dtype, those that there are measurements for."""
    failures = [f"{row.case}: {row.what} {row.failure}" for row in rows if row.failure and not row.guest]
    found: list[Chart | None] = []
    if any(row.floor for row in rows):
        floor = "time / floor, log scale (less is better; at 1 the device itself does no more)"
        told = f"{title}: time over the device's floor"
        found.append(case_chart("", told, rows, over_floor, floor, ratios=True, failures=failures))
    if any(row.speedup for row in rows if is_ours(row.what)):
        native = "native time / this, log scale (right of 1 is faster)"
        told = f"{title}: native time over this"
        found.append(case_chart("native", told, rows, speedup, native, ratios=True))
    priced = [row for row in rows if row.seconds and row.moved]
    if panels := [_throughput(name, points) for name, points in sorted(curves(priced).items())]:
        found.append(chart("throughput", f"{title}: throughput over size", panels, priced))
    products = [row for row in priced if row.flops]
    if _are_many(products):
        found.append(chart("roofline", f"{title}: roofline", [_roofline(products, ceiling)], products))
    return [made for made in found if made is not None]


def _throughput(name: str, points: Sequence[tuple[float, Row]]) -> Spec:
    product = bool(name) and max((row.flops or 0) / (row.moved or 1) for _, row in points) > PRODUCT
    unit, value = ("TFLOP/s", teraflops) if product else ("GB/s", gigabytes)
    x = f"{name}: size" if name else "bytes of operands and result"
    return plane(name, points, value, (x, unit), joined=bool(name))


def _roofline(rows: Sequence[Row], ceiling: Ceiling | None) -> Spec:
    points = [((row.flops or 0) / (row.moved or 1), row) for row in rows]
    roof, label = {}, ""
    if ceiling is not None:
        corner = ceiling.flops / ceiling.bandwidth
        ends = (min(corner, *(x for x, _ in points)), corner, max(corner, *(x for x, _ in points)))
        roof = {x: min(x * ceiling.bandwidth, ceiling.flops) * 1e-12 for x in ends}
        label = f"{ceiling.bandwidth * 1e-9:.0f} GB/s, {ceiling.flops * 1e-12:.3g} TFLOP/s"
    x = "FLOPs per byte of operands and result"
    return plane("", points, teraflops, (x, "TFLOP/s"), roof=roof, roof_label=label)
