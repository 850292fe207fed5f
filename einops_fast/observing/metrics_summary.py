"""What follows from tables of metrics: where time goes, what is copied, what was predicted wrongly, what falls back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import exp, log
from operator import itemgetter

from einops_fast.errors import EinsumError
from einops_fast.explanation import scaled
from einops_fast.metrics import read
from einops_fast.observing.tables import aligned

Row = dict[str, str]
Cell = Callable[[Row], str]

MISPREDICTED = 2.0
"""A time is mispredicted from this factor on, either way."""


def summarize(folder: str | os.PathLike[str], top: int = 10) -> str:
    """The summary of the tables in a folder, as text."""
    if top < 1:
        raise EinsumError(f"top is a number of lines, 1 at least, not {top}")
    tables = read(folder)
    if not any(tables.values()):
        raise EinsumError(f"there are no tables of metrics in {os.fspath(folder)}")
    try:
        # Of plans that are run within another one the time is the other's already.
        plans = [row for row in tables["plans"] if row["inside"] == "0"]
        parts = [*_plans(plans, top), *_copies(tables["steps"], top), *_predictions(plans, top)]
        parts += [*_kernels(tables["kernels"], top), *_fallbacks(tables["fallbacks"], top)]
        parts += _fusions(tables["fusions"], top)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise EinsumError(f"a table in {os.fspath(folder)} has no such column, or no number in it: {error}") from None
    if not parts:
        names = ", ".join(name for name, rows in tables.items() if rows)
        raise EinsumError(f"there is nothing to sum up in {os.fspath(folder)}, which has tables of: {names}")
    return "\n".join(parts)


def _plans(plans: Sequence[Row], top: int) -> Iterator[str]:
    if not plans:
        return
    calls = sum(int(row["calls"]) for row in plans)
    yield f"{_count(len(plans), 'plan')}, {_count(calls, 'call')}"
    over = [time / _number(row, "floor_seconds") for row in plans if (time := _number(row, "median_seconds"))]
    if over:
        yield f"geometric mean of time over floor: {_geomean(over):.2f}"
    columns = {
        "all": _scaled("total_seconds", "s"),
        "one call": _scaled("median_seconds", "s"),
        **_as_written("calls", "equation", "shapes", "label"),
    }
    yield from _listed("most time", columns, sorted(plans, key=lambda row: -_number(row, "total_seconds"))[:top])


def _copies(steps: Sequence[Row], top: int) -> Iterator[str]:
    def copied(row: Row) -> float:
        return _number(row, "copied_bytes") * int(row["calls"])

    columns = {
        "all": lambda row: scaled(copied(row), "B"),
        "one call": _scaled("copied_bytes", "B"),
        **_as_written("calls", "equation", "operands"),
    }
    copying = [row for row in steps if _number(row, "copied_bytes")]
    yield from _listed("most bytes copied", columns, sorted(copying, key=lambda row: -copied(row))[:top])


def _predictions(plans: Sequence[Row], top: int) -> Iterator[str]:
    timed = [row for row in plans if _number(row, "median_seconds") and _number(row, "predicted_seconds")]
    if not timed:
        return

    def ratio(row: Row) -> float:
        return _number(row, "median_seconds") / _number(row, "predicted_seconds")

    yield f"\ngeometric mean of measured over predicted time: {_geomean(list(map(ratio, timed))):.2f}"
    wrong = [row for row in timed if not 1 / MISPREDICTED < ratio(row) < MISPREDICTED]
    columns = {
        "measured/predicted": lambda row: f"{ratio(row):.2f}",
        "measured": _scaled("median_seconds", "s"),
        "predicted": _scaled("predicted_seconds", "s"),
        **_as_written("equation", "shapes"),
    }
    title = f"mispredicted by a factor of {MISPREDICTED:g} or more: {len(wrong)} of {len(timed)}"
    yield from _listed(title, columns, sorted(wrong, key=lambda row: -abs(log(ratio(row))))[:top])


def _kernels(kernels: Sequence[Row], top: int) -> Iterator[str]:
    if not kernels:
        return
    chosen = Counter(row["chosen_by"] for row in kernels)
    yield "\nkernels chosen by " + ", ".join(f"{how}: {count}" for how, count in chosen.most_common())
    spilling = [row for row in kernels if _number(row, "spills")]
    columns = _as_written("spills", "registers", "way", "equation")
    yield from _listed("kernels that spill registers", columns, spilling[:top])


def _fallbacks(fallbacks: Sequence[Row], top: int) -> Iterator[str]:
    counted: Counter[tuple[str, str]] = Counter()
    for row in fallbacks:
        counted[row["category"], row["reason"]] += int(row["calls"])
    yield from _counted("what falls back, or is copied", ("calls", "category", "reason"), counted, top)


def _fusions(fusions: Sequence[Row], top: int) -> Iterator[str]:
    counted = Counter((row["what"], row["reason"] or "fused") for row in fusions)
    head = "times", "what", "fused, or why not"
    yield from _counted("what compiled programs were searched for", head, counted, top)


def _counted(title: str, head: tuple[str, ...], counted: Counter[tuple[str, str]], top: int) -> Iterator[str]:
    rows = [dict(zip(head, (str(count), *words), strict=True)) for words, count in counted.most_common(top)]
    yield from _listed(title, _as_written(*head), rows)


def _listed(title: str, columns: Mapping[str, Cell], rows: Sequence[Row]) -> Iterator[str]:
    if rows:
        yield f"\n{title}"
        yield from aligned([list(columns), *[[cell(row) for cell in columns.values()] for row in rows]], len(columns))


def _as_written(*names: str) -> dict[str, Cell]:
    return {name: itemgetter(name) for name in names}


def _scaled(name: str, unit: str) -> Cell:
    return lambda row: scaled(_number(row, name), unit)


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0.0)


def _geomean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
