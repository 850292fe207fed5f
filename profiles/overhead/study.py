"""What a call costs before any arithmetic: tiny operands, the first call of an equation, being observed, the import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from statistics import median
from time import perf_counter
from typing import Any

import einops_fast
from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting.cells import ratio, table
from einops_fast.profiles.reporting.records import Extent, Options, Record, Row
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.clocks import HostClock
from einops_fast.profiles.timing.measure import FULL, QUICK, Timing, compare, time_calls
from einops_fast.profiles.ways import Call, Way, inputs
from einops_fast.runtime.plan_cache import clear_plans

TINY = Case("tiny", "bij,bjk->bik", ((2, 4, 8), (2, 8, 4)))
CHAIN = Case("tiny chain", "bij,bjk,bkl->bil", ((2, 4, 8), (2, 8, 4), (2, 4, 8)))

# Contractions that have kernels to choose among on a GPU.
CHOSEN = tuple(
    Case(f"first call of {equation}, its choice on disk", equation, shapes)
    for equation, shapes in (
        ("bik,bkj->bij", ((16, 1024, 512), (16, 512, 1024))),
        ("bind,bjnd->bnij", ((8, 512, 16, 64), (8, 512, 16, 64))),
        ("acd,dbc->ab", ((288, 64, 288), (288, 288, 64))),
        ("bij,bij->b", ((64, 512, 512), (64, 512, 512))),
    )
)

IMPORT = """
import numpy
from time import perf_counter
from typing import Any
start = perf_counter()
import einops_fast
print(perf_counter() - start)
"""

COLUMNS: dict[str, Callable[[Row], str]] = {
    "framework": lambda row: row.framework,
    "what": lambda row: row.case,
    "call": lambda row: row.what,
    "µs": lambda row: "–" if row.seconds is None else f"{row.seconds * 1e6:.1f}",
    "native/this": lambda row: ratio(row.speedup),
    "check": lambda row: f"failed: {row.failure}" if row.failure else "right",
}


class OverheadStudy(Study):
    """Rows of host time: a GPU is far from busy with calls of this size."""

    about = "tiny calls, first calls, the import"
    frameworks = ("numpy", "torch", "mxnet", "cupy")
    families: Mapping[str, tuple[Case, ...]] = {"public": (TINY, CHAIN)}
    ours = "fast_einsum"

    def ways(self, task: Task) -> list[Way]:
        """The native einsum, the products themselves, one after the other, and ours."""
        framework, case = task.framework, task.case
        by_hand = framework.product if len(case.shapes) == 2 else f"two {framework.product}"
        calls: dict[str, Callable[..., Any]] = {
            f"{framework.name}.einsum": partial(framework.einsum, case.equation),
            by_hand: lambda *operands: reduce(framework.matmul, operands),
            self.ours: partial(einops_fast.fast_einsum, case.equation),
            "contract_expression": einops_fast.contract_expression(case.equation, *case.shapes),
        }
        return [Way(name, call, framework) for name, call in calls.items()]

    def measure(self, framework: Framework, options: Options) -> Iterator[Record]:
        dtype, quick = (*options.dtypes, "float32")[0], options.quick
        yield Extent(5 if framework.name == "numpy" else 4)
        clock, effort = HostClock(framework.synchronize), QUICK if quick else FULL
        for case in (CHAIN, TINY):
            timings = compare(case, self.ways(Task(framework, case, dtype, False)), dtype, effort=effort, clock=clock)
            yield from (Row.of(framework.name, case, dtype, timing) for timing in timings)
        alone: dict[str, tuple[Case, float]] = {}
        if not next(timing for timing in timings if timing.name == self.ours).failure:
            alone["first call"] = TINY, _first_call(framework, TINY, dtype, 20 if quick else 300)
            call = _call(framework, TINY, dtype)
            # While no profile is taken, a call is like any other.
            with einops_fast.profile():
                alone["tiny, observed"] = TINY, min(median(each) for each in time_calls([call], clock, QUICK))
        for case in CHOSEN if framework.device == "gpu" else ():
            alone[case.name] = case, _first_call(framework, case, dtype, 5 if quick else 50)
        for name, (case, seconds) in alone.items():
            yield Row.of(framework.name, replace(case, name=name), dtype, Timing(self.ours, seconds))
        if framework.name == "numpy":
            yield Row("numpy", "import after NumPy", "import einops_fast", seconds=_import(3 if quick else 15))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        return [table("Host time of a call", rows, COLUMNS)]


def _call(framework: Framework, case: Case, dtype: str) -> Call:
    return partial(einops_fast.fast_einsum, case.equation, *inputs(case, framework, dtype, 0).operands)


def _first_call(framework: Framework, case: Case, dtype: str, rounds: int) -> float:
    """Return the seconds of a call that makes its plan, and loads kernels, all compiled and chosen before."""
    call = _call(framework, case, dtype)
    call()
    seconds = []
    for _ in range(rounds):
        clear_plans()
        framework.synchronize()
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return median(seconds)


def _import(rounds: int) -> float:
    """Return the seconds of the import in new processes; the first, which fills the file cache, doesn't count."""
    command = [sys.executable, "-c", IMPORT]
    return median([float(subprocess.check_output(command, text=True)) for _ in range(rounds + 1)][1:])
