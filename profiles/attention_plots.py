"""Plots of the attention study: for each family a bar per case and way, forward and with backward side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.attention_ways import WAYS
from einops_fast.profiles.case_tables import by_case, gigabytes, teraflops
from einops_fast.profiles.plot_style import colour_of, new_figure, saved, without_frame
from einops_fast.profiles.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_attention"]

BY_BYTES = "decode"
"""The family that is told in bytes per second."""


def draw_attention(rows: Sequence[Row], stem: Path) -> list[Path]:
    """Draw a figure per dtype and family; the files' names begin with ``stem``."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.dtype, row.case.partition("-")[0]), []).append(row)
    paths = []
    for (dtype, family), group in groups.items():
        if any(row.seconds for row in group):
            named = stem.with_name(f"{stem.name}-{dtype}-{family}")
            paths += saved(named, lambda group=group, dtype=dtype: _figure(group, dtype))  # type: ignore[misc]
    return paths


def _figure(rows: Sequence[Row], dtype: str) -> Any:
    directions = [back for back in (False, True) if any(row.backward is back and row.seconds for row in rows)]
    ways = [name for name in WAYS if any(row.what == name and row.seconds for row in rows)]
    cases = list(dict.fromkeys(row.case for row in rows))
    height = 1.2 + len(cases) * (0.12 * len(ways) + 0.12)
    figure = new_figure(5.2 * len(directions) + 1.4, height, f"attention, {dtype}")
    for at, backward in enumerate(directions):
        axes = figure.add_subplot(1, len(directions), at + 1)
        _bars(axes, [row for row in rows if row.backward is backward], cases, ways)
        axes.set_title("forward and backward" if backward else "forward", fontsize=9, loc="left")
        if at:
            axes.set_yticklabels([])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False)
    return figure


def _bars(axes: Axes, rows: Sequence[Row], cases: Sequence[str], ways: Sequence[str]) -> None:
    found = by_case(rows)
    thick = 0.85 / len(ways)
    bytes_only = all(case.startswith(BY_BYTES) for case in cases)
    for place, way in enumerate(ways):
        heights = [-at + 0.4 - thick * (place + 0.5) for at in range(len(cases))]
        values = [_value(found.get(case, {}).get(way), bytes_only) for case in cases]
        axes.barh(heights, values, height=thick * 0.92, color=colour_of(way), label=way)
        for height, value in zip(heights, values, strict=True):
            if value:
                axes.text(value, height, f" {value:.3g}", va="center", fontsize=5.5)
    axes.set_yticks([-at for at in range(len(cases))], list(cases))
    axes.set_ylim(-len(cases) + 0.4, 0.6)
    axes.set_xlabel("GB/s" if bytes_only else "TFLOP/s")
    without_frame(axes)


def _value(row: Row | None, in_bytes: bool) -> float:
    if in_bytes:
        return gigabytes(row) or 0.0
    return teraflops(row) or 0.0
