"""Further Python processes with this package: those that measure, and those that compile for a GPU before.

All run :mod:`einops_fast.profiles.worker`: one for each framework, so that imports and settings don't disturb each
other, one for each job, and several that compile, as kernels take far longer to compile than to measure.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import einops_fast
from einops_fast.profiles.frameworks import thread_environment
from einops_fast.profiles.reporting.records import Options, Record, decode, skipped
from einops_fast.runtime.background import processors

WORKER = "einops_fast.profiles.worker"
MOST_PROCESSES = 14
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "EINOPS_FAST_CACHE_DIR")

# Statuses of a process that was asked to end; the last is its own after Ctrl-C.
STOPPED = (-signal.SIGTERM, -signal.SIGINT, 130)


@dataclass(frozen=True)
class Job:
    """One way of one case of a study, for a process of its own."""

    case: str
    what: str
    dtype: str
    backward: bool
    device: str
    threads: int
    quick: bool = False


class Child:
    """A process of the worker, which ends with the block, or is killed after so many seconds.

    The variables are those of its environment, beside those of this process.
    """

    def __init__(
        self, arguments: Sequence[str], variables: Mapping[str, str], seconds: float = threading.TIMEOUT_MAX
    ) -> None:
        # It imports this package from where it is, and its calls wait for kernels.
        path = os.pathsep.join(filter(None, (str(Path(einops_fast.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        settings = {"EINOPS_FAST_AUTOTUNE": "wait", **os.environ, **variables, "PYTHONPATH": path}
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  the end of the block closes it
        self.process = subprocess.Popen(
            [sys.executable, "-m", WORKER, *arguments],
            env=settings, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints, text=True,
        )  # fmt: skip
        self._seconds = seconds
        self._late = threading.Timer(seconds, self.process.kill)
        self._late.daemon = True
        self._late.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: Any) -> None:
        self._late.cancel()
        self.process.terminate()
        self.process.__exit__(*error)
        self._complaints.close()

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        return iter(self.process.stdout)

    def ready(self) -> None:
        """Wait for the first line; those after it may take any time."""
        next(self.lines(), None)
        self._late.cancel()

    def answer(self) -> Any:
        """Return what its last line says, which it may print only once it is told to go on."""
        told, _ = self.process.communicate("\n")
        if told and self.process.returncode in (0, -signal.SIGKILL):
            return json.loads(told.splitlines()[-1])
        raise RuntimeError(self.complaints() or f"nothing after {self._seconds:.0f} s")

    def complaints(self) -> str:
        """Return the end of what it has complained of."""
        self._complaints.seek(0)
        return self._complaints.read()[-4000:].strip()


@contextmanager
def started(study: str, job: Job, seconds: float) -> Iterator[Child]:
    """Start a job in a process whose caches begin empty, and whose calls don't wait for kernels."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"EINOPS_FAST_AUTOTUNE": "auto", **{name: f"{folder}/{name}" for name in CACHES}}
        with Child((study, "job", json.dumps(asdict(job))), variables, seconds) as child:
            yield child


def run_worker(study: str, framework: str, options: Options) -> Iterator[Record]:
    """Measure in a process of its own; records come as they are made."""
    threads = options.threads or processors()
    with Child((study, framework, json.dumps(asdict(options))), thread_environment(threads)) as child:
        yield from map(decode, child.lines())
        status = child.process.wait()
        if status in STOPPED:
            raise KeyboardInterrupt
        if status != 0:
            why = f"the process ended with status {status}"
            yield skipped(framework, "everything after", why, details=child.complaints(), guest=False)


def run_ahead(study: str, jobs: Sequence[Sequence[Any]], threads: int, seconds: float) -> list[str]:
    """Call jobs of a study once, in several processes, each with its share of them; tells how long it took.

    What ours measures meanwhile, beside other processes, is forgotten: only what compilers make is kept.
    """
    jobs = list(jobs)
    # Some take much longer than others.
    random.Random(0).shuffle(jobs)
    count = min(MOST_PROCESSES, threads - 1, len(jobs) // 2)
    if count < 2:
        return []
    start = perf_counter()
    with tempfile.TemporaryDirectory() as forgotten, ExitStack() as stack:
        variables = {"EINOPS_FAST_CACHE_DIR": forgotten, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        shares = [(study, "ahead", json.dumps(jobs[share::count])) for share in range(count)]
        for child in [stack.enter_context(Child(share, variables)) for share in shares]:
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(max(0.1, seconds - (perf_counter() - start)))
    return [f"Kernels of {len(jobs)} calls were compiled ahead in {perf_counter() - start:.0f} s."]
