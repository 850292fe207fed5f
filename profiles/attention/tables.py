"""The tables of the attention study: throughput of every way, and in a few lines what follows from all cases."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from einops_fast.profiles.attention.ways import OURS, WAYS
from einops_fast.profiles.reporting.case_tables import (
    best_over_ours,
    by_case,
    comparison,
    gigabytes,
    megabytes,
    number,
    teraflops,
    verdict,
)
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import Table, milliseconds, ratio

__all__ = ["tables"]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Per dtype a table of forward calls, and one of forward and backward."""
    ordered = sorted(rows, key=lambda row: (row.framework, row.dtype, row.backward))
    return [
        _table(dtype, backward, list(group))
        for (_, dtype, backward), group in groupby(ordered, key=lambda row: (row.framework, row.dtype, row.backward))
    ]


def _table(dtype: str, backward: bool, rows: Sequence[Row]) -> Table:
    cases = by_case(rows)
    present = {row.what for row in rows}
    ways = [name for name in WAYS if name in present]
    columns = (
        "case", "sizes", *(f"{name} TFLOP/s" for name in ways), *(f"{name} ms" for name in ways),
        "best peer", "best/ours", "ours by", "GB/s", "ours/floor", "ours peak MB", "best peak MB", "check",
    )  # fmt: skip
    cells = []
    for name, found in cases.items():
        ours = found.get(OURS)
        some = ours or next(iter(found.values()))
        best = found.get(ours.best) if ours else None
        cells.append(
            (
                name,
                some.sizes,
                *(number(teraflops(found.get(way))) for way in ways),
                *(milliseconds(found[way].seconds if way in found else None) for way in ways),
                best.what if best else "–",
                ratio(best_over_ours(ours)),
                ours.chosen if ours else "–",
                number(gigabytes(ours)),
                ratio(ours.seconds / ours.floor if ours and ours.seconds and ours.floor else None),
                megabytes(ours),
                megabytes(best),
                verdict(list(found.values())),
            )
        )
    lines, figures = comparison(cases)
    direction = "forward and backward" if backward else "forward"
    figures = {"dtype": dtype, "direction": direction, **figures}
    return Table(f"attention, {dtype}, {direction}", columns, cells, lines, figures)
