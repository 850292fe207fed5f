"""What the device itself reaches, and the floor that follows for a case: no implementation can be faster.

The floor is that of the roofline model (Williams, Waterman and Patterson, 2009): the bytes at the bandwidth or the
FLOPs at the rate of a matrix product, whichever takes longer. On a CPU a small case may beat its floor: operands that
stay in cache don't come at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from einops_fast import fast_einsum
from einops_fast.profiles.cases import ITEM_SIZES
from einops_fast.profiles.frameworks import Framework
from einops_fast.profiles.reporting.records import Ceiling
from einops_fast.profiles.timing.measure import Effort, time_calls

COPY_BYTES = {"cpu": 256 << 20, "gpu": 1 << 30}
GEMM_EXTENT = {"cpu": 2048, "gpu": 8192}


def measure_ceilings(framework: Framework, dtype: str, effort: Effort) -> Ceiling:
    """Return the best that copies and GEMMs of the framework's arrays reach, by its own calls or by ours.

    A framework's own may be far from what the device can do: cupy.matmul leaves the tensor cores alone.
    """
    source, target = framework.normal([(COPY_BYTES[framework.device] // ITEM_SIZES[dtype],)] * 2, dtype, 0)
    extent = GEMM_EXTENT[framework.device]
    left, right = framework.normal([(1, extent, extent)] * 2, dtype, 0)
    calls = [
        lambda: framework.copy(target, source),
        lambda: framework.matmul(left, right),
        lambda: fast_einsum("bik,bkj->bij", left, right),
    ]
    # They don't compete: neither may stop early.
    times = time_calls(calls, framework.clock(), replace(effort, lost=inf))
    copy_seconds, *gemm_seconds = map(min, times)
    bandwidth = 2 * COPY_BYTES[framework.device] / copy_seconds
    return Ceiling(bandwidth, 2 * extent**3 / min(gemm_seconds), framework.name, dtype)


@dataclass(frozen=True)
class Work:
    """What has to be done for a case at least."""

    moved: int  # bytes of operands and results
    flops: int  # floating-point operations
    floor: float  # seconds that they take at the ceilings

    @classmethod
    def of(cls, passes: Iterable[tuple[int, int]], dtype: str, ceilings: Ceiling) -> Work:
        """Return the work of passes over the data one after another, each of so many elements and FLOPs."""
        done = [(elements * ITEM_SIZES[dtype], flops) for elements, flops in passes]
        floors = (max(moved / ceilings.bandwidth, flops / ceilings.flops) for moved, flops in done)
        return cls(sum(moved for moved, _ in done), sum(flops for _, flops in done), sum(floors))
