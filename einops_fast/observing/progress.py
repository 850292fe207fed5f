"""How far a long run is: a bar by rich where it is installed and somebody looks, else lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

_SECONDS = 5.0
"""Between two lines."""


class Told(Protocol):
    """Is told what has been done, for how many, and of how many; and what is being done now."""

    def __call__(self, what: str, done: int, of: int, now: str = "") -> None: ...


@contextmanager
def progress() -> Iterator[Told]:
    """Show on the standard error what is told in this block."""
    bars = _bars() if sys.stderr.isatty() else None
    if bars is None:
        yield _lines()
        return
    tasks: dict[str, Any] = {}

    def told(what: str, done: int, of: int, now: str = "") -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what)
        bars.update(tasks[what], completed=done, total=of or None, description=f"{what} {now}")

    with bars:
        yield told


def _bars() -> Any:
    """Return rich's; ``None`` where it isn't installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.progress import TimeRemainingColumn as Remaining
    except ImportError:
        return None
    told = TextColumn("{task.description}", markup=False)
    columns = told, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("ETA"), Remaining()
    return Progress(*columns, console=Console(stderr=True))


def _lines() -> Told:
    last: dict[str, tuple[float, int]] = {}

    def told(what: str, done: int, of: int, now: str = "") -> None:
        moment = monotonic()
        when, before = last.get(what, (moment - _SECONDS, -1))
        if of and done > before and (done == of or moment - when >= _SECONDS):
            last[what] = moment, done
            print(f"{what} {done} of {of}", file=sys.stderr, flush=True)

    return told
