"""How far a run is, and how long it will still take."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from einops_fast.profiles.reporting.records import ALL, Row

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Progress"]


class Progress:
    """A bar of the cases that are done, over all frameworks, with the time that is left.

    How many cases a framework has is known when its process says so; those that are still to come are taken to
    have as many. A terminal shows the bar while it lasts, a file never sees it.

    Args:
        to: the console.
        study: its name.
        frameworks: those to be measured, in turn.
    """

    def __init__(self, to: Console, study: str, frameworks: Sequence[str]) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
        )
        self._bar = RichProgress(*columns, console=to, transient=True, disable=not to.is_terminal)
        self._study = study
        self._waiting = len(frameworks)
        self._seen: set[tuple[object, ...]] = set()
        self._task = self._bar.add_task(study, total=None)

    @property
    def done(self) -> int:
        """Cases so far."""
        return len(self._seen)

    @property
    def total(self) -> float | None:
        """Cases in all; ``None`` as long as no framework has told its own."""
        return self._bar.tasks[0].total

    def begin(self, framework: str) -> None:
        """The process of a framework starts."""
        self._waiting -= 1
        self._bar.update(self._task, description=f"{self._study}: {framework}")

    def expect(self, cases: int) -> None:
        """The framework that has begun has this many cases."""
        self._bar.update(self._task, total=len(self._seen) + cases * (1 + self._waiting))

    def measured(self, row: Row) -> None:
        """A row has come; a case is done with the first of its rows, as the others come with it."""
        if row.case != ALL:
            self._seen.add((row.framework, row.dtype, row.backward, row.case))
        told = " ".join(filter(None, (row.framework, row.dtype, row.case, row.what)))
        self._bar.update(self._task, completed=len(self._seen), description=f"{self._study}: {told}")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
