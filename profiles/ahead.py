"""Compiling for a GPU before anything is timed, in several processes: what compilers leave on disk is read later.

Kernels take seconds per case to compile, far longer than to measure, and one process compiles one after another.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Any

import einops_fast

__all__ = ["run_ahead"]

MOST_PROCESSES = 14


def run_ahead(
    module: str,
    jobs: Sequence[Sequence[Any]],
    threads: int,
    seconds: float,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """Run ``python -m module JOBS`` in several processes, each with its share of the jobs.

    Args:
        module: calls each of the jobs in its last argument, JSON, once.
        jobs: what JSON can hold.
        threads: of the CPU; each process takes one.
        seconds: the longest that is waited.
        variables: of the processes' environment.

    Returns:
        What the reader has to know: how long it took.
    """
    jobs = list(jobs)
    # Some take much longer than others.
    random.Random(0).shuffle(jobs)
    count = min(MOST_PROCESSES, threads - 1, len(jobs) // 2)
    if count < 2:
        return []
    start = perf_counter()
    root = str(Path(einops_fast.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    surroundings = {**os.environ, **(variables or {}), "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(jobs[share::count])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=surroundings,
        )
        for share in range(count)
    ]
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
