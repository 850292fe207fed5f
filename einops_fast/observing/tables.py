"""Tables of text: by rich where it is installed, else in plain columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["plain_table", "rich_table"]


def rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> Any:
    """A table of rich's; ``None`` where it isn't installed.

    Args:
        columns: the heads.
        rows: the cells, as text.
        numbers: whether those of the last column are numbers.
    """
    try:
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        return None
    table = Table()
    for column in columns:
        last = column == columns[-1]
        table.add_column(column, justify="right" if numbers and last else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = False) -> str:
    """The same in lines of text.

    >>> print(plain_table(['case', 'µs'], [['first', '1.5'], ['second', '12']], numbers=True))
    case     µs
    first   1.5
    second   12
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = []
    for row in (columns, *rows):
        *cells, last = map(str.ljust, row, widths)
        lines.append("  ".join((*cells, last.strip().rjust(widths[-1]) if numbers else last)).rstrip())
    return "\n".join(lines)
