"""Further Python processes with this package: those that measure, and those that compile for a GPU before.

Kernels take seconds per case to compile, far longer than to measure, and one process compiles one after another. What
compilers leave on disk is read later.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import einops_fast

__all__ = ["WORKER", "run_ahead", "surroundings"]

WORKER = "einops_fast.profiles.worker"
MOST_PROCESSES = 14


def surroundings(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that imports this package from where it is, and whose calls wait for kernels."""
    root = str(Path(einops_fast.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return {"EINOPS_FAST_AUTOTUNE": "wait", **os.environ, **variables, "PYTHONPATH": path}


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
    with tempfile.TemporaryDirectory() as forgotten:
        variables = {"EINOPS_FAST_CACHE_DIR": forgotten, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": surroundings(variables)}
        children = []
        for share in range(count):
            command = [sys.executable, "-m", WORKER, study, "ahead", json.dumps(jobs[share::count])]
            children.append(subprocess.Popen(command, **quiet))  # type: ignore[call-overload]
        try:
            for child in children:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.1, seconds - (perf_counter() - start)))
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.wait()
    return [f"Kernels of {len(jobs)} calls were compiled ahead in {perf_counter() - start:.0f} s."]
