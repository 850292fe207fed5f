"""Plots of the contraction study: how far from the device's floor each case is, by ours and by the best peer.

``python -m einops_fast.profiles.plots FILE.json …`` draws them from kept results.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.contraction_tables import OURS
from einops_fast.profiles.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Dot", "dots", "draw"]

COLOURS = {OURS: "#0072b2", "native": "#d55e00", "opt_einsum": "#e69f00", "compile": "#009e73", "cupy": "#cc79a7"}
"""By way, and told apart by those who see fewer colours; others get :data:`OTHER_COLOUR`."""

OTHER_COLOUR = "#555555"

FASTER, SLOWER = "#0072b2", "#bb0000"
"""Of the line from ours to the best peer."""

MARKERS = {OURS: "o", "native": "s", "opt_einsum": "D", "compile": "^", "cupy": "v"}


@dataclass(frozen=True)
class Dot:
    """A line of the plot: one case.

    Attributes:
        case: its name.
        ours: our time over the floor; ``None`` if ours failed.
        best: the fastest peer; empty if there is none.
        peer: its time over the floor.
        failures: what failed, and why.
    """

    case: str
    ours: float | None
    best: str
    peer: float | None
    failures: tuple[str, ...] = ()


def dots(rows: Sequence[Row]) -> list[Dot]:
    """The lines of the plot, from the case that ours is farthest from the floor in; those that failed last."""
    cases: dict[str, list[Row]] = {}
    for row in rows:
        cases.setdefault(row.case, []).append(row)
    return sorted((_dot(name, ways) for name, ways in cases.items()), key=lambda dot: -(dot.ours or 0.0))


def draw(rows: Sequence[Row], stem: Path) -> list[Path]:
    """Draw what was measured against a floor, if matplotlib is here: an SVG and a PNG per framework and dtype."""
    groups: dict[tuple[str, str], list[Row]] = {}
    forward = [row for row in rows if not row.backward]
    floored = {(row.framework, row.dtype) for row in forward if row.floor is not None}
    for row in forward:
        if (row.framework, row.dtype) in floored:
            groups.setdefault((row.framework, row.dtype), []).append(row)
    if not groups:
        return []
    try:
        import_module("matplotlib.figure")
    except ImportError as missing:
        print(f"no plots: they need matplotlib (pip install 'einops_fast[profile]'): {missing}", file=sys.stderr)
        return []
    several = len({framework for framework, _ in groups}) > 1
    paths = []
    for (framework, dtype), group in groups.items():
        named = f"{framework}-{dtype}" if several else dtype
        paths += _save(dots(group), f"{framework}, {dtype}", stem.with_name(f"{stem.name}-{named}"))
    return paths


def _dot(case: str, ways: Sequence[Row]) -> Dot:
    right = {row.what: row.seconds / row.floor for row in ways if row.seconds is not None and row.floor}
    others = {name: value for name, value in right.items() if name != OURS}
    best = min(others, key=lambda name: others[name], default="")
    failures = tuple(f"{row.what} {row.failure}" for row in ways if row.failure)
    return Dot(case, right.get(OURS), best, others.get(best), failures)


def _save(lines: Sequence[Dot], title: str, stem: Path) -> list[Path]:
    import matplotlib

    # Text stays text, and the same results give the same file.
    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "einops_fast", "font.size": 8.5}
    with matplotlib.rc_context(style):
        figure = _figure(lines, title)
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
        figure.savefig(paths[0], metadata={"Date": None})
        figure.savefig(paths[1], dpi=150)
    return paths


def _figure(lines: Sequence[Dot], title: str) -> Any:
    # Not pyplot: nothing is shown, and no display is asked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    failed = [f"{dot.case}: {failure}" for dot in lines for failure in dot.failures]
    below = 0.16 * (len(failed) + 1) if failed else 0.0
    figure = Figure(figsize=(8.5, 1.6 + 0.2 * len(lines) + below), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _plot(axes, lines)
    figure.suptitle(f"{title}: time over the device's floor", x=0.01, ha="left", fontsize=10, fontweight="bold")
    if failed:
        figure.supxlabel("\n".join(("failed:", *(_cut(text) for text in failed))), x=0.01, ha="left", fontsize=7)
    return figure


def _plot(axes: Axes, lines: Sequence[Dot]) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    heights = range(len(lines))[::-1]
    both = [(h, dot.ours, dot.peer) for h, dot in zip(heights, lines, strict=True) if dot.ours and dot.peer]
    for colour, label, slower in ((FASTER, "ours is faster", False), (SLOWER, "ours is slower", True)):
        pairs = [pair for pair in both if (pair[1] > pair[2]) is slower]
        if pairs:
            places, ours, peers = map(list, zip(*pairs, strict=True))
            axes.hlines(places, ours, peers, colors=colour, alpha=0.35, linewidths=2.5, label=label, zorder=1)
    dot_places = [(dot.ours, height) for height, dot in zip(heights, lines, strict=True) if dot.ours is not None]
    _scatter(axes, dot_places, OURS, "ours", hollow=False)
    for name in sorted({dot.best for dot in lines if dot.best}):
        points = [(dot.peer, height) for height, dot in zip(heights, lines, strict=True) if dot.best == name]
        _scatter(axes, points, name, f"best peer: {name}", hollow=True)
    axes.axvline(1.0, color="black", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 12 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("time / floor, log scale (at 1 the device itself does no more)")
    axes.set_yticks(list(heights), [f"{dot.case}  {_told(dot)}" for dot in lines])
    axes.set_ylim(-0.8, len(lines) - 0.2)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, fontsize=8, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _scatter(axes: Axes, points: Sequence[tuple[Any, int]], name: str, label: str, *, hollow: bool) -> None:
    colour = COLOURS.get(name, OTHER_COLOUR)
    axes.scatter(
        [x for x, _ in points],
        [y for _, y in points],
        # Where both are at one place, the larger frames the smaller.
        s=42 if hollow else 18,
        marker=MARKERS.get(name, "P"),
        facecolors="none" if hollow else colour,
        edgecolors=colour,
        linewidths=1.2,
        label=label,
        zorder=2,
    )


def _told(dot: Dot) -> str:
    return "failed" if dot.ours is None else f"{dot.ours:.2f}"


def _cut(text: str, longest: int = 150) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def main(files: Sequence[str]) -> None:
    """Draw the plots of kept results beside them."""
    for file in map(Path, files):
        rows = [Row(**row) for row in json.loads(file.read_text("utf-8"))["rows"]]
        name = file.stem
        # A run of chosen dtypes has them in its name, and plots are named after theirs.
        for dtype in dict.fromkeys(row.dtype for row in reversed(rows)):
            name = name.removesuffix(f"-{dtype}")
        for path in draw(rows, file.with_name(name)):
            print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
