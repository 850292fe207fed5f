"""Pictures of plans and of what was fused: one Vega-Lite specification each, for notebooks, SVG and PNG."""

from __future__ import annotations

import json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_RED, _BLUE, _LETTER, _LINE = "#b80000", "#0072b2", 6.4, 14


@dataclass(frozen=True)
class Picture:
    """A specification for Vega-Lite, which vl-convert draws; a notebook shows it.

    Attributes:
        spec: the specification.
    """

    spec: Mapping[str, Any]

    def svg(self) -> str:
        """Return the picture as SVG; the same specification gives the same text."""
        return str(_drawing().vegalite_to_svg(json.dumps(self.spec)))

    def png(self) -> bytes:
        """Return the picture as PNG."""
        return bytes(_drawing().vegalite_to_png(json.dumps(self.spec), scale=1.25))

    def save(self, path: str | Path) -> None:
        """Write a file: PNG or the specification where its name ends in ``.png`` or ``.json``, else SVG."""
        kind = Path(path).suffix.lower()
        data = self.png() if kind == ".png" else (json.dumps(self.spec) if kind == ".json" else self.svg()).encode()
        Path(path).write_bytes(data)

    def image(self, name: str = "") -> str:
        """Return the picture as an element of HTML, which sees no styles and names of others."""
        data = b64encode(self.svg().encode()).decode()
        return f'<img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}">'

    def _repr_html_(self) -> str:
        return self.image()


class Pictured:
    """Something with a picture, which notebooks show above its words where vl-convert is installed."""

    @abstractmethod
    def plot(self) -> Picture:
        """Return its picture."""

    def _repr_html_(self) -> str:
        words = f"<pre>{escape(str(self))}</pre>"
        return words if find_spec("vl_convert") is None else self.plot()._repr_html_() + words


def _drawing() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise ImportError("pictures are drawn by vl-convert-python: pip install 'einops_fast[profile]'") from None
    return vl_convert


def _picture(title: str, subtitle: str, width: float, height: float, *layers: Mapping[str, Any]) -> Picture:
    return Picture(
        {
            "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
            "background": "white",
            "title": {"text": title, "subtitle": subtitle, "anchor": "start", "limit": 0, "subtitleLimit": 0},
            "config": {"view": {"stroke": None}, "axis": {"labelLimit": 0}},
            "width": width,
            "height": height,
            "layer": layers,
        }
    )


@dataclass(frozen=True)
class Box:
    """What a tree has at a place: its lines, whose results it takes, and which of these are drawn in red."""

    lines: Sequence[str]
    reads: Sequence[int] = ()
    red: Sequence[bool] = ()


def tree(title: str, subtitle: str, boxes: Sequence[Box]) -> Picture:
    """Return boxes beside what they read, leaves on the left in the order that the last box reaches them."""
    rows: dict[int, float] = {}
    waiting, seen = [*range(len(boxes))], set[int]()  # the last one first
    while waiting:
        at = waiting.pop()
        if at not in seen and not boxes[at].reads:
            rows[at] = len(rows)
        waiting += [] if at in seen else reversed(boxes[at].reads)
        seen.add(at)
    columns: list[int] = []
    for at, box in enumerate(boxes):
        columns.append(1 + max((columns[read] for read in box.reads), default=-1))
        rows.setdefault(at, sum(rows[read] for read in box.reads) / max(len(box.reads), 1))
    widths = [0.0] * (max(columns) + 1)
    for column, box in zip(columns, boxes, strict=True):
        widths[column] = max(widths[column], 16 + _LETTER * max(map(len, box.lines)))
    tall = _LINE * max(len(box.lines) for box in boxes) + 8
    drawn: list[dict[str, Any]] = []
    for at, (column, box) in enumerate(zip(columns, boxes, strict=True)):
        left, top = sum(widths[:column]) + 60 * column, rows[at] * (tall + 14)
        right, bottom = left + widths[column], top + tall
        middle = {"xm": (left + right) / 2, "ym": (top + bottom) / 2, "lines": [*box.lines]}
        drawn.append({"x": left, "x2": right, "y": top, "y2": bottom, **middle})
    lines = [
        {"x": drawn[read]["x2"], "y": drawn[read]["ym"], "x2": drawn[at]["x"], "y2": drawn[at]["ym"], "red": red}
        for at, box in enumerate(boxes)
        for read, red in zip(box.reads, box.red, strict=True)
    ]
    width, height = max(box["x2"] for box in drawn), max(box["y2"] for box in drawn)
    x = {"type": "quantitative", "axis": None, "scale": {"domain": [0, width]}}
    y = {"type": "quantitative", "axis": None, "scale": {"domain": [0, height], "reverse": True}}
    ends = {"x": {**x, "field": "x"}, "y": {**y, "field": "y"}, "x2": {"field": "x2"}, "y2": {"field": "y2"}}
    colour = {"condition": {"test": "datum.red", "value": _RED}, "value": "#777777"}
    words = {"x": {**x, "field": "xm"}, "y": {**y, "field": "ym"}, "text": {"field": "lines"}}
    text = {"type": "text", "baseline": "middle", "lineHeight": _LINE, "dy": (_LINE + 8 - tall) / 2}
    return _picture(
        title, subtitle, width, height,
        {"data": {"values": lines}, "mark": "rule", "encoding": {**ends, "color": colour}},
        {"data": {"values": drawn}, "mark": {"type": "rect", "fill": "#f5f7f9", "stroke": "#999999"}, "encoding": ends},
        {"data": {"values": drawn}, "mark": text, "encoding": words},
    )  # fmt: skip


def bars(title: str, subtitle: str, rows: Iterable[tuple[str, float, str]]) -> Picture:
    """Return a line for each label with its value and words; red where it has no value."""
    values = [{"label": f"{number}. {label}", "value": value, "told": told}
              for number, (label, value, told) in enumerate(rows, 1)]  # fmt: skip
    y = {"field": "label", "type": "nominal", "title": None, "sort": None, "axis": {"ticks": False, "domain": False}}
    x = {"field": "value", "type": "quantitative", "axis": None}
    colour = {"condition": {"test": "datum.value > 0", "value": "black"}, "value": _RED}
    words = {"y": y, "x": x, "text": {"field": "told"}, "color": colour}
    return _picture(
        title, subtitle, 240, 20 * max(len(values), 1),
        {"data": {"values": values}, "mark": {"type": "bar", "height": 10, "color": _BLUE},
         "encoding": {"y": y, "x": x}},
        {"data": {"values": values}, "mark": {"type": "text", "align": "left", "dx": 5}, "encoding": words},
    )  # fmt: skip
