"""What the device itself reaches, and the floor that follows for a case: no implementation can be faster.

On a CPU a small case may beat its floor: operands that stay in cache don't come at the speed of memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einops_fast.profiles.accuracy import random_values
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
    zeros = np.zeros(COPY_BYTES[framework.device] // ITEM_SIZES[dtype])
    source, target = framework.array(zeros, dtype), framework.array(zeros, dtype)
    extent = GEMM_EXTENT[framework.device]
    left, right = (framework.array(values, dtype) for values in random_values([(1, extent, extent)] * 2, 0))
    calls = [lambda: framework.copy(target, source), lambda: framework.matmul(left, right)]
    copy_seconds, gemm_seconds = map(min, time_calls(calls, framework.clock(), effort=effort))
    return Ceilings(2 * COPY_BYTES[framework.device] / copy_seconds, 2 * extent**3 / gemm_seconds)


def floor(case: Case, dtype: str, ceilings: Ceilings) -> float:
    """Seconds that moving operands and result once, or the FLOPs of the best order, take at least."""
    return max(sum(case.elements) * ITEM_SIZES[dtype] / ceilings.bandwidth, case.flops / ceilings.flops)
