"""What the device itself reaches, and the floor that follows for a case: no implementation can be faster.

On a CPU a small case may beat its floor: operands that stay in cache don't come at the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from einops_fast.profiles.cases import ITEM_SIZES, Case
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.measure import Effort, time_calls

__all__ = ["Ceilings", "floor", "measure_ceilings"]

COPY_BYTES = {"cpu": 256 << 20, "gpu": 1 << 30}
GEMM_EXTENT = {"cpu": 2048, "gpu": 8192}


@dataclass(frozen=True)
class Ceilings:
    """Bytes per second of a large copy, reads and writes counted, and FLOP/s of a large square GEMM."""

    bandwidth: float
    flops: float


def measure_ceilings(framework: Framework, dtype: str, effort: Effort) -> Ceilings:
    """The best that the framework's own copy and GEMM reach on its device."""
    source, target = framework.normal([(COPY_BYTES[framework.device] // ITEM_SIZES[dtype],)] * 2, dtype, 0)
    extent = GEMM_EXTENT[framework.device]
    left, right = framework.normal([(1, extent, extent)] * 2, dtype, 0)
    calls = [lambda: framework.copy(target, source), lambda: framework.matmul(left, right)]
    # They don't compete: neither may stop early.
    both = time_calls(calls, framework.clock(), effort=replace(effort, lost=inf))
    copy_seconds, gemm_seconds = map(min, both)
    return Ceilings(2 * COPY_BYTES[framework.device] / copy_seconds, 2 * extent**3 / gemm_seconds)


def floor(case: Case, dtype: str, ceilings: Ceilings) -> float:
    """Seconds that moving operands and result once, or the FLOPs of the best order, take at least."""
    return max(sum(case.elements) * ITEM_SIZES[dtype] / ceilings.bandwidth, case.flops / ceilings.flops)
