"""Attention: ours, chosen automatically, against each implementation alone, torch's own call and plain einsum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from einops_fast.errors import OperandError
from einops_fast.profiles.attention.cases import FAMILIES
from einops_fast.profiles.attention.check import Extras, largest_error, reference
from einops_fast.profiles.attention.ways import MAKERS, attention_inputs, chosen_by_ours, extras
from einops_fast.profiles.reporting.cells import gigabytes, teraflops
from einops_fast.profiles.reporting.charts import Chart, case_chart
from einops_fast.profiles.reporting.records import Ceiling, Row, is_own
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.accuracy import rounded
from einops_fast.profiles.timing.measure import Effort, Errors, Timing, check_ways, too_wrong
from einops_fast.profiles.ways import Inputs, Way, answer


class AttentionStudy(Study):
    """A row per dtype, case, direction and way; ours with what was chosen."""

    about = "attention in every layout and with every feature, against each implementation alone"
    families = FAMILIES
    makers: Mapping[str, Callable[[Task], Way]] = MAKERS
    peers = tuple(name for name in MAKERS if not is_own(name))
    guests = peers
    on_cpu = ("ours", "native", "naive")
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16", "float16")}
    efforts: Mapping[str, Effort] = {
        "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
        "gpu": Effort(rounds=15, seconds=0.6, warm_up=0.01, lost=1.5, settling=0.1),
    }
    compiled = ("flex", "triton")

    def shared(self, task: Task) -> Extras:
        return extras(task.case, task.framework)

    def inputs(self, task: Task, seed: int) -> Inputs:
        return attention_inputs(task, seed)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        case, given = task.case, self.inputs(task, 0)
        expected = reference(case, given.operands, given.cotangents, task.shared)
        limit = rounded(task.dtype, case.kv_len)
        shapes = [case.result_shape, *(case.shapes if task.backward else ())]

        def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
            results, gradients = answer(way, given, shapes, task.dtype)
            error = largest_error(case, (*results, *gradients), expected)
            return (error,), too_wrong(error, limit)

        # An implementation that isn't made for the case has no row: explain_attention says why.
        return check_ways(ways, judge, self.native, OperandError)

    def told(self, task: Task, row: Row, timing: Timing) -> Row:
        return replace(row, chosen=chosen_by_ours(task, timing.operands)) if row.what == self.ours else row

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        groups: dict[tuple[str, str], list[Row]] = {}
        for row in rows:
            groups.setdefault((row.dtype, row.case.partition("-")[0]), []).append(row)
        charts = []
        for (dtype, family), group in groups.items():
            unit, value = ("GB/s", gigabytes) if family == "decode" else ("TFLOP/s", teraflops)
            title, axis = f"attention, {dtype}", f"{unit} (more is better)"
            charts.append(case_chart(f"{dtype}-{family}", title, group, value, axis, ratios=False))
        return [chart for chart in charts if chart is not None]
