"""What the study of the operators compiles before anything is timed: our kernels, torch.compile's, Liger's and QuACK's.

Ours are chosen among by measurement at the first call. Here several processes share the GPU, so what they choose is
forgotten: only the compilers' results are kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from einops_fast.profiles.ahead import run_ahead
from einops_fast.profiles.contraction.peers import Compiler
from einops_fast.profiles.frameworks import load
from einops_fast.profiles.ops.cases import FAMILIES, OpCase, scaled
from einops_fast.profiles.ops.ways import COMPILE, OURS, make_ways, op_inputs

__all__ = ["COMPILED", "compile_ahead"]

COMPILED = (OURS, COMPILE, "liger", "quack")

SECONDS = 90.0
"""The longest that is waited."""

ELEMENTS = 1 << 29
"""Of a case with more to move, the processes together would not fit in memory."""


def compile_ahead(wanted: Sequence[tuple[OpCase, str]], names: Sequence[str], threads: int) -> list[str]:
    """Compile what the cases need.

    Args:
        wanted: cases of :data:`~einops_fast.profiles.ops.cases.FAMILIES`, and their dtypes.
        names: of the ways that are to be measured.
        threads: of the CPU; each process takes one.

    Returns:
        What the reader has to know: how long it took.
    """
    jobs = [
        (case.name, dtype, name)
        for case, dtype in wanted
        for name in COMPILED
        if name in names and (name != COMPILE or case.compiled) and scaled(case, "gpu", dtype).elements() <= ELEMENTS
    ]
    with tempfile.TemporaryDirectory() as forgotten:
        return run_ahead(__name__, jobs, threads, SECONDS, {"EINOPS_FAST_CACHE_DIR": forgotten})


def main(jobs: Sequence[tuple[str, str, str]]) -> None:
    """Call each of these as it will be; what fails will fail again where it's told."""
    framework: Any = load("torch", "gpu", 1)
    torch = framework.torch
    known = {case.name: case for family in FAMILIES.values() for case in family}
    compiler = Compiler(torch)
    for name, dtype, what in jobs:
        case = scaled(known[name], "gpu", dtype)
        with suppress(Exception):
            given = op_inputs(case, framework, dtype, 0)
            for way in make_ways(case, framework, (what,), compiler, dtype):
                bound = way.bind(given, True)
                results = bound.forward()
                torch.autograd.grad(results, bound.leaves, given.cotangents or None)
                with torch.no_grad():
                    bound.forward()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
