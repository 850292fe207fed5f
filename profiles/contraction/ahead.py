"""What the study of contractions compiles before anything is timed: our kernels and torch.compile's.

Each case is computed once. What ours measures meanwhile, beside other processes, is forgotten.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from einops_fast.profiles.ahead import run_ahead
from einops_fast.profiles.cases import Case
from einops_fast.profiles.contraction.extra_cases import FAMILIES
from einops_fast.profiles.contraction.peers import Peer, make_ways, present
from einops_fast.profiles.frameworks import load
from einops_fast.profiles.ways import bind, inputs, our_way

__all__ = ["compile_ahead"]

COMPILED = "compile"
"""The peer that is compiled."""

SECONDS = 120.0
"""The longest that is waited."""


def compile_ahead(
    framework: str, tasks: Sequence[tuple[Case, str, bool]], peers: Sequence[Peer], threads: int
) -> list[str]:
    """Compile what the cases need.

    Args:
        framework: whose arrays the operands are.
        tasks: cases, their dtypes, and whether with gradients; only those of
            :data:`~einops_fast.profiles.contraction.extra_cases.FAMILIES` are compiled.
        peers: what is to be measured.
        threads: of the CPU; each process takes one.

    Returns:
        What the reader has to know: how long it took.
    """
    compiled = any(peer.name == COMPILED for peer in peers)
    jobs = [
        (framework, case.name, dtype, backward, name)
        for case, dtype, backward in tasks
        for name in ("", COMPILED)
        if case in _known().values() and (not name or (compiled and not backward))
    ]
    with tempfile.TemporaryDirectory() as forgotten:
        return run_ahead(__name__, jobs, threads, SECONDS, {"EINOPS_FAST_CACHE_DIR": forgotten})


def _known() -> dict[str, Case]:
    return {case.name: case for family in FAMILIES.values() for case in family}


def main(jobs: Sequence[tuple[str, str, str, bool, str]]) -> None:
    """Call each of these once; what fails will fail again where it's told."""
    loaded: Any = load(jobs[0][0], "gpu", 1)
    for _, name, dtype, backward, peer in jobs:
        case = _known()[name]
        with suppress(Exception):
            # The native einsum comes first.
            way = make_ways(present(loaded, (peer,))[0], case, dtype)[-1] if peer else our_way("", loaded, case)
            bind(way, inputs(case, loaded, dtype, 0, backward))()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
