"""Sections about attention and the operators: the losses and layers in short, and the plots of all cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from einops_fast.profiles.ops.cases import FAMILIES
from einops_fast.profiles.ops.study import in_order
from einops_fast.profiles.ops.ways import OURS as OPERATOR
from einops_fast.profiles.reporting.case_tables import megabytes, milliseconds, ratio
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean, markdown_table
from einops_fast.profiles.reporting.results import RESULTS, read_result

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
    images = [f"![{name.removesuffix('.svg')}]({name})" for name in dict.fromkeys(names)]
    return "\n\n".join(images) or "No result is kept yet."


CASES: dict[str, Callable[[], str]] = {
    "attention-plots": partial(_plots, "attention"),
    "ops-in-short": _ops_in_short,
    "ops-plots": partial(_plots, "ops"),
}
"""What makes each section, by name."""
