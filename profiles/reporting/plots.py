"""Plots of a study as files, SVG and PNG: how far from the device's floor each case is, by ours and by the best peer,
and those of :mod:`einops_fast.profiles.contraction.further_plots`.

``python -m einops_fast.profiles.reporting.plots FILE.json …`` draws them from kept results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.attention.plots import draw_attention
from einops_fast.profiles.contraction import further_plots
from einops_fast.profiles.ops.plots import draw_ops
from einops_fast.profiles.reporting.plot_style import colour_of, log_ratios, marker_of, new_figure, saved, without_frame
from einops_fast.profiles.reporting.records import Ceiling, Row, is_ours
from einops_fast.profiles.reporting.results import read_or_end

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Dot", "dots", "draw"]

FASTER, SLOWER = "#0072b2", "#bb0000"
"""Of the line from ours to the best peer."""


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


def draw(rows: Sequence[Row], stem: Path, ceilings: Sequence[Ceiling] = (), *, study: str = "") -> list[Path]:
    """Draw what was measured, if matplotlib is here: an SVG and a PNG of each plot per framework and dtype.

    Args:
        rows: of a study; of those that were measured forward there are plots.
        stem: path that the files' names begin with.
        ceilings: what the device reaches, for the roofs.
        study: its name; those of attention and of the operators have plots of their own.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if not row.backward:
            groups.setdefault((row.framework, row.dtype), []).append(row)
    groups = {key: group for key, group in groups.items() if any(row.floor or row.moved for row in group)}
    if not groups and study not in ("attention", "ops"):
        return []
    try:
        import_module("matplotlib.figure")
    except ImportError as missing:
        print(f"no plots: they need matplotlib (pip install 'einops_fast[profile]'): {missing}", file=sys.stderr)
        return []
    if study == "attention":
        return draw_attention(rows, stem)
    if study == "ops":
        return draw_ops(rows, stem, ceilings)
    several = len({framework for framework, _ in groups}) > 1
    paths = []
    for (framework, dtype), group in groups.items():
        named = stem.with_name(f"{stem.name}-{framework}-{dtype}" if several else f"{stem.name}-{dtype}")
        title = f"{framework}, {dtype}"
        if any(row.floor for row in group):
            lines = dots(group)
            paths += saved(named, lambda lines=lines, title=title: _figure(lines, title))  # type: ignore[misc]
        reached = next((each for each in ceilings if (each.framework, each.dtype) == (framework, dtype)), None)
        paths += further_plots.draw(group, named, title, reached)
    return paths


def _dot(case: str, ways: Sequence[Row]) -> Dot:
    right = {row.what: row.seconds / row.floor for row in ways if row.seconds is not None and row.floor}
    ours = next((name for name in right if is_ours(name)), "")
    others = {name: value for name, value in right.items() if not is_ours(name)}
    best = min(others, key=lambda name: others[name], default="")
    failures = tuple(f"{row.what} {row.failure}" for row in ways if row.failure)
    return Dot(case, right.get(ours), best, others.get(best), failures)


def _figure(lines: Sequence[Dot], title: str) -> Any:
    failed = [f"{dot.case}: {failure}" for dot in lines for failure in dot.failures]
    below = 0.16 * (len(failed) + 1) if failed else 0.0
    figure = new_figure(8.5, 1.6 + 0.2 * len(lines) + below, f"{title}: time over the device's floor")
    axes = figure.add_subplot()
    _plot(axes, lines)
    if failed:
        figure.supxlabel("\n".join(("failed:", *(_cut(text) for text in failed))), x=0.01, ha="left", fontsize=7)
    return figure


def _plot(axes: Axes, lines: Sequence[Dot]) -> None:
    heights = range(len(lines))[::-1]
    both = [(h, dot.ours, dot.peer) for h, dot in zip(heights, lines, strict=True) if dot.ours and dot.peer]
    for colour, label, slower in ((FASTER, "ours is faster", False), (SLOWER, "ours is slower", True)):
        pairs = [pair for pair in both if (pair[1] > pair[2]) is slower]
        if pairs:
            places, ours, peers = map(list, zip(*pairs, strict=True))
            axes.hlines(places, ours, peers, colors=colour, alpha=0.35, linewidths=2.5, label=label, zorder=1)
    dot_places = [(dot.ours, height) for height, dot in zip(heights, lines, strict=True) if dot.ours is not None]
    _scatter(axes, dot_places, "ours", "ours", hollow=False)
    for name in sorted({dot.best for dot in lines if dot.best}):
        points = [(dot.peer, height) for height, dot in zip(heights, lines, strict=True) if dot.best == name]
        _scatter(axes, points, name, f"best peer: {name}", hollow=True)
    axes.axvline(1.0, color="black", linewidth=0.8, zorder=0)
    log_ratios(axes)
    axes.set_xlabel("time / floor, log scale (at 1 the device itself does no more)")
    axes.set_yticks(list(heights), [f"{dot.case}  {_told(dot)}" for dot in lines])
    axes.set_ylim(-0.8, len(lines) - 0.2)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=4, fontsize=8, frameon=False)
    without_frame(axes)


def _scatter(axes: Axes, points: Sequence[tuple[Any, int]], name: str, label: str, *, hollow: bool) -> None:
    colour = colour_of(name)
    axes.scatter(
        [x for x, _ in points],
        [y for _, y in points],
        # Where both are at one place, the larger frames the smaller.
        s=42 if hollow else 18,
        marker=marker_of(name),
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
