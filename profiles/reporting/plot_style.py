"""What all plots have in common: colours and marks by implementation, logarithmic axes, how a figure is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from einops_fast.profiles.reporting.records import is_ours

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["colour_of", "log_ratios", "marker_of", "new_figure", "saved", "without_frame"]

OURS_COLOUR, OURS_MARKER = "#0072b2", "o"

OTHERS = (("#d55e00", "s"), ("#e69f00", "D"), ("#009e73", "^"), ("#cc79a7", "v"), ("#555555", "P"), ("#4a4a9c", "X"),
           ("#56b4e9", "<"), ("#8a5a2b", ">"))  # fmt: skip
"""Colours and marks of all others, told apart by those who see fewer colours."""

PLACES = {
    "native": 0,
    "einsum": 0,
    "opt_einsum": 1,
    "einsum_optimize": 1,
    "compile": 2,
    "no_einsum": 2,
    "cupy": 3,
    "th_einsum": 3,
    "cudnn": 1,
    "fa4": 2,
    "flash": 3,
    "flex": 4,
    "efficient": 5,
    "triton": 6,
    "naive": 7,
    "sdpa": 1,
    "liger": 3,
    "quack": 4,
    "linear": 5,
}
"""Whose are which; what isn't here takes the place that its name falls on, the same in every plot."""


def colour_of(name: str) -> str:
    """The colour of an implementation."""
    return OURS_COLOUR if is_ours(name) else OTHERS[_place(name)][0]


def marker_of(name: str) -> str:
    """The mark of an implementation."""
    return OURS_MARKER if is_ours(name) else OTHERS[_place(name)][1]


def _place(name: str) -> int:
    return PLACES.get(name, crc32(name.encode()) % 6)


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
