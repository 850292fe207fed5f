"""Compiling for a GPU before anything is timed, in several processes: what compilers leave on disk is read later.

Our kernels and FlexAttention's take seconds per case to compile, far longer than to measure, and one process compiles
one after another. Nothing is chosen or measured here: each implementation is called alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import einops_fast
from einops_fast.profiles.attention_cases import FAMILIES, AttentionCase
from einops_fast.profiles.attention_ways import attention_inputs, attention_ways, extras
from einops_fast.profiles.frameworks import load
from einops_fast.profiles.ways import bind

__all__ = ["COMPILED", "compile_ahead"]

COMPILED = ("flex", "triton")

MOST_PROCESSES = 14

SECONDS = 120.0
"""The longest that is waited."""

ELEMENTS = 1 << 30
"""Of a case with more, the processes together would not fit in memory."""


def compile_ahead(
    cases: Sequence[AttentionCase], dtype: str, directions: Sequence[bool], names: Sequence[str], threads: int
) -> list[str]:
    """Compile what the cases need.

    Args:
        cases: of :data:`~einops_fast.profiles.attention_cases.FAMILIES`.
        dtype: of the operands.
        directions: with gradients or without.
        names: of the ways that are to be measured.
        threads: of the CPU; each process takes one.

    Returns:
        What the reader has to know: how long it took.
    """
    jobs = [
        (case.name, backward, name)
        for case in cases
        for backward in directions[: 2 if case.trained else 1]
        for name in COMPILED
        if name in names and case.elements() <= ELEMENTS
    ]
    # Some take much longer than others.
    random.Random(0).shuffle(jobs)
    count = min(MOST_PROCESSES, threads - 1, len(jobs) // 2)
    if count < 2:
        return []
    start = perf_counter()
    root = str(Path(einops_fast.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    surroundings = {**os.environ, "PYTHONPATH": path, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, dtype, json.dumps(jobs[share::count])],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=surroundings,
        )
        for share in range(count)
    ]
    try:
        for child in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.1, SECONDS - (perf_counter() - start)))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()
    return [f"Kernels of {len(jobs)} calls were compiled ahead in {perf_counter() - start:.0f} s."]


def main(dtype: str, jobs: Sequence[tuple[str, bool, str]]) -> None:
    """Call each of these once; what fails will fail again where it's told."""
    framework = load("torch", "gpu", 1)
    known = {case.name: case for case in FAMILIES["public"]}
    for name, backward, what in jobs:
        case = known[name]
        with suppress(Exception):
            [way] = attention_ways(case, framework, extras(case, framework), (what,), dtype, backward)
            with way.around():
                bind(way, attention_inputs(case, framework, dtype, 0, backward))()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
