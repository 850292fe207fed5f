"""The operators of ``einops_fast.ops``: ours against torch's own, torch.compile, Liger-Kernel and QuACK."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from einops_fast.profiles.cases import curve
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.ops.cases import FAMILIES
from einops_fast.profiles.ops.check import allowed_error, dropped_share, errors, relative_error
from einops_fast.profiles.ops.ways import LIBRARIES, MAKERS, check_library, op_inputs
from einops_fast.profiles.reporting.cells import gigabytes, speedup
from einops_fast.profiles.reporting.charts import Chart, Spec, case_chart, chart, curves, plane
from einops_fast.profiles.reporting.records import Ceiling, Row
from einops_fast.profiles.study import Maker, Study, Task
from einops_fast.profiles.timing.measure import Effort, Errors, Timing, check_ways, too_wrong
from einops_fast.profiles.ways import Inputs, Way, answer, as_tuple

# The errors of results and gradients, and what is wrong forward and in both directions.
Verdict = tuple[tuple[float, float], tuple[str, str]]


class OpsStudy(Study):
    """A row per dtype, case, direction and way."""

    about = "fused layers against torch's own, torch.compile, Liger-Kernel and QuACK"
    families = FAMILIES
    makers: Mapping[str, Maker] = MAKERS
    needs: Mapping[str, Callable[[Framework], object]] = {name: partial(check_library, name) for name in LIBRARIES}
    peers = tuple(MAKERS)[1:]
    guests = peers
    # Without its activation it isn't the same.
    unrivalled = ("linear",)
    on_cpu = ("ours", "native", "sdpa", "linear")
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16", "float32")}
    efforts: Mapping[str, Effort] = {
        "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
        "gpu": Effort(rounds=11, seconds=0.2, warm_up=0.002, lost=1.5, settling=0.1),
    }
    hides_launches = True
    compiled = ("ours", "compile", "liger", "quack")
    ahead_seconds = 90.0

    def shared(self, task: Task) -> dict[str, Verdict]:
        return {}

    def ways(self, task: Task) -> list[Way]:
        torch = task.framework.torch
        around = torch.enable_grad if task.backward else torch.no_grad
        return [replace(way, around=around) for way in super().ways(task)]

    def inputs(self, task: Task, seed: int) -> Inputs:
        return op_inputs(task, seed)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        """Check both directions at once: what dropout has dropped is read off the gradients."""
        given = op_inputs(replace(task, backward=True), 0)

        def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
            if way.name not in task.shared:
                with task.framework.torch.enable_grad():
                    task.shared[way.name] = _verdict(task, way, given)
            found, failures = task.shared[way.name]
            return found[: 1 + task.backward], failures[task.backward]

        return check_ways(ways, judge, self.native)

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """Return per dtype bandwidth over the length of rows, and ratios of the other cases."""
        measured = [row for row in self.in_order(rows) if row.seconds]
        charts: list[Chart | None] = []
        for dtype in dict.fromkeys(row.dtype for row in measured):
            some = [row for row in measured if row.dtype == dtype]
            copied = next((each.bandwidth * 1e-9 for each in ceilings if each.dtype == dtype), None)
            for backward, direction in ((False, "forward"), (True, "backward")):
                swept = [row for row in some if curve(row.case) and row.backward is backward]
                panels = [_bandwidth(name, points, copied) for name, points in curves(swept).items()]
                title = f"operators, {dtype}, {'forward and backward' if backward else 'forward'}"
                charts += [chart(f"{dtype}-columns-{direction}", title, panels, swept)] if panels else []
            title = f"operators, {dtype}: native time over this"
            others = [row for row in some if not curve(row.case) and row.what != "linear"]
            for kind, epoi in (("ratios", False), ("epoi", True)):
                chosen = [row for row in others if row.case.startswith("epoi") is epoi]
                axis = "native time / this, log scale (right of 1 is faster)"
                charts.append(case_chart(f"{dtype}-{kind}", title, chosen, speedup, axis, ratios=True))
        return [made for made in charts if made is not None]


def _bandwidth(name: str, points: Sequence[tuple[float, Row]], copied: float | None) -> Spec:
    sizes = [size for size, _ in points]
    roof = {} if copied is None else {min(sizes): copied, max(sizes): copied}
    return plane(name, points, gigabytes, ("columns", "GB/s"), joined=True, roof=roof, roof_label="copy")


def _verdict(task: Task, way: Way, given: Inputs) -> Verdict:
    """Find out what is wrong with results, with and without gradients, and with results and gradients together."""
    case, verdicts = task.case, task.shared
    if way.name == "linear":
        case = replace(case, activation="")
    shapes = [tuple(each.shape) for each in (*given.cotangents, *given.operands)]
    results, gradients = answer(way, given, shapes, task.dtype)
    values, slopes = errors(case, given, results, gradients)
    dropped = dropped_share(case, *gradients[:2]) if case.p else ""
    if not case.p:  # with dropout each call drops others
        with task.framework.torch.no_grad():
            alone = as_tuple(way.bind(given)[0]())
        values = max(values, *map(relative_error, alone, results))
    standard, wrong = verdicts.get("native", (None, ("", "")))
    standard = None if wrong[True] else standard
    limits = [allowed_error(case, task.dtype, standard and standard[at], gradient=bool(at)) for at in (False, True)]
    failure = too_wrong(values, limits[0]) or dropped
    return (values, slopes), (failure, failure or too_wrong(slopes, limits[1]))
