"""What a call costs before any arithmetic: tiny operands, the first call of an equation, being observed, the import."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from statistics import median
from time import perf_counter
from typing import Any

import einops_fast
from einops_fast.profiles.cases import Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting.cells import CHECK, Column, ratio, table
from einops_fast.profiles.reporting.records import Extent, Options, Record, Row
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.clocks import HostClock
from einops_fast.profiles.timing.measure import FULL, QUICK, Timing, compare, time_calls
from einops_fast.profiles.ways import Way, bind, inputs, our_way
from einops_fast.runtime.plan_cache import clear_plans

__all__ = ["OverheadStudy"]

TINY = Case("tiny", "bij,bjk->bik", ((2, 4, 8), (2, 8, 4)))
CHAIN = Case("tiny chain", "bij,bjk,bkl->bil", ((2, 4, 8), (2, 8, 4), (2, 4, 8)))

CHOSEN = tuple(
    Case(f"first call of {equation}, its choice on disk", equation, shapes)
    for equation, shapes in (
        ("bik,bkj->bij", ((16, 1024, 512), (16, 512, 1024))),
        ("bind,bjnd->bnij", ((8, 512, 16, 64), (8, 512, 16, 64))),
        ("acd,dbc->ab", ((288, 64, 288), (288, 288, 64))),
        ("bij,bij->b", ((64, 512, 512), (64, 512, 512))),
    )
)
"""Contractions that have kernels to choose among on a GPU."""

IMPORT = """
import numpy
from time import perf_counter
start = perf_counter()
import einops_fast
print(perf_counter() - start)
"""


class OverheadStudy(Study):
    """Rows of host time: a GPU is far from busy with calls of this size."""

    about = "tiny calls, first calls, the import"
    frameworks = ("numpy", "torch", "mxnet", "cupy")
    families: Mapping[str, tuple[Case, ...]] = {"public": (TINY, CHAIN)}
    ours = "fast_einsum"
    needs_torch = False

    def ways(self, task: Task) -> list[Way]:
        """The native einsum, the products themselves, one after the other, and ours."""
        framework, case = task.framework, task.case
        by_hand = framework.product if len(case.shapes) == 2 else f"two {framework.product}"
        return [
            Way(f"{framework.name}.einsum", partial(framework.einsum, case.equation), framework),
            Way(by_hand, lambda *operands: reduce(framework.matmul, operands), framework),
            Way(self.ours, partial(einops_fast.fast_einsum, case.equation), framework),
            Way("contract_expression", einops_fast.contract_expression(case.equation, *case.shapes), framework),
        ]

    def measure(self, framework: Framework, options: Options) -> Iterator[Record]:
        yield Extent(5 if framework.name == "numpy" else 4)
        dtype = options.dtypes[0] if options.dtypes else "float32"
        clock = HostClock(framework.synchronize)
        effort = QUICK if options.quick else FULL

        def row(case: Case, timing: Timing) -> Row:
            return Row.of(framework.name, case, dtype, timing)

        for case in (CHAIN, TINY):
            ways = self.ways(Task(framework, case, dtype, False))
            timings = compare(case, ways, dtype, effort=effort, clock=clock)
            yield from (row(case, timing) for timing in timings)
        for way, timing in zip(ways, timings, strict=True):
            if way.name == self.ours and not timing.failure:
                seconds, _ = _first_call(framework, way, dtype, 20 if options.quick else 300)
                yield row(replace(TINY, name="first call"), Timing(way.name, seconds))
                seconds = _observed(framework, way, dtype, clock)
                yield row(replace(TINY, name="tiny, observed"), Timing(way.name, seconds))
        for case in CHOSEN if framework.device == "gpu" else ():
            way = our_way(self.ours, framework, case)
            seconds, loading = _first_call(framework, way, dtype, 5 if options.quick else 50, case, _kernels())
            yield row(case, Timing(way.name, seconds))
            yield row(replace(case, name=f"{case.name}: of that, to load kernels"), Timing(way.name, loading))
        if framework.name == "numpy":
            seconds = _import(3 if options.quick else 15)
            yield Row("numpy", "import after NumPy", "import einops_fast", seconds=seconds)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """One table of everything."""
        return [table("Host time of a call", rows, COLUMNS)]


COLUMNS: tuple[Column[Row], ...] = (
    Column("framework", lambda row: row.framework),
    Column("what", lambda row: row.case),
    Column("call", lambda row: row.what),
    Column("µs", lambda row: "–" if row.seconds is None else f"{row.seconds * 1e6:.1f}"),
    Column("native/this", lambda row: ratio(row.speedup)),
    CHECK,
)


def _first_call(
    framework: Framework, way: Way, dtype: str, rounds: int, case: Case = TINY, kernels: Sequence[Any] = ()
) -> tuple[float, float]:
    """Seconds of a call that has to make its plan, when all that it compiles and measures has been there before.

    And of these, those in which ``kernels`` are loaded.
    """
    call = bind(way, inputs(case, framework, dtype, 0))
    call()
    seconds, loading = [], []
    with _clocked(kernels) as spent:
        for _ in range(rounds):
            clear_plans()
            framework.synchronize()
            spent.clear()
            start = perf_counter()
            call()
            seconds.append(perf_counter() - start)
            loading.append(sum(spent))
    return median(seconds), median(loading)


def _kernels() -> tuple[Any, ...]:
    """What loads kernels that Triton has on disk, if there is Triton."""
    try:
        from einops_fast.backends.triton.launching.kernel_call import KernelCall
    except ImportError:
        return ()
    return (KernelCall,)


@contextmanager
def _clocked(kernels: Sequence[Any]) -> Iterator[list[float]]:
    """Gives what each of these took, within the block, to be compiled or loaded, in seconds."""
    seconds: list[float] = []

    def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            start = perf_counter()
            try:
                return function(*given, **options)
            finally:
                seconds.append(perf_counter() - start)

        return run

    before = [kernel.compile for kernel in kernels]
    for kernel, function in zip(kernels, before, strict=True):
        kernel.compile = clocked(function)
    try:
        yield seconds
    finally:
        for kernel, function in zip(kernels, before, strict=True):
            kernel.compile = function


def _observed(framework: Framework, way: Way, dtype: str, clock: HostClock) -> float:
    """Seconds of a call while a profile is taken; while none is, a call is like any other."""
    call = bind(way, inputs(TINY, framework, dtype, 0))
    with einops_fast.profile():
        return min(median(each) for each in time_calls([call], clock, effort=QUICK))


def _import(rounds: int) -> float:
    """Seconds of the import in new processes; the first, which fills the file cache, doesn't count."""
    command = [sys.executable, "-c", IMPORT]
    return median([float(subprocess.check_output(command, text=True)) for _ in range(rounds + 1)][1:])
