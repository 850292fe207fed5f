"""Plots beside that of the floor: ratios to the native call, throughput over size, the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.contraction.cases import curve
from einops_fast.profiles.reporting.plot_style import (
    OURS_COLOUR,
    colour_of,
    log_ratios,
    marker_of,
    new_figure,
    saved,
    without_frame,
)
from einops_fast.profiles.reporting.records import Ceiling, Row, is_ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw", "marks"]

PRODUCT = 16
"""FLOPs per byte from which on a curve is told in FLOP/s and not in B/s."""


def draw(rows: Sequence[Row], stem: Path, title: str, reached: Ceiling | None) -> list[Path]:
    """Draw those of the plots that there are measurements for.

    Args:
        rows: of one framework and dtype.
        stem: path that the files' names begin with.
        title: what the plots are of.
        reached: the ceilings of the device.
    """
    paths: list[Path] = []
    faster = {row.case: row.speedup for row in rows if is_ours(row.what) and row.speedup is not None}
    if faster:
        paths += saved(stem.with_name(f"{stem.name}-native"), lambda: _native(faster, rows, title))
    priced = [row for row in rows if row.seconds and row.moved]
    if priced:
        paths += saved(stem.with_name(f"{stem.name}-throughput"), lambda: _throughput(priced, title))
    if any(row.flops for row in priced):
        products = [row for row in priced if row.flops]
        paths += saved(stem.with_name(f"{stem.name}-roofline"), lambda: _roofline(products, title, reached))
    return paths


def _native(faster: dict[str, float], rows: Sequence[Row], title: str) -> Any:
    """A bar per case, from 1; red where ours is slower, and a word where it failed."""
    names = sorted(faster, key=lambda name: faster[name])
    failed = [row.case for row in rows if is_ours(row.what) and row.failure]
    figure = new_figure(8.5, 1.2 + 0.2 * (len(names) + len(failed)), f"{title}: native time over ours")
    axes = figure.add_subplot()
    heights = range(len(failed), len(failed) + len(names))
    values = [faster[name] for name in names]
    colours = [OURS_COLOUR if value >= 1 else "#bb0000" for value in values]
    axes.barh(list(heights), [value - 1 for value in values], left=1.0, height=0.7, color=colours)
    axes.axvline(1.0, color="black", linewidth=0.8)
    log_ratios(axes)
    labels = [f"{name}  failed" for name in failed] + [f"{name}  {faster[name]:.2f}" for name in names]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(-0.8, len(labels) - 0.2)
    axes.set_xlabel("native time / ours, log scale (right of 1 ours is faster)")
    without_frame(axes)
    return figure


def _throughput(rows: Sequence[Row], title: str) -> Any:
    """A panel per curve; without curves, every case by the bytes that it moves."""
    curves: dict[str, list[tuple[int, Row]]] = {}
    for row in rows:
        name, size = curve(row.case) or ("", row.moved or 0)
        curves.setdefault(name, []).append((size, row))
    columns = min(2, len(curves))
    lines = -(-len(curves) // columns)
    figure = new_figure(4.6 * columns + 0.8, 3.2 * lines + 0.4, f"{title}: throughput over size")
    for at, (name, points) in enumerate(sorted(curves.items())):
        axes = figure.add_subplot(lines, columns, at + 1)
        product = bool(name) and max((row.flops or 0) / (row.moved or 1) for _, row in points) > PRODUCT
        _curves(axes, points, product, joined=bool(name))
        axes.set_xlabel(f"{name}: size" if name else "bytes of operands and result")
        axes.set_ylabel("TFLOP/s" if product else "GB/s")
    figure.axes[0].legend(fontsize=7, frameon=False)
    return figure


def _curves(axes: Axes, points: Sequence[tuple[int, Row]], product: bool, *, joined: bool) -> None:
    for name in dict.fromkeys(row.what for _, row in points):
        of = sorted(
            (size, (row.flops or 0) / row.seconds * 1e-12 if product else (row.moved or 0) / row.seconds * 1e-9)
            for size, row in points
            if row.what == name and row.seconds
        )
        marks(axes, [x for x, _ in of], [y for _, y in of], name, line="-" if joined else "")
    axes.set_xscale("log", base=2 if joined else 10)
    axes.set_yscale("log")
    axes.grid(color="#dddddd", linewidth=0.5)
    without_frame(axes)


def _roofline(rows: Sequence[Row], title: str, reached: Ceiling | None) -> Any:
    figure = new_figure(7.0, 4.6, f"{title}: roofline")
    axes = figure.add_subplot()
    for name in dict.fromkeys(row.what for row in rows):
        of = [row for row in rows if row.what == name]
        intensities = [(row.flops or 0) / (row.moved or 1) for row in of]
        marks(axes, intensities, [(row.flops or 0) / (row.seconds or 1) * 1e-12 for row in of], name, line="")
    axes.set_xscale("log")
    axes.set_yscale("log")
    if reached is not None:
        low, high = axes.get_xlim()
        corner = reached.flops / reached.bandwidth
        ends = [low, min(max(corner, low), high), max(high, corner)]
        roof = [min(x * reached.bandwidth, reached.flops) * 1e-12 for x in ends]
        label = f"{reached.bandwidth * 1e-9:.0f} GB/s, {reached.flops * 1e-12:.3g} TFLOP/s"
        axes.plot(ends, roof, color="black", linewidth=1.0, label=label, zorder=0)
    axes.set_xlabel("FLOPs per byte of operands and result")
    axes.set_ylabel("TFLOP/s")
    axes.grid(color="#dddddd", linewidth=0.5)
    axes.legend(fontsize=7, frameon=False)
    without_frame(axes)
    return figure


def marks(axes: Axes, x: Sequence[float], y: Sequence[float], name: str, *, line: str) -> None:
    """Ours is filled, the others are hollow."""
    axes.plot(
        x,
        y,
        linestyle=line,
        marker=marker_of(name),
        markersize=5,
        color=colour_of(name),
        markerfacecolor=colour_of(name) if is_ours(name) else "white",
        zorder=3 if is_ours(name) else 2,
        label="ours" if is_ours(name) else name,
    )
