"""What all plots have in common: colours and marks by implementation, logarithmic axes, how a figure is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einops_fast.profiles.contraction_tables import OURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["colour_of", "log_ratios", "marker_of", "new_figure", "saved", "without_frame"]

COLOURS = {
    OURS: "#0072b2",
    "native": "#d55e00",
    "einsum": "#d55e00",
    "opt_einsum": "#e69f00",
    "einsum_optimize": "#e69f00",
    "compile": "#009e73",
    "no_einsum": "#009e73",
    "cupy": "#cc79a7",
    "th_einsum": "#cc79a7",
}
"""By way, and told apart by those who see fewer colours; others get :data:`OTHER_COLOUR`."""

OTHER_COLOUR = "#555555"

MARKERS = {
    OURS: "o",
    "native": "s",
    "einsum": "s",
    "opt_einsum": "D",
    "einsum_optimize": "D",
    "compile": "^",
    "no_einsum": "^",
    "cupy": "v",
    "th_einsum": "v",
}


def colour_of(name: str) -> str:
    """The colour of an implementation."""
    return COLOURS.get(name, OTHER_COLOUR)


def marker_of(name: str) -> str:
    """The mark of an implementation."""
    return MARKERS.get(name, "P")


def new_figure(width: float, height: float, title: str) -> Any:
    """A figure, in inches, with its title on the left."""
    # Not pyplot: nothing is shown, and no display is asked for.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    return figure


def saved(stem: Path, figure: Callable[[], Any]) -> list[Path]:
    """Draw a figure and keep it as SVG and PNG. Text stays text, and the same results give the same file."""
    import matplotlib

    style: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "einops_fast", "font.size": 8.5}
    with matplotlib.rc_context(style):
        drawn = figure()
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("svg", "png")]
        drawn.savefig(paths[0], metadata={"Date": None})
        drawn.savefig(paths[1], dpi=150)
    return paths


def log_ratios(axes: Axes) -> None:
    """A logarithmic x axis for ratios, with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high > 12 * low else (1, 1.5, 2, 3, 4, 5, 7)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


def without_frame(axes: Axes) -> None:
    """Only the two axes that say something."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
