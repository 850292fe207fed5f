"""Charts as files, SVG and PNG.

``python -m einops_fast.profiles.reporting.plots FILE.json …`` draws them from kept results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from einops_fast.profiles.reporting.charts import Bars, Chart, Points
from einops_fast.profiles.reporting.records import Ceiling, Row, is_ours
from einops_fast.profiles.reporting.results import read_or_end
from einops_fast.profiles.studies import STUDIES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

OURS, OURS_BEHIND = ("#0072b2", "o"), "#bb0000"

OTHERS = (("#d55e00", "s"), ("#e69f00", "D"), ("#009e73", "^"), ("#cc79a7", "v"), ("#555555", "P"), ("#4a4a9c", "X"),
           ("#56b4e9", "<"), ("#8a5a2b", ">"))  # fmt: skip
"""Colours and marks of all others, told apart by those who see fewer colours."""

PLACES = (
    ("native", "einsum"),
    ("opt_einsum", "einsum_optimize", "cudnn", "sdpa"),
    ("compile", "no_einsum", "fa4"),
    ("cupy", "th_einsum", "flash", "liger"),
    ("flex", "quack"),
    ("efficient", "linear"),
    ("triton",),
    ("naive",),
)
"""Whose are which; what isn't here takes the place that its name falls on, the same in every plot."""

GRID: dict[str, Any] = {"color": "#dddddd", "linewidth": 0.5}


def draw(rows: Sequence[Row], stem: Path, ceilings: Sequence[Ceiling] = (), *, study: str) -> list[Path]:
    """Draw the charts of a study, if matplotlib is here.

    Args:
        rows: what was measured.
        stem: path that the files' names begin with.
        ceilings: what the device reaches.
        study: its name.
    """
    charts = STUDIES[study].charts(rows, ceilings)
    if not charts:
        return []
    try:
        import_module("matplotlib.figure")
    except ImportError as missing:
        print(f"no plots: they need matplotlib (pip install 'einops_fast[profile]'): {missing}", file=sys.stderr)
        return []
    return [path for chart in charts for path in _saved(chart, stem.with_name(f"{stem.name}-{chart.name}"))]


def _saved(chart: Chart, stem: Path) -> list[Path]:
    """Keep a chart as SVG and PNG. Text stays text, and the same results give the same file."""
    import matplotlib

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "einops_fast", "font.size": 8.5}
    with matplotlib.rc_context(style):
        drawn = _figure(chart)
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
        drawn.savefig(paths[0], metadata={"Date": None})
        drawn.savefig(paths[1], dpi=150)
    return paths


def _figure(chart: Chart) -> Any:
    # Not pyplot: nothing is shown, and no display is asked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(3, len(chart.panels))
    lines = -(-len(chart.panels) // columns)
    failed = [f"failed: {text[:149]}{'…' * (len(text) > 149)}" for text in chart.failures]
    width, height = 4.6 * columns + 0.8, 3.2 * lines + 0.4
    if isinstance(chart.panels[0], Bars):
        thickness = 0.12 + 0.12 * max(len(panel.barred) for panel in chart.panels if isinstance(panel, Bars))
        cases = max(len(panel.lines) for panel in chart.panels if isinstance(panel, Bars))
        width, height = (8.5 if columns == 1 else 11.8), 1.4 + thickness * cases + 0.16 * len(failed)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(chart.title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    for at, panel in enumerate(chart.panels):
        axes = figure.add_subplot(lines, columns, at + 1)
        if isinstance(panel, Bars):
            _bars(axes, panel)
        else:
            _points(axes, panel)
        axes.set_xlabel(panel.x)
        axes.set_title(panel.title, fontsize=9, loc="left")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    if failed:
        figure.supxlabel("\n".join(failed), x=0.01, ha="left", fontsize=7)
    legends = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    marked = {label: line for legend in legends for line, label in legend}
    figure.legend(
        marked.values(),
        marked.keys(),
        loc="outside lower center",
        ncols=max(3, int(0.8 * width)),
        frameon=False,
        fontsize=8,
    )
    return figure


def _bars(axes: Axes, panel: Bars) -> None:
    start = 1.0 if panel.ratios else 0.0
    thick = 0.85 / len(panel.barred)
    for place, way in enumerate(panel.barred):
        colour = _style(way)[0]
        alone = len(panel.barred) == 1
        lengths = [line.values.get(way, start) - start for line in panel.lines]
        heights = [-at + 0.425 - thick * (place + 0.5) for at in range(len(lengths))]
        axes.barh(heights, lengths, left=start, height=thick * 0.92, color=colour, label=_label(way))
        for height, line in zip(heights, panel.lines, strict=True):
            if not alone and way in line.values:
                axes.text(line.values[way], height, f" {line.values[way]:.3g}", va="center", fontsize=5.5)
    marked = dict.fromkeys(way for line in panel.lines for way in line.values if way not in panel.barred)
    for way in sorted(marked):
        places = [(line.values[way], -at) for at, line in enumerate(panel.lines) if way in line.values]
        _marks(axes, way, *zip(*places, strict=True))
    if panel.ratios:
        axes.axvline(1.0, color="black", linewidth=0.8)
        _log_ratios(axes)
    axes.grid(axis="x", **GRID)
    axes.set_axisbelow(True)
    axes.set_yticks([-at for at in range(len(panel.lines))], [line.label for line in panel.lines])
    for label, line in zip(axes.get_yticklabels(), panel.lines, strict=True):
        label.set_color(OURS_BEHIND if line.failed else "black")
    axes.set_ylim(-len(panel.lines) + 0.4, 0.6)


def _points(axes: Axes, panel: Points) -> None:
    for way, points in panel.series.items():
        if points:
            x, y, _ = zip(*points, strict=True)
            _marks(axes, way, x, y, line="-" if panel.joined else "none")
    axes.set_xscale("log", base=2 if panel.joined else 10)
    if panel.from_zero:
        axes.set_ylim(bottom=0)
    else:
        axes.set_yscale("log")
    if panel.roof:
        x, y = zip(*panel.roof, strict=True)
        axes.plot(x, y, color="black", linewidth=1.0, label=panel.roof_label, zorder=0)
    axes.set_ylabel(panel.y)
    axes.grid(**GRID)


def _marks(axes: Axes, way: str, x: Sequence[float], y: Sequence[float], *, line: str = "none") -> None:
    """Draw points: ours are filled, the others are hollow."""
    colour, marker = _style(way)
    face = colour if is_ours(way) else "white"
    order = 3 if is_ours(way) else 2
    style: dict[str, Any] = {"marker": marker, "markersize": 5, "color": colour, "markerfacecolor": face}
    axes.plot(x, y, linestyle=line, **style, zorder=order, label=_label(way))


def _label(way: str) -> str:
    return "ours" if is_ours(way) else way


def _style(way: str) -> tuple[str, str]:
    """Return the colour and the mark of a way."""
    if is_ours(way):
        return OURS
    place = next((at for at, names in enumerate(PLACES) if way in names), None)
    return OTHERS[crc32(way.encode()) % 6 if place is None else place]


def _log_ratios(axes: Axes) -> None:
    """Make the x axis logarithmic, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 12 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def main(files: Sequence[str]) -> None:
    """Draw the plots of kept results beside them.

    Raises:
        SystemExit: by argparse, for what is no result.
    """
    parser = argparse.ArgumentParser(
        prog="python -m einops_fast.profiles.reporting.plots", description="Draw kept results."
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="JSON")
    paths = parser.parse_args(files).files
    for file, result in zip(paths, read_or_end(parser, paths), strict=True):
        name = file.stem
        # A run of chosen dtypes has them in its name, and plots are named after theirs.
        for dtype in dict.fromkeys(row.dtype for row in reversed(result.measured)):
            name = name.removesuffix(f"-{dtype}")
        for path in draw(result.measured, file.with_name(name), result.ceilings, study=result.study):
            print(f"wrote {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
