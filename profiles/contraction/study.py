"""Contractions of many kinds: ours against whatever else contracts the same arrays, and the device itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from einops_fast.profiles.cases import BACKWARD, Case, curve, scaled
from einops_fast.profiles.contraction.cases import FAMILIES
from einops_fast.profiles.contraction.own_cases import chosen_cases
from einops_fast.profiles.contraction.peers import NATIVE, PEERS, Peer, make_ways, present
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting import cells
from einops_fast.profiles.reporting.records import Options, Record, Row
from einops_fast.profiles.reporting.report import Table, geomean
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import Timed
from einops_fast.profiles.timing.memory import extra_memory
from einops_fast.profiles.ways import Way, our_way
from einops_fast.runtime.plan_cache import clear_plans

__all__ = ["BEHIND", "OURS", "ContractionStudy"]

OURS = "fast_einsum"

BEHIND = 1.02
"""Ours is behind from this ratio to the best peer on; what is nearer is within the noise of a run."""


class ContractionStudy(Study):
    """A row per dtype, case and implementation, with the floor of ceilings from the same process.

    CuPy's einsum is measured beside torch's; ask by name for ours on CuPy arrays, and for MXNet, whose own einsum takes
    seconds for most of the cases.
    """

    about = "many equations against all that contracts the same arrays, and the device"
    frameworks = ("numpy", "torch")
    families = FAMILIES
    own_cases = True
    ours = OURS
    peers = tuple(PEERS)
    guests = ("compile", "cupy", "cutensor")
    needs_torch = False
    profiled = True
    compiled = (OURS, "compile")
    dtypes: Mapping[str, tuple[str, ...]] = {
        "torch cpu": ("float32", "bfloat16"),
        "torch gpu": ("float16", "float32"),
        "cupy gpu": ("float16", "float32"),
        "cpu": ("float32",),
        "gpu": ("float32",),
    }

    def wanted(self, framework: Framework, dtype: str, options: Options) -> tuple[Case, ...]:
        return chosen_cases(FAMILIES, options)

    def scaled(self, case: Case, device: str, dtype: str) -> Case | None:
        smaller = scaled(case, device)
        # A point of a curve is left out rather than moved.
        return smaller if smaller is case or curve(case.name) is None else None

    def directions(self, framework: Framework, case: Case, options: Options) -> tuple[bool, ...]:
        # The gradients of the named cases are measured, and of the user's own.
        trained = case.name in BACKWARD or options.cases not in FAMILIES
        differentiable = framework.name in ("torch", "mxnet") and not options.forward_only
        return (False, True) if trained and differentiable else (False,)

    def offered(self, framework: Any, options: Options, cases: Sequence[Any]) -> tuple[list[Peer], list[Record]]:
        return present(framework, options.peers)

    def ways(self, task: Task) -> list[Way]:
        # Backward is timed against the native einsum alone.
        rivals = [peer for peer in task.offered if peer.name == NATIVE or not task.backward]
        return [*make_ways(rivals, task.case, task.dtype), our_way(OURS, task.framework, task.case)]

    def told(self, task: Task, row: Row, timed: Timed) -> Row:
        if row.what != OURS or task.backward or timed.call is None:
            return row
        clear_plans()  # what a plan keeps counts
        return replace(row, extra_bytes=extra_memory(task.framework, timed.call))

    def compiled_for(self, case: Case, dtype: str, backward: bool, offered: Sequence[Peer]) -> tuple[str, ...]:
        compiler = not backward and any(peer.name == "compile" for peer in offered)
        return self.compiled if compiler else (OURS,)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Per framework and dtype a table of all cases, and one of those that were also run backward."""

        def group(row: Row) -> tuple[str, str, bool]:
            return row.framework, row.dtype, row.backward

        places = list(dict.fromkeys(group(row)[:2] for row in rows))
        ordered = sorted(rows, key=lambda row: (places.index(group(row)[:2]), row.backward))
        return [_table(*key, list(some)) for key, some in groupby(ordered, key=group)]


def _table(framework: str, dtype: str, backward: bool, rows: Sequence[Row]) -> Table:
    """Return the table of a direction; a case that an interruption left without ours isn't in it."""
    lines = [line for line in cells.lines_of(rows, OURS, NATIVE) if line.ours is not None]
    every = [line.some for line in lines]
    ratios = {
        name: {row.case: found for row in every if (found := value(row)) is not None}
        for name, value in RATIOS.items()
        if not backward or name == "ours/native"
    }
    failed = [row.case for row in every if row.failure]
    summary = _means(ratios)
    figures: dict[str, Any] = {
        "framework": framework,
        "dtype": dtype,
        "cases": {what: len(values) for what, values in ratios.items()},
        "geomean": {what: geomean(values.values()) for what, values in ratios.items() if values},
        "worst": {what: _worst(values)[0] for what, values in ratios.items() if values},
    }
    native = "np.einsum(optimize=True)" if framework == "numpy" else f"{framework}.einsum"
    if backward:
        title = f"{framework}, {dtype}, backward: forward and all gradients, ours against {native}"
        return cells.table(title, lines, _columns([NATIVE], BACKWARD_COLUMNS), summary, **figures, failed=failed)
    to_best = ratios["ours/best peer"]
    figures["behind"] = {name: value for name, value in to_best.items() if value > BEHIND}
    summary.append(_behind(figures["behind"], {row.case: row.best for row in every}, len(to_best)))
    if failed:
        summary.append(f"Ours failed: {', '.join(failed)}.")
    others = [name for name in dict.fromkeys(row.what for row in rows) if name != OURS]
    title = f"{framework}, {dtype}: ours against {native}"
    return cells.table(title, lines, _columns(others, FORWARD_COLUMNS), summary, **figures, failed=failed)


RATIOS: dict[str, Callable[[Row], float | None]] = {
    "ours/floor": cells.over_floor,
    "ours/best peer": lambda row: row.to_best,
    "ours/native": lambda row: cells.times(1, 1.0, row.speedup),
}

_TO_NATIVE = cells.Column[cells.Line]("ours/native", lambda line: cells.ratio(RATIOS["ours/native"](line.some)))

FORWARD_COLUMNS: tuple[cells.Column[cells.Line], ...] = (
    cells.Column("ours/floor", lambda line: cells.ratio(RATIOS["ours/floor"](line.some))),
    cells.Column("best peer", lambda line: line.some.best or "–"),
    cells.Column("ours/best", lambda line: cells.ratio(line.some.to_best)),
    _TO_NATIVE,
    cells.Column("extra bytes", lambda line: "" if line.some.extra_bytes is None else f"{line.some.extra_bytes:,}"),
    cells.Column("kernels of ours", lambda line: line.some.kernels),
    cells.VERDICT,
)

BACKWARD_COLUMNS = (_TO_NATIVE, cells.VERDICT)


def _columns(others: Sequence[str], last: Sequence[cells.Column[cells.Line]]) -> list[cells.Column[cells.Line]]:
    return [
        cells.CASE,
        cells.Column("equation", lambda line: line.some.equation),
        cells.Column("shapes", lambda line: line.some.sizes),
        *cells.by_way(others, "ms", cells.time_of),
        cells.Column("ours ms", lambda line: cells.time_of(line.ours)),
        *last,
    ]


def _worst(values: Mapping[str, float]) -> tuple[str, float]:
    return max(values.items(), key=lambda item: item[1])


def _means(ratios: Mapping[str, Mapping[str, float]]) -> list[str]:
    found = {what: values for what, values in ratios.items() if values}
    if not found:
        return []
    means = (f"{what} {geomean(values.values()):.2f} ({_cases(len(values))})" for what, values in found.items())
    worst = ((what, *_worst(values)) for what, values in found.items())
    return [
        f"Geometric means: {', '.join(means)}.",
        f"Worst: {', '.join(f'{what} {value:.2f} ({name})' for what, name, value in worst)}.",
    ]


def _behind(behind: Mapping[str, float], best: Mapping[str, str], among: int) -> str:
    """Tell how many cases ours is behind in, the worst first."""
    ordered = sorted(behind, key=lambda name: -behind[name])
    names = ", ".join(f"{name} ({behind[name]:.2f}, {best[name]})" for name in ordered)
    told = f"Behind the best peer by over {BEHIND - 1:.0%}: {len(behind)} of {_cases(among)}"
    return f"{told}: {names}." if names else f"{told}."


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"
