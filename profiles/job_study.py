"""The template of a study of programs: each way of a case is a process of its own, which begins with empty caches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, ClassVar

from einops_fast.profiles.frameworks import Framework, Unavailable, load
from einops_fast.profiles.processes import Job, started
from einops_fast.profiles.reporting.cells import AFTER, BEFORE, Line, lines_of, noise_told, side_by_side, table
from einops_fast.profiles.reporting.records import Ceiling, Note, Options, Record, Row
from einops_fast.profiles.reporting.report import Table
from einops_fast.profiles.study import Study, Task
from einops_fast.profiles.timing.measure import FULL, QUICK, Effort, Timing, too_wrong
from einops_fast.profiles.ways import Way


@dataclass(frozen=True)
class Found:
    """What a process has found of one way."""

    phases: dict[str, float]  # seconds by part of the program
    kernels: str = ""  # what was compiled, or fused
    seconds: float = 0.0  # those that ways are compared by
    spread: float | None = None  # interquartile range of them
    host: float | None = None  # seconds until the host is through
    peak_bytes: int | None = None  # held at most, everything included
    error: float = 0.0  # the largest, relative to the size of what is right
    allowed: float = inf  # how large it may be
    losses: list[float] = field(default_factory=list)  # of the first steps


def apart(task: Task) -> Way:
    """Refuse to make a way in this process."""
    raise Unavailable("programs run in processes of their own")


class JobStudy(Study):
    """A row per case and way, whose phases tell of the parts of a program."""

    note: ClassVar[str]  # how the programs ran
    together: bool = False  # all ways of a case begin side by side, and go on one by one; else one after the other
    longest: float  # seconds of a process; together, those of its beginning
    dtypes: Mapping[str, tuple[str, ...]] = {"cpu": ("float32",), "gpu": ("bfloat16",)}
    efforts: Mapping[str, Effort] = {"cpu": FULL, "gpu": FULL}
    drawn = False
    title: ClassVar[str]  # of the table
    shown: Mapping[str, Callable[[Row], float | None]]  # its columns with a number of each way
    digits: str  # as these are written
    kernels: str  # what the column of kernels is called

    @abstractmethod
    def program(self, job: Job, case: Any, framework: Framework) -> Iterator[Found]:
        """Run a program in this process: yield what is found at its beginning, and then at its end."""

    def judged(self, task: Task, found: Found, native: Found | str | None) -> tuple[float, str]:
        """Return the error of what a process has found, and why it doesn't count."""
        return found.error, too_wrong(found.error, found.allowed)

    def offered(self, framework: Framework, options: Options) -> tuple[tuple[str, ...], list[Record]]:
        names, told = super().offered(framework, options)
        return names, [Note(self.note), *told]

    def timed(self, task: Task, effort: Effort, ceilings: Ceiling) -> list[Timing]:
        found: dict[str, Found | str] = {}
        for names in [task.names] if self.together else [(name,) for name in task.names]:
            found |= self._found(task, names, quick=effort is QUICK)
        return [self._timing(task, name, each, found.get(self.native)) for name, each in found.items()]

    def _found(self, task: Task, names: tuple[str, ...], *, quick: bool) -> dict[str, Found | str]:
        """Return what processes have found that begin side by side, or why they have failed."""
        found: dict[str, Found | str] = {}
        with ExitStack() as stack:
            running = {}
            for name in names:
                where = task.framework.device, task.framework.threads
                job = Job(task.case.name, name, task.dtype, task.backward, *where, quick)
                running[name] = stack.enter_context(started(self.name, job, self.longest))
            for process in running.values() if self.together else ():
                process.ready()
            for name, process in running.items():
                try:
                    found[name] = Found(**process.answer())
                except RuntimeError as error:
                    found[name] = str(error)
        return found

    def _timing(self, task: Task, name: str, found: Found | str, native: Found | str | None) -> Timing:
        if isinstance(found, str):
            return Timing(name, failure=found.strip().splitlines()[-1], details=found)
        error, wrong = self.judged(task, found, native)
        others = {"phases": found.phases, "kernels": found.kernels, "peak_bytes": found.peak_bytes}
        timing = Timing(name, None, found.spread, error=error, failure=wrong, host=found.host, others=others)
        return timing if wrong else replace(timing, seconds=found.seconds, rounds=(found.seconds,))

    def summed_up(self, lines: Sequence[Line]) -> Iterator[str]:
        """Yield what follows from all lines of the table."""
        return iter(())

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        lines = lines_of(rows, self.native)
        ways = [name for name in self.makers if any(name in line.ways for line in lines)]
        named = " / ".join(ways)
        columns = {
            **BEFORE,
            **{f"{told}: {named}": side_by_side(ways, value, self.digits) for told, value in self.shown.items()},
            **{name: AFTER[name] for name in ("best/ours", "native/ours")},
            self.kernels: AFTER["kernels of ours"],
            "check": AFTER["check"],
        }
        return [table(self.title, lines, columns, *self.summed_up(lines), *noise_told(lines))]

    def do(self, job: Job) -> Iterator[Found]:
        case: Any = self._known()[job.case]
        yield from self.program(job, case.scaled(job.device, job.dtype), load("torch", job.device, job.threads))
