"""Programs that have just begun: ours and torch's own functions over many lengths, with empty caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from einops_fast.profiles.first_calls.cases import FAMILIES, LengthsCase
from einops_fast.profiles.first_calls.program import measured
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.job_study import Found, JobStudy, apart
from einops_fast.profiles.processes import Job
from einops_fast.profiles.reporting.cells import Line, times
from einops_fast.profiles.reporting.records import Row
from einops_fast.profiles.reporting.report import geomean
from einops_fast.profiles.study import Maker

# What tables call the times of a program.
SHOWN = {
    "first": "first pass",
    "slowest": "slowest call",
    "second": "second pass",
    "last": "last pass",
    "steady": "with kernels",
}


def _milliseconds(phase: str, row: Row) -> float | None:
    return times(1e3, row.phases.get(phase))


class FirstCallsStudy(JobStudy):
    """A row per dtype, case, direction and way, whose time is that of the first pass."""

    about = "programs whose lengths vary: the first calls, the next ones, and those that have their kernels"
    note = "These programs ran in the mode 'auto', each in a process with empty caches."
    families = FAMILIES
    makers: Mapping[str, Maker] = dict.fromkeys(("native", "ours"), apart)
    title, kernels, digits = "Programs whose lengths vary", "kernels", ".1f"
    shown: Mapping[str, Callable[[Row], float | None]] = {
        f"{told}, ms": partial(_milliseconds, phase) for phase, told in SHOWN.items()
    }
    # Afterwards the pass with kernels is left out: there may be hundreds to compile.
    longest = 150.0

    def program(self, job: Job, case: LengthsCase, framework: Framework) -> Iterator[Found]:
        return measured(job, case, framework)

    def summed_up(self, lines: Sequence[Line]) -> Iterator[str]:
        for shown, value in self.shown.items():
            both = [(value(line.native), value(line.ours)) for line in lines
                    if line.native and line.native.seconds and line.ours.seconds]  # fmt: skip
            if ratios := [native / ours for native, ours in both if native and ours]:
                yield f"{shown.removesuffix(', ms')}: native/ours {geomean(ratios):.2f}, worst {min(ratios):.2f}"
