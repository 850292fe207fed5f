"""A figure with a bar per case and way, forward and with backward side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.reporting.case_tables import by_case
from einops_fast.profiles.reporting.plot_style import colour_of, new_figure, without_frame
from einops_fast.profiles.reporting.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Value", "bars"]

Value = Callable[[Row | None], float | None]


def bars(rows: Sequence[Row], ways: Sequence[str], title: str, value: Value, unit: str, *, at_one: bool = False) -> Any:
    """Draw a group of bars per case.

    Args:
        rows: of one dtype.
        ways: the order of bars.
        title: of the figure.
        value: how long a row's bar is.
        unit: of that.
        at_one: draw a line there, for ratios.
    """
    directions = [back for back in (False, True) if any(row.backward is back and row.seconds for row in rows)]
    ways = [name for name in ways if any(row.what == name and row.seconds for row in rows)]
    cases = list(dict.fromkeys(row.case for row in rows))
    height = 1.2 + len(cases) * (0.12 * len(ways) + 0.12)
    figure = new_figure(5.2 * len(directions) + 1.4, height, title)
    for at, backward in enumerate(directions):
        axes = figure.add_subplot(1, len(directions), at + 1)
        _groups(axes, [row for row in rows if row.backward is backward], cases, ways, value)
        axes.set_xlabel(unit)
        axes.set_title("forward and backward" if backward else "forward", fontsize=9, loc="left")
        if at_one:
            axes.axvline(1.0, color="black", linewidth=0.8)
        if at:
            axes.set_yticklabels([])
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=9, frameon=False)
    return figure


def _groups(axes: Axes, rows: Sequence[Row], cases: Sequence[str], ways: Sequence[str], value: Value) -> None:
    found = by_case(rows)
    thick = 0.85 / len(ways)
    for place, way in enumerate(ways):
        heights = [-at + 0.4 - thick * (place + 0.5) for at in range(len(cases))]
        values = [value(found.get(case, {}).get(way)) or 0.0 for case in cases]
        axes.barh(heights, values, height=thick * 0.92, color=colour_of(way), label=way)
        for height, length in zip(heights, values, strict=True):
            if length:
                axes.text(length, height, f" {length:.3g}", va="center", fontsize=5.5)
    axes.set_yticks([-at for at in range(len(cases))], list(cases))
    axes.set_ylim(-len(cases) + 0.4, 0.6)
    without_frame(axes)
