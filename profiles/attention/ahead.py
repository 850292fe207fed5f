"""What the attention study compiles before anything is timed: our kernels and FlexAttention's.

Nothing is chosen or measured here: each implementation is called alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress

from einops_fast.profiles.ahead import run_ahead
from einops_fast.profiles.attention.cases import FAMILIES, AttentionCase
from einops_fast.profiles.attention.ways import attention_inputs, attention_ways, extras
from einops_fast.profiles.frameworks import load
from einops_fast.profiles.ways import bind

__all__ = ["COMPILED", "compile_ahead"]

COMPILED = ("flex", "triton")

SECONDS = 120.0
"""The longest that is waited."""

ELEMENTS = 1 << 30
"""Of a case with more, the processes together would not fit in memory."""


def compile_ahead(
    tasks: Sequence[tuple[AttentionCase, bool]], dtype: str, names: Sequence[str], threads: int
) -> list[str]:
    """Compile what the cases need.

    Args:
        tasks: cases of :data:`~einops_fast.profiles.attention.cases.FAMILIES`, each with gradients or without.
        dtype: of the operands.
        names: of the ways that are to be measured.
        threads: of the CPU; each process takes one.

    Returns:
        What the reader has to know: how long it took.
    """
    jobs = [
        (case.name, dtype, backward, name)
        for case, backward in tasks
        for name in COMPILED
        if name in names and case.elements() <= ELEMENTS
    ]
    return run_ahead(__name__, jobs, threads, SECONDS)


def main(jobs: Sequence[tuple[str, str, bool, str]]) -> None:
    """Call each of these once; what fails will fail again where it's told."""
    framework = load("torch", "gpu", 1)
    known = {case.name: case for family in FAMILIES.values() for case in family}
    for name, dtype, backward, what in jobs:
        case = known[name]
        with suppress(Exception):
            [way] = attention_ways(case, framework, extras(case, framework), (what,), dtype, backward)
            with way.around():
                bind(way, attention_inputs(case, framework, dtype, 0, backward))()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
