"""Sections of docs about attention and the operators: a table of all cases per device and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from einops_fast.profiles.attention_ways import OURS as ATTENTION
from einops_fast.profiles.attention_ways import WAYS
from einops_fast.profiles.case_tables import best_over_ours, by_case, gigabytes, megabytes, number, teraflops
from einops_fast.profiles.ops_cases import FAMILIES
from einops_fast.profiles.ops_tables import backward_alone, in_order, of_floor
from einops_fast.profiles.ops_ways import OURS as OPERATOR
from einops_fast.profiles.ops_ways import WAYS as OPERATORS
from einops_fast.profiles.records import Row
from einops_fast.profiles.report import geomean, markdown_table, milliseconds, ratio
from einops_fast.profiles.results import RESULTS, read_result

__all__ = ["CASES", "kept_files"]


def kept_files(study: str) -> list[Path]:
    """The kept results of a study, those of single families too."""
    return [path for path in sorted(RESULTS.glob(f"{study}-*.json")) if not path.stem.endswith("-partial")]


def _by_device_and_dtype(study: str, told: Callable[[str, str, Sequence[Row]], str]) -> str:
    """What is told of each device and dtype in the kept results of a study."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for result in map(read_result, kept_files(study)):
        for row in result.measured:
            groups.setdefault((result.device, row.dtype), []).append(row)
    texts = [told(device, dtype, rows) for (device, dtype), rows in groups.items()]
    return "\n\n".join(texts) or f"No result is kept yet: `python -m einops_fast.profiles {study}` measures."


def _attention() -> str:
    """Throughput of every way, forward / forward and backward, per device and dtype."""
    return _by_device_and_dtype("attention", _attention_of)


def _attention_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    both = [by_case([row for row in rows if row.backward is backward]) for backward in (False, True)]
    ways = [name for name in WAYS if any(row.what == name and row.seconds for row in rows)]
    cells = []
    for case in dict.fromkeys(row.case for row in rows):
        found = [cases[case] for cases in both if case in cases]
        ours = [each[ATTENTION] for each in found if ATTENTION in each]
        cells.append(
            (
                f"`{case}`",
                next(row.sizes for row in rows if row.case == case),
                *(" / ".join(number(teraflops(each.get(way))) for each in found) for way in ways),
                " / ".join(f"{1 / row.to_best:.2f}" if row.to_best else "–" for row in ours),
                " / ".join(row.chosen or "–" for row in ours),
                " / ".join(f"{row.floor / row.seconds:.0%}" if row.floor and row.seconds else "–" for row in ours),
            )
        )
    head = (
        "case",
        "batch×heads×positions×features",
        *(f"`{way}`" for way in ways),
        "best peer / ours",
        "ours is",
        "of the roofline",
    )
    return f"{device}, {dtype}, TFLOP/s, forward / forward and backward:\n\n{markdown_table(head, cells)}"


def _ops() -> str:
    """Per device and dtype how near ours comes to the device's copy or GEMM, and how the others compare."""
    return _by_device_and_dtype("ops", _ops_of)


def _ops_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    forward, both = (by_case([row for row in in_order(rows) if row.backward is backward]) for backward in (False, True))
    alone = {row.key: row for row in rows if not row.backward}
    ways = [name for name in OPERATORS if any(row.what == name and row.seconds for row in rows)]
    cells = []
    for case in dict.fromkeys([*forward, *both]):
        found = [cases[case] for cases in (forward, both) if case in cases]
        some = next(iter(found[0].values()))
        ours = both.get(case, {}).get(OPERATOR)
        shares = [of_floor(forward.get(case, {}).get(OPERATOR)), backward_alone(ours, alone)[1]]
        unit = "TFLOP/s" if some.flops else "GB/s"
        rate = teraflops if some.flops else gigabytes
        cells.append(
            (
                f"`{case}`",
                some.sizes,
                unit,
                *(" / ".join(number(rate(each.get(way))) for each in found) for way in ways),
                " / ".join("–" if share is None else f"{share:.0%}" for share in shares),
                " / ".join(ratio(best_over_ours(each.get(OPERATOR))) for each in found),
                " / ".join(megabytes(each.get(OPERATOR)) for each in found),
                " / ".join(megabytes(each.get("native")) for each in found),
            )
        )
    head = (
        "case",
        "shape",
        "unit",
        *(f"`{way}`" for way in ways),
        "ours of copy or GEMM, forward / backward alone",
        "best peer / ours",
        "ours peak MB",
        "native peak MB",
    )
    return f"{device}, {dtype}, forward / forward and backward:\n\n{markdown_table(head, cells)}"


def _ops_in_short() -> str:
    """Per device and dtype how far ours is ahead of the best peer, and the losses and layers against torch's own."""
    return _by_device_and_dtype("ops", _ops_in_short_of)


def _ops_in_short_of(device: str, dtype: str, rows: Sequence[Row]) -> str:
    ours = [row for row in in_order(rows) if row.what == OPERATOR and row.seconds]
    forward, both = ([row for row in ours if row.backward is backward] for backward in (False, True))
    ahead = [geomean(1 / row.to_best for row in some if row.to_best) for some in (forward, both)]
    text = (
        f"{device}, {dtype}: {ahead[0]:.2f} times as fast as the best of the others forward, and {ahead[1]:.2f} times "
        f"forward and backward, in the geometric mean of {len(forward)} and {len(both)} cases. Forward and backward:"
    )
    shown = [case.name for family in ("losses", "layers") for case in FAMILIES[family]]
    native = {row.case: row for row in rows if row.what == "native" and row.backward and row.seconds}
    cells = [
        (
            f"`{row.case}`",
            milliseconds(native[row.case].seconds),
            milliseconds(row.seconds),
            ratio(row.speedup),
            megabytes(native[row.case]),
            megabytes(row),
        )
        for row in both
        if row.case in shown and row.case in native
    ]
    head = ("case", "torch ms", "ours ms", "torch / ours", "torch peak MB", "ours peak MB")
    return f"{text}\n\n{markdown_table(head, cells)}" if cells else text


def _plots(study: str) -> str:
    """The plots that lie beside the kept results of a study."""
    names = [path.name for file in kept_files(study) for path in sorted(RESULTS.glob(f"{file.stem}-*.svg"))]
    images = [f"![{name.removesuffix('.svg')}](../profiles/results/{name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images) or "No result is kept yet."


CASES: dict[str, Callable[[], str]] = {
    "attention": _attention,
    "attention-plots": partial(_plots, "attention"),
    "ops": _ops,
    "ops-in-short": _ops_in_short,
    "ops-plots": partial(_plots, "ops"),
}
"""What makes each section, by name."""
