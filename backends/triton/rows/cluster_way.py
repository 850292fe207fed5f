"""The way of long rows through clusters, among the others for a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.rows.cluster_tilings import ClusterTiling
from einops_fast.backends.triton.rows.contest import Launch, Way
from einops_fast.backends.triton.rows.rows import Rows

__all__ = ["ClusterWay", "cluster_call", "fit", "with_clusters"]

_OTHERS = 12288
"""Columns up to which the kernels with one program for a row are as fast, on an H200."""


def cluster_call(
    kernel: Any, clusters: int, tiling: ClusterTiling, rows: Rows, places: Any, counts: tuple[int, ...],
    numbers: tuple[Any, ...], features: Any,
) -> KernelCall:  # fmt: skip
    """A kernel whose programs are so many clusters.

    Args:
        kernel: takes arrays, sizes of the axes that count whole rows, ``places``, ``counts``, columns of a part,
            ``numbers``, features and tiling.
        clusters: how many.
        tiling: how rows are shared.
        rows: their parts.
        places, counts, numbers: see above.
        features: of the parts.
    """
    tail = rows.sizes[:-1], places, *counts, rows.columns, *numbers
    constants = {"f": features, "t": tiling}
    share = tiling.share
    return KernelCall(kernel, (clusters, 1), tail, constants, share.warps, 1, tiling.ctas, share.registers)


def fit(call: KernelCall, *arrays: Any) -> int:
    """Give a kernel, whose clusters have several rows, no more of them than run at a time. Returns how many.

    Others would come when the first ones have done all of their rows.
    """
    clusters = min(call.grid[0], call.at_a_time(*arrays) or call.grid[0])
    call.grid = (clusters, *call.grid[1:])
    return clusters


def with_clusters(ways: Sequence[Way], clusters: Sequence[Way], rows: Rows, processors: int) -> list[Way]:
    """All ways: those of clusters come first where these are the rule, for long rows that keep all processors busy.

    Args:
        ways: the others, the rule's first.
        clusters: each with at least two thread blocks.
        rows: whole ones.
        processors: multiprocessors of the device.
    """
    if rows.columns > _OTHERS and 2 * rows.count >= processors:
        return [*clusters, *ways]
    return [*ways, *clusters]


class ClusterWay(Way):
    """One kernel, see :mod:`~einops_fast.backends.triton.rows.cluster`.

    Args:
        kernel: takes the call's arrays, and what :func:`cluster_call` says.
        rows: whole ones.
        tiling, parts, places, numbers, features: see there.
        processors: multiprocessors of the device.
    """

    def __init__(
        self, kernel: Any, rows: Rows, tiling: ClusterTiling, parts: Rows, places: Any, numbers: tuple[Any, ...],
        features: Any, processors: int,
    ) -> None:  # fmt: skip
        self.name = tiling.name
        self._fitted = not tiling.several
        clusters, counts = tiling.clusters(rows.count, processors), (rows.count, rows.columns)
        self._call = cluster_call(kernel, clusters, tiling, parts, places, counts, numbers, features)

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        if not self._fitted:
            fit(self._call, *arrays)
            self._fitted = True
        return [(self._call, arrays)]
