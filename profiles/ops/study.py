"""The operators of ``einops_fast.ops``: ours against torch's own, torch.compile, Liger-Kernel and QuACK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from einops_fast.profiles.cases import curve, select
from einops_fast.profiles.contraction.peers import Compiler
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.ops.cases import CPU_NAMES, FAMILIES, HALF, MODELS, ORDER, OpCase, scaled
from einops_fast.profiles.ops.check import (
    allowed_error,
    dropout_wrong,
    dropped_share,
    errors,
    model_errors,
    relative_error,
)
from einops_fast.profiles.ops.models import ModuleWay, model_reference
from einops_fast.profiles.ops.ways import (
    COMPILE,
    LINEAR,
    NATIVE,
    OURS,
    PACKED,
    WAYS,
    Offer,
    libraries,
    make_ways,
    op_inputs,
)
from einops_fast.profiles.reporting import cells
from einops_fast.profiles.reporting.charts import Chart, Points, bars, curves, series
from einops_fast.profiles.reporting.records import Ceiling, Options, Record, Row
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import Effort, Errors, Timing, check_ways, too_wrong
from einops_fast.profiles.ways import Inputs, Way, answer

__all__ = ["OpsStudy", "in_order"]

ON_CPU = (OURS, NATIVE, PACKED, LINEAR)

COMPILING = 90.0
"""Seconds that torch.compile may take for all cases together."""

LARGEST_AHEAD = 1 << 29
"""Elements to move of a case: of a larger one, the processes that compile would not fit in memory together."""

Answer = tuple[tuple[Any, ...], tuple[Any, ...]]
"""Results and gradients."""


@dataclass(frozen=True)
class Verdict:
    """The errors of results and gradients, and what is wrong forward and in both directions."""

    errors: tuple[float, float]
    failures: tuple[str, str]


@dataclass
class Shared:
    """What both directions of a case need: its ways, and what is known about them."""

    ways: list[Way]
    expected: Answer | None = None
    verdicts: dict[str, Verdict | Exception] = field(default_factory=dict)


class OpsStudy(Study):
    """A row per dtype, case, direction and way."""

    about = "fused layers against torch's own, torch.compile, Liger-Kernel and QuACK"
    families = FAMILIES
    peers = tuple(name for name in WAYS if name != OURS)
    guests = peers
    # Without its activation it isn't the same.
    unrivalled = (LINEAR,)
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16", "float32")}
    efforts: Mapping[str, Effort] = {
        "cpu": Effort(rounds=7, seconds=0.1, warm_up=0.005),
        "gpu": Effort(rounds=11, seconds=0.2, warm_up=0.002, lost=1.5, settling=0.1),
    }
    hides_launches = True
    compiled = (OURS, COMPILE, "liger", "quack")
    ahead_seconds = 90.0

    def wanted(self, framework: Framework, dtype: str, options: Options) -> Sequence[OpCase]:
        found = select(FAMILIES[options.cases], options.only)
        if framework.device == "gpu":
            # Who asks for a dtype gets it.
            return [case for case in found if options.dtypes or dtype in HALF or not case.halves]
        # Two cores take minutes for all; whoever asks for others by name gets them.
        every = options.only or options.cases != "public"
        return [case for case in found if every or case.name in CPU_NAMES]

    def scaled(self, case: OpCase, device: str, dtype: str) -> OpCase:
        return scaled(case, device, dtype)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[Offer, list[Record]]:
        names = tuple(name for name in WAYS if name == OURS or name in (options.peers or self.peers))
        if framework.device == "cpu":
            names = tuple(name for name in names if name in ON_CPU or name in options.peers)
        return Offer(names, Compiler(framework.torch, altogether=COMPILING)), libraries(framework, names, cases)

    def shared(self, task: Task) -> Shared:
        return Shared(make_ways(task))

    def ways(self, task: Task) -> list[Way]:
        torch = task.framework.torch
        around = torch.enable_grad if task.backward else torch.no_grad
        return [replace(way, around=around) for way in task.shared.ways]

    def inputs(self, task: Task, framework: Framework, seed: int, *, shared: bool = False) -> Inputs:
        return op_inputs(task, seed)

    def check(self, task: Task, ways: Sequence[Way]) -> list[Timing]:
        """Check both directions at once: what dropout has dropped is read off the gradients."""
        shared: Shared = task.shared
        given = op_inputs(replace(task, backward=True), 0)
        with task.framework.torch.enable_grad():
            if task.case.op in MODELS and shared.expected is None:
                shared.expected = _answer(task, model_reference(task), _exact(given))

        def judge(way: Way, native: Errors | None) -> tuple[Errors, str]:
            if way.name not in shared.verdicts:
                try:
                    with task.framework.torch.enable_grad():
                        shared.verdicts[way.name] = _verdict(task, way, given)
                except Exception as error:
                    shared.verdicts[way.name] = error
            verdict = shared.verdicts[way.name]
            if isinstance(verdict, Exception):
                raise verdict
            return verdict.errors[: 1 + task.backward], verdict.failures[task.backward]

        return check_ways(ways, judge, NATIVE)

    def compiled_for(self, case: OpCase, dtype: str, backward: bool, offered: Offer) -> tuple[str, ...]:
        if case.elements() > LARGEST_AHEAD:
            return ()
        return tuple(name for name in self.compiled if name in offered.names and (name != COMPILE or case.compiled))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Per dtype and direction a table of what is bound by memory, and one of products of matrices."""
        groups: dict[tuple[str, bool, bool], list[Row]] = {}
        for row in in_order(rows):
            groups.setdefault((row.dtype, bool(row.flops), row.backward), []).append(row)
        forward = {row.key: row for row in rows if not row.backward}
        return [_table(*key, group, forward) for key, group in sorted(groups.items())]

    def charts(self, rows: Sequence[Row], ceilings: Sequence[Ceiling]) -> list[Chart]:
        """Per dtype bandwidth over the length of rows, and ratios of the other cases as bars."""
        measured = [row for row in in_order(rows) if row.seconds]
        charts = []
        for dtype in dict.fromkeys(row.dtype for row in measured):
            some = [row for row in measured if row.dtype == dtype]
            copied = next((each.bandwidth * 1e-9 for each in ceilings if each.dtype == dtype), None)
            for backward, direction in ((False, "forward"), (True, "backward")):
                title = f"operators, {dtype}, {'forward and backward' if backward else 'forward'}"
                swept = curves(row for row in some if curve(row.case) and row.backward is backward)
                panels = tuple(_bandwidth(name, points, copied) for name, points in swept.items())
                charts.append(Chart(f"{dtype}-columns-{direction}", title, panels))
            others = [row for row in some if not curve(row.case) and row.what != LINEAR]
            for kind, epoi in (("ratios", False), ("epoi", True)):
                chosen = [row for row in others if row.case.startswith("epoi") is epoi]
                ratios = bars(chosen, WAYS, lambda row: row.speedup, "native time / this", ratios=True)
                charts.append(Chart(f"{dtype}-{kind}", f"operators, {dtype}: native time over that of each", ratios))
        return [chart for chart in charts if chart.panels]


def _bandwidth(name: str, points: Sequence[tuple[int, Row]], copied: float | None) -> Points:
    found = series(points, cells.gigabytes)
    sizes = [size for size, _ in points]
    roof = () if copied is None else ((min(sizes), copied), (max(sizes), copied))
    return Points(name, "columns", "GB/s", found, joined=True, roof=roof, roof_label="copy", from_zero=True)


def _answer(task: Task, way: Way, given: Inputs) -> Answer:
    """Return what one call gives; a module without dropout."""
    shapes = [tuple(each.shape) for each in (*given.cotangents, *given.operands)]
    return answer(_without_dropout(way), given, shapes, task.dtype)


def _without_dropout(way: Way) -> Way:
    return replace(way, training=False) if isinstance(way, ModuleWay) else way


def _exact(given: Inputs) -> Inputs:
    operands = tuple(each.detach().double().requires_grad_() for each in given.operands)
    return replace(given, operands=operands, cotangents=tuple(each.double() for each in given.cotangents))


def _verdict(task: Task, way: Way, given: Inputs) -> Verdict:
    """Find out what is wrong with results, with and without gradients, and with results and gradients together."""
    case, shared = task.case, task.shared
    if way.name == LINEAR:
        case = replace(case, activation="")
    torch = task.framework.torch
    results, gradients = _answer(task, way, given)
    with torch.no_grad():
        alone = _tuple(_without_dropout(way).bind(given).forward())
    if shared.expected is not None:
        found = model_errors(results, gradients, *shared.expected)
        alone_error, _ = model_errors(alone, gradients, *shared.expected)
    else:
        found = errors(case, given, results, gradients)
        # With dropout each call drops others.
        alone_error = 0.0 if case.p else max(map(relative_error, alone, results))
    native = shared.verdicts.get(NATIVE)
    standard = native.errors if isinstance(native, Verdict) and not native.failures[True] else None
    limits = [allowed_error(case, task.dtype, standard and standard[at], gradient=bool(at)) for at in (False, True)]
    dropped = ""
    if case.p and shared.expected is None:
        dropped = dropped_share(case, *gradients[:2])
    elif case.p:
        forward = way.bind(given).forward
        with torch.no_grad():
            first, second = (_tuple(forward())[0] for _ in range(2))
        dropped = dropout_wrong(first, second, shared.expected[0][0], linear=case.op.endswith("attention"))
    worst = max(found[0], alone_error), found[1]
    failure = too_wrong(worst[0], limits[0]) or dropped
    return Verdict(worst, (failure, failure or too_wrong(worst[1], limits[1])))


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


# Tables


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows in the order of the families and not in that of the run, where what matters most comes first."""
    return sorted(rows, key=lambda row: ORDER.get(row.case, len(ORDER)))


def _backward_alone(both: Row | None, forward: Mapping[tuple[object, ...], Row]) -> str:
    """Tell the time of backward, and the share of its floor: what both directions take beyond a call forward."""
    alone = forward.get((both.framework, both.dtype, False, both.case, both.what)) if both else None
    seconds = (cells.of(both, "seconds") or 0.0) - (cells.of(alone, "seconds") or 0.0)
    if both is None or alone is None or not both.seconds or not alone.seconds or seconds <= 0:
        return "–, –"
    floor = (both.floor or 0.0) - (alone.floor or 0.0)
    return f"{cells.milliseconds(seconds)}, {cells.percent(floor / seconds)}"


def _host_told(line: cells.Line) -> str:
    host = cells.of(line.ours, "host")
    return f"{host * 1e6:.0f}" if host else "–"


def _table(
    dtype: str, products: bool, backward: bool, rows: Sequence[Row], forward: Mapping[tuple[object, ...], Row]
) -> Table:
    ways = [name for name in WAYS if any(row.what == name for row in rows)]
    unit, throughput = ("TFLOP/s", cells.teraflops) if products else ("GB/s", cells.gigabytes)
    ceiling = "of GEMM" if products else "of copy"
    alone = cells.Column[cells.Line](f"backward ms, {ceiling}", lambda line: _backward_alone(line.ours, forward))
    columns = [
        cells.CASE,
        cells.SIZES,
        *cells.by_way(ways, unit, lambda row: cells.number(throughput(row))),
        *cells.by_way(ways, "ms", cells.time_of),
        cells.Column("ours spread ms", lambda line: cells.milliseconds(cells.of(line.ours, "spread"))),
        cells.Column(f"ours {ceiling}", lambda line: cells.percent(cells.times(1, 1.0, cells.over_floor(line.ours)))),
        *([alone] if backward else []),
        cells.BEST_PEER,
        cells.BEST_OVER_OURS,
        cells.Column("native/ours", lambda line: cells.ratio(cells.of(line.ours, "speedup"))),
        cells.Column("ours host µs", _host_told),
        cells.Column("moved MB", lambda line: f"{line.some.moved * 1e-6:.1f}" if line.some.moved else "–"),
        cells.OURS_PEAK,
        cells.NATIVE_PEAK,
        cells.BEST_PEAK,
        cells.VERDICT,
    ]
    kind = "products of matrices" if products else "bound by memory"
    direction = "forward and backward" if backward else "forward"
    summary, figures = cells.comparison(rows)
    title = f"operators, {kind}, {dtype}, {direction}"
    figures = {"dtype": dtype, "kind": kind, "direction": direction, **figures}
    return cells.table(title, cells.lines_of(rows, OURS), columns, summary, **figures)
