"""Tables of what einops_fast does while a program runs: plans, their steps, kernels, and what didn't go as it might.

Off unless asked for, by a block of code or by the environment, and then it costs nothing: what is observed is decided
when a plan is compiled. Each table is a CSV file with a row per plan (or step, or kernel) and label; processes that
share a folder write files of their own.

From outside::

    EINOPS_FAST_METRICS=plans,fallbacks:/tmp/metrics python train.py
    einops-fast metrics summarize /tmp/metrics

Example:
    >>> import tempfile
    >>> import numpy as np
    >>> from einops_fast import fast_einsum, metrics
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with metrics.record(folder), metrics.label('scores'):
    ...         _ = fast_einsum('id,jd->ij', np.ones((2, 3)), np.ones((4, 3)))
    ...     [row] = metrics.read(folder)['plans']
    >>> row['label'], row['equation'], row['calls'], row['copied_bytes']
    ('scores', 'id,jd->ij', '1', '0')
"""

from __future__ import annotations

import csv
import os
import sys
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from einops_fast.errors import EinsumError
from einops_fast.observing.ending import at_end, at_end_of_children
from einops_fast.observing.observers import recording, start
from einops_fast.observing.recording import Recorder, current_label
from einops_fast.runtime.blocks import Block, Setting, holding
from einops_fast.vocabulary import closest

__all__ = ["TABLES", "VARIABLE", "label", "read", "record", "start_from_environment", "write"]

TABLES = ("plans", "steps", "kernels", "fallbacks", "fusions", "calls")
"""What can be asked for."""

VARIABLE = "EINOPS_FAST_METRICS"
"""The environment variable: tables separated by commas (or ``all``), a colon, and a folder."""


def record(folder: str | os.PathLike[str], tables: Collection[str] = TABLES) -> Block[Recorder]:
    """Observe every call in a ``with`` block, of all threads, and write the tables at its end.

    A process that is forked in the block writes tables of its own calls: where it leaves the block, or at the end of a
    child of :mod:`multiprocessing`. Plans are made anew at the beginning and at the end of the block, so it is for
    parts of a program that run for a while.

    Args:
        folder: where to; made if it isn't there.
        tables: of :data:`TABLES`.

    Raises:
        EinsumError: there is no such table.
    """
    _check(tables)
    return Block("metrics.record(folder)", partial(_record, folder, tables))


@contextmanager
def _record(folder: str | os.PathLike[str], tables: Collection[str]) -> Iterator[Recorder]:
    folder = os.path.abspath(folder)
    try:
        with recording() as recorder, at_end_of_children(partial(_write_at_end, recorder, folder, tables)):
            yield recorder
    finally:
        write(recorder, folder, tables)


def label(name: str) -> Setting:
    """Tag what is called from now on, in a ``with`` block, or by a decorated function, such as a layer of a model.

    Blocks nest: the innermost counts.

    Args:
        name: what the rows' ``label`` will be.
    """
    return holding(current_label, name)


def write(recorder: Recorder, folder: str | os.PathLike[str], tables: Collection[str] = TABLES) -> list[Path]:
    """Write what was recorded, a file per table that has rows. Earlier files stay.

    Args:
        recorder: what was recorded.
        folder: where to.
        tables: of :data:`TABLES`.

    Returns:
        The files.
    """
    # Few programs record anything: none should wait for this when it imports the package.
    from einops_fast.observing.metric_tables import MAKERS

    _check(tables)
    made = {name: MAKERS[name](recorder) for name in TABLES if name in tables}
    paths = []
    for name, rows in made.items():
        if rows:
            Path(folder).mkdir(parents=True, exist_ok=True)
            paths.append(_write(Path(folder), name, rows))
    return paths


def read(folder: str | os.PathLike[str]) -> dict[str, list[dict[str, str]]]:
    """The rows of every table in a folder, of all processes together; values are text, as in the files."""
    from einops_fast.observing.tables import read_table

    files = {name: sorted(Path(folder).glob(f"{name}-*.csv")) for name in TABLES}
    return {name: [row for path in paths for row in read_table(path)] for name, paths in files.items()}


def start_from_environment() -> None:
    """Record for the rest of the process, if the environment asks for it, and write at its end.

    Processes that it starts or forks write files of their own. One that ends by ``os._exit``, or by a signal, writes
    none, unless it is a child of :mod:`multiprocessing` that ends or is terminated.
    Where :data:`VARIABLE` isn't tables, a colon and a folder, that is a warning: the program runs as without it.
    """
    asked = os.environ.get(VARIABLE, "")
    if not asked:
        return
    names, colon, folder = asked.partition(":")
    tables = TABLES if names == "all" else tuple(filter(None, names.split(",")))
    if not (tables and colon and folder and set(tables) <= {*TABLES}):
        warnings.warn(
            f"nothing is recorded: {VARIABLE} is 'all' or some of {','.join(TABLES)}, a colon and a folder, such as "
            f"plans,fallbacks:/tmp/metrics, not {asked!r}",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    # Relative to where the program was started, wherever it is by then.
    at_end(partial(_write_at_end, start(), os.path.abspath(folder), tables))


def _write_at_end(recorder: Recorder, folder: str, tables: Collection[str]) -> None:
    """:func:`write` what wasn't yet, where nobody is left to catch an error."""
    try:
        write(recorder, folder, tables)
    except OSError as error:
        print(f"einops_fast: the tables of metrics can't be written: {error}", file=sys.stderr)
    recorder.clear()


def _check(tables: Collection[str]) -> None:
    # Text is a collection too, of letters.
    unknown = [tables] if isinstance(tables, str) else [name for name in tables if name not in TABLES]
    if unknown:
        known = f"(there are {', '.join(TABLES)}){closest(unknown[0], TABLES)}"
        raise EinsumError(f"no such table of metrics: {', '.join(unknown)} {known}")


def _write(folder: Path, name: str, rows: list[Mapping[str, Any]]) -> Path:
    """Write a table to a file that no other process, and no earlier block, has made."""
    number = 0
    while True:
        path = folder / f"{name}-{os.getpid()}-{number}.csv"
        with suppress(FileExistsError), open(path, "x", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            for row in rows:
                writer.writerow({name: "" if value is None else value for name, value in row.items()})
            return path
        number += 1
