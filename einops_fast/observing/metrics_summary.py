"""What follows from tables of metrics: where time goes, what is copied, what was predicted wrongly, what falls back."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp, log

from einops_fast.errors import EinsumError
from einops_fast.explanation import scaled
from einops_fast.metrics import read
from einops_fast.observing.tables import aligned

__all__ = ["summarize"]

Row = dict[str, str]

MISPREDICTED = 2.0
"""A time is mispredicted from this factor on, either way."""


def summarize(folder: str | os.PathLike[str], top: int = 10) -> str:
    """The summary of the tables in a folder, as text.

    Args:
        folder: with tables that :mod:`einops_fast.metrics` wrote.
        top: the most lines of each list.

    Raises:
        EinsumError: there are none, or ``top`` isn't 1 at least.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from einops_fast import fast_einsum, metrics
        >>> from einops_fast.observing.metrics_summary import summarize
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with metrics.record(folder):
        ...         _ = fast_einsum('id,jd->ij', np.ones((2, 3)), np.ones((4, 3)))
        ...     print(summarize(folder).splitlines()[0])
        1 plan, 1 call
    """
    if top < 1:
        raise EinsumError(f"top is a number of lines, 1 at least, not {top}")
    tables = read(folder)
    if not any(tables.values()):
        raise EinsumError(f"there are no tables of metrics in {os.fspath(folder)}")
    # Of plans that are run within another one the time is the other's already.
    plans = [row for row in tables["plans"] if row["inside"] == "0"]
    parts = [*_plans(plans, top), *_copies(tables["steps"], top), *_predictions(plans, top)]
    parts += [*_kernels(tables["kernels"], top), *_fallbacks(tables["fallbacks"], top)]
    parts += _fusions(tables["fusions"], top)
    return "\n".join(parts)


def _plans(plans: Sequence[Row], top: int) -> Iterator[str]:
    if not plans:
        return
    calls = sum(int(row["calls"]) for row in plans)
    yield f"{_count(len(plans), 'plan')}, {_count(calls, 'call')}"
    timed = [row for row in plans if _number(row, "median_seconds")]
    if timed:
        over = [_number(row, "median_seconds") / _number(row, "floor_seconds") for row in timed]
        yield f"geometric mean of time over floor: {_geomean(over):.2f}"
    ordered = sorted(plans, key=lambda row: -_number(row, "total_seconds"))[:top]
    yield from _listed(
        "most time",
        ["all", "one call", "calls", "equation", "shapes", "label"],
        [
            [
                scaled(_number(row, "total_seconds"), "s"),
                scaled(_number(row, "median_seconds"), "s"),
                row["calls"],
                row["equation"],
                row["shapes"],
                row["label"],
            ]
            for row in ordered
        ],
    )


def _copies(steps: Sequence[Row], top: int) -> Iterator[str]:
    copying = [row for row in steps if _number(row, "copied_bytes")]
    ordered = sorted(copying, key=lambda row: -_number(row, "copied_bytes") * int(row["calls"]))[:top]
    yield from _listed(
        "most bytes copied",
        ["all", "one call", "calls", "equation", "operands"],
        [
            [
                scaled(_number(row, "copied_bytes") * int(row["calls"]), "B"),
                scaled(_number(row, "copied_bytes"), "B"),
                row["calls"],
                row["equation"],
                row["operands"],
            ]
            for row in ordered
        ],
    )


def _predictions(plans: Sequence[Row], top: int) -> Iterator[str]:
    ratios = [
        (_number(row, "median_seconds") / _number(row, "predicted_seconds"), row)
        for row in plans
        if _number(row, "median_seconds") and _number(row, "predicted_seconds")
    ]
    if not ratios:
        return
    yield f"\ngeometric mean of measured over predicted time: {_geomean([ratio for ratio, _ in ratios]):.2f}"
    wrong = [pair for pair in ratios if not 1 / MISPREDICTED < pair[0] < MISPREDICTED]
    wrong.sort(key=lambda pair: -abs(log(pair[0])))
    yield from _listed(
        f"mispredicted by a factor of {MISPREDICTED:g} or more: {len(wrong)} of {len(ratios)}",
        ["measured/predicted", "measured", "predicted", "equation", "shapes"],
        [
            [
                f"{ratio:.2f}",
                scaled(_number(row, "median_seconds"), "s"),
                scaled(_number(row, "predicted_seconds"), "s"),
                row["equation"],
                row["shapes"],
            ]
            for ratio, row in wrong[:top]
        ],
    )


def _kernels(kernels: Sequence[Row], top: int) -> Iterator[str]:
    if not kernels:
        return
    chosen = Counter(row["chosen_by"] for row in kernels)
    yield "\nkernels chosen by " + ", ".join(f"{how}: {count}" for how, count in chosen.most_common())
    spilling = [row for row in kernels if _number(row, "spills")]
    yield from _listed(
        "kernels that spill registers",
        ["spills", "registers", "way", "equation"],
        [[row["spills"], row["registers"], row["way"], row["equation"]] for row in spilling[:top]],
    )


def _fallbacks(fallbacks: Sequence[Row], top: int) -> Iterator[str]:
    counted: Counter[tuple[str, str]] = Counter()
    for row in fallbacks:
        counted[row["category"], row["reason"]] += int(row["calls"])
    yield from _listed(
        "what falls back, or is copied",
        ["calls", "category", "reason"],
        [[str(count), category, reason] for (category, reason), count in counted.most_common(top)],
    )


def _fusions(fusions: Sequence[Row], top: int) -> Iterator[str]:
    counted = Counter((row["what"], row["reason"] or "fused") for row in fusions)
    yield from _listed(
        "what compiled programs were searched for",
        ["times", "what", "fused, or why not"],
        [[str(count), what, how] for (what, how), count in counted.most_common(top)],
    )


def _listed(title: str, head: list[str], rows: list[list[str]]) -> Iterator[str]:
    if rows:
        yield f"\n{title}"
        yield from aligned([head, *rows], left=len(head))


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0.0)


def _geomean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
