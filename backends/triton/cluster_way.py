"""The way of long rows through clusters, among the others for a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.backends.triton.attention.launch import KernelCall
from einops_fast.backends.triton.cluster_tilings import ClusterTiling
from einops_fast.backends.triton.contest import Launch, Way
from einops_fast.backends.triton.memory import Memory
from einops_fast.backends.triton.rows import Rows

__all__ = ["ClusterWay", "cluster_call"]


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


class ClusterWay(Way):
    """One kernel, see :mod:`~einops_fast.backends.triton.row_cluster`, with a cluster for each row.

    Args:
        kernel: takes the call's arrays, one for notes, and what :func:`cluster_call` says.
        columns: of a whole row.
        tiling, parts, places, numbers, features: see there.
    """

    def __init__(
        self, kernel: Any, columns: int, tiling: ClusterTiling, parts: Rows, places: Any, numbers: tuple[Any, ...],
        features: Any,
    ) -> None:  # fmt: skip
        self.name = tiling.name
        rows = parts.count // tiling.ctas
        self._notes = tiling.notes(rows)
        self._call = cluster_call(kernel, rows, tiling, parts, places, (columns,), numbers, features)

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        return [(self._call, (*arrays, memory.workspace(arrays[0], self._notes, "int64")))]
