"""The tables of the study of the operators: throughput and time of every way, against the device's own copy or GEMM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from einops_fast.profiles.ops.cases import ORDER
from einops_fast.profiles.ops.ways import NATIVE, OURS, WAYS
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

__all__ = ["backward_alone", "in_order", "of_floor", "tables"]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Per dtype and direction a table of what is bound by memory, and one of products of matrices."""
    groups: dict[tuple[str, bool, bool], list[Row]] = {}
    for row in in_order(rows):
        groups.setdefault((row.dtype, bool(row.flops), row.backward), []).append(row)
    forward = {row.key: row for row in rows if not row.backward}
    return [_table(*key, group, forward) for key, group in sorted(groups.items())]


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of the families and not in that of the run, where what matters most comes first."""
    return sorted(rows, key=lambda row: ORDER.get(row.case, len(ORDER)))


def of_floor(row: Row | None) -> float | None:
    """The share of the copy's bandwidth, or of the GEMM's rate, that a way reaches."""
    return row.floor / row.seconds if row is not None and row.floor and row.seconds else None


def backward_alone(both: Row | None, forward: Mapping[tuple[object, ...], Row]) -> tuple[float | None, float | None]:
    """Seconds of backward, and the share of its floor: what both directions take beyond a call without gradients."""
    if both is None:
        return None, None
    alone = forward.get((both.framework, both.dtype, False, both.case, both.what))
    if alone is None or not both.seconds or not alone.seconds or both.seconds <= alone.seconds:
        return None, None
    seconds = both.seconds - alone.seconds
    return seconds, ((both.floor or 0.0) - (alone.floor or 0.0)) / seconds


def _table(
    dtype: str, products: bool, backward: bool, rows: Sequence[Row], forward: Mapping[tuple[object, ...], Row]
) -> Table:
    cases = by_case(rows)
    ways = [name for name in WAYS if any(row.what == name for row in rows)]
    unit, throughput = ("TFLOP/s", teraflops) if products else ("GB/s", gigabytes)
    ceiling = "of GEMM" if products else "of copy"
    columns = (
        "case", "sizes", *(f"{name} {unit}" for name in ways), *(f"{name} ms" for name in ways), "ours spread ms",
        f"ours {ceiling}", *((f"backward ms, {ceiling}",) if backward else ()), "best peer", "best/ours", "native/ours",
        "ours host µs", "moved MB", "ours peak MB", "native peak MB", "best peak MB", "check",
    )  # fmt: skip
    cells = []
    for name, found in cases.items():
        ours, native = found.get(OURS), found.get(NATIVE)
        some = ours or next(iter(found.values()))
        best = found.get(ours.best) if ours else None
        seconds, share = backward_alone(ours, forward)
        cells.append(
            (
                name,
                some.sizes,
                *(number(throughput(found.get(way))) for way in ways),
                *(milliseconds(found[way].seconds if way in found else None) for way in ways),
                milliseconds(ours.spread if ours else None),
                _percent(of_floor(ours)),
                *((f"{milliseconds(seconds)}, {_percent(share)}",) if backward else ()),
                best.what if best else "–",
                ratio(best_over_ours(ours)),
                ratio(ours.speedup if ours else None),
                f"{ours.host * 1e6:.0f}" if ours and ours.host else "–",
                f"{some.moved * 1e-6:.1f}" if some.moved else "–",
                megabytes(ours),
                megabytes(native),
                megabytes(best),
                verdict(list(found.values())),
            )
        )
    lines, figures = comparison(cases)
    kind = "products of matrices" if products else "bound by memory"
    direction = "forward and backward" if backward else "forward"
    title = f"operators, {kind}, {dtype}, {direction}"
    return Table(title, columns, cells, lines, {"dtype": dtype, "kind": kind, "direction": direction, **figures})


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"
