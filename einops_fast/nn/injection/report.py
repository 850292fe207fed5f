"""What was replaced, and what not, and why."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import StringIO
from typing import Any

from einops_fast.observing.tables import plain_table, rich_table

_COLUMNS = ("modules", "class", "count", "now", "why not")
_WIDTH = 160


@dataclass(frozen=True)
class Row:
    """A module.

    Attributes:
        name: as in ``named_modules``; empty for the model itself.
        kind: name of its class.
        now: what does its work; empty if it wasn't replaced.
        reason: why it wasn't.
    """

    name: str
    kind: str
    now: str = ""
    reason: str = ""


@dataclass(frozen=True)
class OptimizeReport:
    """What :func:`einops_fast.nn.optimize` did. Print it for a table in which modules of one kind share a line.

    Attributes:
        rows: all modules, in the order of ``named_modules``, and behind a model of transformers its loss.
    """

    rows: tuple[Row, ...]

    @property
    def replaced(self) -> tuple[Row, ...]:
        """Those that were."""
        return tuple([row for row in self.rows if row.now])

    @property
    def kept(self) -> tuple[Row, ...]:
        """Those that weren't."""
        return tuple([row for row in self.rows if not row.now])

    def lines(self) -> list[tuple[str, ...]]:
        """Rows of one kind as one, those that were replaced first: names, class, how many, what now, why not."""
        together: dict[tuple[str, str, str], list[str]] = {}
        for row in (*self.replaced, *self.kept):
            together.setdefault((row.kind, row.now, row.reason), []).append(row.name)
        return [(_shown(names), kind, str(len(names)), now, reason) for (kind, now, reason), names in together.items()]

    def __str__(self) -> str:
        table = self.__rich__()
        if table is None:
            return plain_table(_COLUMNS, self.lines())
        from rich.console import Console

        console = Console(file=StringIO(), width=_WIDTH)
        with console.capture() as captured:
            console.print(table)
        return captured.get().rstrip()

    def __rich__(self) -> Any:
        return rich_table(_COLUMNS, self.lines())


def _shown(names: list[str]) -> str:
    """Names with ``*`` for numbers."""
    patterns = dict.fromkeys(re.sub(r"(?<![^.])\d+(?![^.])", "*", name) or "(the model)" for name in names)
    return ", ".join(patterns) if len(patterns) <= 4 else f"{', '.join([*patterns][:3])}, and {len(patterns) - 3} more"
