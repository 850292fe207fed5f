"""Tables of text: by rich where it is installed, else in plain columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["aligned", "plain_table", "print_table", "rich_table"]


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
    """Return the same in lines of text.

    >>> print(plain_table(['case', 'µs'], [['first', '1.5'], ['second', '12']], numbers=True))
    case     µs
    first   1.5
    second   12
    """
    return "\n".join(aligned([columns, *rows], left=len(columns) - numbers))


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return cells as lines of columns, of which the first ``left`` are text and the others numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: bool = True) -> None:
    """Print a table: in colour where rich is installed, else in plain text; see :func:`rich_table`."""
    table = rich_table(columns, rows, numbers)
    if table is None:
        print(plain_table(columns, rows, numbers))
        return
    from rich.console import Console

    # Rich takes a file for a terminal of 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 180)
    # By itself it ends the process where nobody reads any more.
    with console.capture() as printed:
        console.print(table)
    print(printed.get(), end="")
