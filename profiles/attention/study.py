"""Attention: ours, chosen automatically, against each implementation alone, torch's own call and plain einsum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from einops_fast.errors import OperandError
from einops_fast.profiles.attention.cases import FAMILIES, AttentionCase, scaled
from einops_fast.profiles.attention.check import Extras, allowed_error, largest_error, reference
from einops_fast.profiles.attention.ways import (
    NAIVE,
    NATIVE,
    OURS,
    WAYS,
    attention_inputs,
    attention_ways,
    chosen_by_ours,
    extras,
)
from einops_fast.profiles.cases import select
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting import cells
from einops_fast.profiles.reporting.charts import Chart, bars
from einops_fast.profiles.reporting.records import Ceiling, Options, Record, Row, is_own
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import Effort, Errors, Timed, Timing, check_ways, too_wrong
from einops_fast.profiles.ways import Inputs, Way, answer

__all__ = ["CPU_CASES", "AttentionStudy"]

ROWS_ONLY = "float16"
"""Of this one only the ``rows`` are measured, unless someone asks for it: it takes as long as bfloat16."""

ON_CPU = (OURS, NATIVE, NAIVE)

LARGEST_AHEAD = 1 << 30
"""Elements of a case: of a larger one, the processes that compile would not fit in memory together."""

CPU_CASES = (
    "row-2x16x8192x64",
    "row-2x16x8192x64-causal",
    "layout-bshd",
    "feature-window",
    "feature-softcap",
    "feature-bias",
    "feature-mask",
    "feature-values-odd",
    "heads-32-8-causal",
    "varlen",
    "decode-8x16k",
)
"""The public ones on a CPU."""


class AttentionStudy(Study):
    """A row per dtype, case, direction and way; ours with what was chosen."""

    about = "attention in every layout and with every feature, against each implementation alone"
    families = FAMILIES
    peers = tuple(name for name in WAYS if not is_own(name))
    guests = peers
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16", "float16")}
    efforts: Mapping[str, Effort] = {
        "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
        "gpu": Effort(rounds=15, seconds=0.6, warm_up=0.01, lost=1.5, settling=0.1),
    }
    compiled = ("flex", "triton")

    def wanted(self, framework: Framework, dtype: str, options: Options) -> Sequence[AttentionCase]:
        found = select(FAMILIES[options.cases], options.only)
        if framework.device == "gpu":
            return [case for case in found if options.dtypes or dtype != ROWS_ONLY or case in FAMILIES["rows"]]
        # Two cores take minutes for all; whoever asks for others by name gets them.
        every = options.only or options.cases != "public"
        return [case for case in found if every or case.name in CPU_CASES]

    def scaled(self, case: AttentionCase, device: str, dtype: str) -> AttentionCase:
        return scaled(case, device)

    def directions(self, framework: Framework, case: AttentionCase, options: Options) -> tuple[bool, ...]:
        return (False, True) if case.trained and not options.forward_only else (False,)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[tuple[str, ...], list[Record]]:
        measured = options.peers or self.peers
        # Ours comes last: its choice measures what is compiled by then.
        names = [name for name in WAYS if name != OURS and (is_own(name) or name in measured)]
        return tuple(name for name in (*names, OURS) if framework.device == "gpu" or name in ON_CPU), []

    def shared(self, task: Task) -> Extras:
        return extras(task.case, task.framework)

    def ways(self, task: Task) -> list[Way]:
        return attention_ways(task)

    def inputs(self, task: Task, framework: Framework, seed: int, *, shared: bool = False) -> Inputs:
        return attention_inputs(task, seed)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        case, given = task.case, self.inputs(task, task.framework, 0)
        expected = reference(case, given.operands, given.cotangents, task.shared)
        limit = allowed_error(case, task.dtype)
        shapes = [case.result_shape, *(case.shapes if task.backward else ())]

        def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
            results, gradients = answer(way, given, shapes, task.dtype)
            error = largest_error(case, (*results, *gradients), expected)
            return (error,), too_wrong(error, limit)

        # An implementation that isn't made for the case has no row: explain_attention says why.
        return check_ways(ways, judge, NATIVE, lambda way, error: way.name != OURS and isinstance(error, OperandError))

    def told(self, task: Task, row: Row, timed: Timed) -> Row:
        return replace(row, chosen=chosen_by_ours(task, timed.operands)) if row.what == OURS else row

    def compiled_for(self, case: AttentionCase, dtype: str, backward: bool, offered: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in self.compiled if name in offered and case.elements() <= LARGEST_AHEAD)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Per dtype a table of forward calls, and one of forward and backward."""

        def group(row: Row) -> tuple[str, bool]:
            return row.dtype, row.backward

        return [_table(*key, list(some)) for key, some in groupby(sorted(rows, key=group), key=group)]

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """A chart per dtype and family."""
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.dtype, row.case.partition("-")[0]), []).append(row)
        charts = []
        for (dtype, family), group in groups.items():
            unit, value = ("GB/s", cells.gigabytes) if family == "decode" else ("TFLOP/s", cells.teraflops)
            panels = bars(group, WAYS, value, unit, ratios=False)
            charts.append(Chart(f"{dtype}-{family}", f"attention, {dtype}", panels))
        return [chart for chart in charts if chart.panels]


def _table(dtype: str, backward: bool, rows: Sequence[Row]) -> Table:
    ways = [name for name in WAYS if any(row.what == name for row in rows)]
    columns = [
        cells.CASE,
        cells.SIZES,
        *cells.by_way(ways, "TFLOP/s", lambda row: cells.number(cells.teraflops(row))),
        *cells.by_way(ways, "ms", cells.time_of),
        cells.BEST_PEER,
        cells.BEST_OVER_OURS,
        cells.Column("ours by", lambda line: line.ours.chosen if line.ours else "–"),
        cells.Column("GB/s", lambda line: cells.number(cells.gigabytes(line.ours))),
        cells.Column("ours/floor", lambda line: cells.ratio(cells.over_floor(line.ours))),
        cells.OURS_PEAK,
        cells.BEST_PEAK,
        cells.VERDICT,
    ]
    direction = "forward and backward" if backward else "forward"
    summary, figures = cells.comparison(rows)
    title = f"attention, {dtype}, {direction}"
    return cells.table(title, cells.lines_of(rows, OURS), columns, summary, dtype=dtype, direction=direction, **figures)
