"""How far a long run is: a bar by rich where it is installed and somebody looks, else lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

__all__ = ["Told", "progress"]

Told = Callable[[str, int, int], None]
"""Is told what has been done, for how many, and of how many."""

_SECONDS = 5.0
"""Between two lines."""


@contextmanager
def progress() -> Iterator[Told]:
    """Show on the standard error what is told in this block."""
    bars = _bars() if sys.stderr.isatty() else None
    if bars is None:
        yield _lines()
        return
    tasks: dict[str, Any] = {}

    def told(what: str, done: int, of: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=of)
        bars.update(tasks[what], completed=done, total=of)

    with bars:
        yield told


def _bars() -> Any:
    """Return rich's; ``None`` where it isn't installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True))


def _lines() -> Told:
    last: dict[str, float] = {}

    def told(what: str, done: int, of: int) -> None:
        now = monotonic()
        if done == of or now - last.get(what, now - _SECONDS) >= _SECONDS:
            last[what] = now
            print(f"{what} {done} of {of}", file=sys.stderr, flush=True)

    return told
