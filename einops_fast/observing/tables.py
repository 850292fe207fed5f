"""Tables as text, and as files: by rich where it is installed, else in plain columns."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from einops_fast.errors import EinsumError


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that metrics have written."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise EinsumError(f"{path} is no table of metrics: {error}") from None


@contextmanager
def lasting() -> Iterator[None]:
    """Print in a block what any standard output can encode, and nothing more once nobody reads."""
    stream = sys.stdout
    if stream is None:
        yield
        return
    known = stream.errors if isinstance(stream, io.TextIOWrapper) else None
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            stream.flush()
    except OSError as error:
        try:
            stream.flush()
        except OSError:
            # What is left would be written when Python ends.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise
    finally:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=known)


def has_failed(cells: Sequence[str]) -> bool:
    """Return whether a row says that it has failed, and not that something beside it has."""
    return any(cell.partition(":")[0] == "failed" for cell in cells)


def rich_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = (), title: str = ""
) -> Any:
    """Return a table of rich's; ``None`` where it isn't installed. What has failed is red."""
    try:
        from rich.markup import escape
        from rich.table import Table
    except ImportError:
        return None
    table = Table(title=title or None, title_justify="left")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row), style="red" if has_failed(row) else None)
    return table


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = ()) -> str:
    """Return the same in lines of text, in which numbers come last.

    >>> print(plain_table(['case', 'µs'], [['first', '1.5'], ['second', '12']], numbers=['µs']))
    case     µs
    first   1.5
    second   12
    """
    last = next((at for at, column in enumerate(columns) if {*columns[at:]} <= {*numbers}), len(columns))
    return "\n".join(aligned([columns, *rows], left=last))


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


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Collection[str] = (), title: str = ""
) -> None:
    """Print a table: in colour where rich is installed, else in plain text; see :func:`rich_table`."""
    table = rich_table(columns, rows, numbers, title)
    if table is None:
        print("\n".join(filter(None, (title, plain_table(columns, rows, numbers)))))
        return
    from rich.console import Console

    # Rich takes a file for a terminal of 80 columns.
    console = Console(width=None if sys.stdout.isatty() else 260)
    # By itself it ends the process where nobody reads any more.
    with console.capture() as printed:
        console.print(table)
    print(printed.get(), end="")
