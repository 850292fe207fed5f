"""Plots of the study of the operators: bandwidth over the length of rows, and for the other cases ratios as bars."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from einops_fast.profiles.contraction.cases import curve
from einops_fast.profiles.contraction.further_plots import marks
from einops_fast.profiles.ops.study import in_order
from einops_fast.profiles.ops.ways import LINEAR, WAYS
from einops_fast.profiles.reporting.bar_plots import bars
from einops_fast.profiles.reporting.case_tables import gigabytes
from einops_fast.profiles.reporting.plot_style import new_figure, saved, without_frame
from einops_fast.profiles.reporting.records import Ceiling, Row

__all__ = ["draw_ops"]


def draw_ops(rows: Sequence[Row], stem: Path, ceilings: Sequence[Ceiling]) -> list[Path]:
    """Draw the figures of each dtype.

    Args:
        rows: of the study.
        stem: path that the files' names begin with.
        ceilings: what the device reaches.
    """
    paths: list[Path] = []
    measured = [row for row in in_order(rows) if row.seconds]
    for dtype in dict.fromkeys(row.dtype for row in measured):
        of = [row for row in measured if row.dtype == dtype]
        copied = next((each.bandwidth for each in ceilings if each.dtype == dtype), None)
        for backward, direction in ((False, "forward"), (True, "backward")):
            swept = [row for row in of if curve(row.case) and row.backward is backward]
            if swept:
                title = f"operators, {dtype}, {'forward and backward' if backward else 'forward'}"
                named = stem.with_name(f"{stem.name}-{dtype}-columns-{direction}")
                paths += saved(named, partial(_curves, swept, title, copied))
        others = [row for row in of if not curve(row.case) and row.what != LINEAR]
        for kind, epoi in (("ratios", False), ("epoi", True)):
            some = [row for row in others if row.case.startswith("epoi") is epoi]
            if some:
                title = f"operators, {dtype}: native time over that of each"
                draw = partial(bars, some, WAYS, title, _speedup, "native time / this", at_one=True)
                paths += saved(stem.with_name(f"{stem.name}-{dtype}-{kind}"), draw)
    return paths


def _speedup(row: Row | None) -> float | None:
    return row.speedup if row is not None else None


def _curves(rows: Sequence[Row], title: str, copied: float | None) -> Any:
    """A panel per operator."""
    curves: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        name, size = curve(row.case) or ("", 0)
        curves.setdefault(name, []).append((size, row))
    columns = min(3, len(curves))
    lines = -(-len(curves) // columns)
    figure = new_figure(3.7 * columns + 0.6, 2.8 * lines + 0.6, title)
    for at, (name, points) in enumerate(curves.items()):
        axes = figure.add_subplot(lines, columns, at + 1)
        for way in WAYS:
            of = sorted((size, gigabytes(row) or 0.0) for size, row in points if row.what == way)
            if of:
                marks(axes, [x for x, _ in of], [y for _, y in of], way, line="-")
        if copied:
            axes.axhline(copied * 1e-9, color="black", linewidth=0.8, linestyle="--", label="copy")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.grid(color="#dddddd", linewidth=0.5)
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel("columns")
        axes.set_ylabel("GB/s")
        without_frame(axes)
    legends = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in figure.axes]
    marked = {label: line for legend in legends for line, label in legend}
    figure.legend(marked.values(), marked.keys(), loc="outside lower center", ncols=9, frameon=False)
    return figure
