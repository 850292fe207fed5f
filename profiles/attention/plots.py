"""Plots of the attention study: for each family a bar per case and way, forward and with backward side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from einops_fast.profiles.attention.ways import WAYS
from einops_fast.profiles.reporting.bar_plots import bars
from einops_fast.profiles.reporting.case_tables import gigabytes, teraflops
from einops_fast.profiles.reporting.plot_style import saved
from einops_fast.profiles.reporting.records import Row

__all__ = ["draw_attention"]

BY_BYTES = "decode"
"""The family that is told in bytes per second."""


def draw_attention(rows: Sequence[Row], stem: Path) -> list[Path]:
    """Draw a figure per dtype and family; the files' names begin with ``stem``."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.dtype, row.case.partition("-")[0]), []).append(row)
    paths = []
    for (dtype, family), group in groups.items():
        if any(row.seconds for row in group):
            named = stem.with_name(f"{stem.name}-{dtype}-{family}")
            paths += saved(named, lambda group=group, dtype=dtype: _figure(group, dtype))  # type: ignore[misc]
    return paths


def _figure(rows: Sequence[Row], dtype: str) -> Any:
    in_bytes = all(row.case.startswith(BY_BYTES) for row in rows)
    value, unit = (gigabytes, "GB/s") if in_bytes else (teraflops, "TFLOP/s")
    return bars(rows, WAYS, f"attention, {dtype}", value, unit)
