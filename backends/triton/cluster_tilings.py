"""How a long row is shared by the thread blocks of a cluster, and which rows are.

See :mod:`~einops_fast.backends.triton.row_cluster` for what happens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.launch import interpreted
from einops_fast.backends.triton.rows import Rows
from einops_fast.backends.triton.tiling import power_of_two

__all__ = [
    "EXPONENTIALS",
    "GRADIENTS",
    "RMS_NORM",
    "TWO_ARRAYS",
    "ClusterTiling",
    "Share",
    "cluster_tilings",
    "in_parts",
]

_LANES = 32

_SHARED = 232448
"""Bytes of shared memory that a program may have on a GPU with clusters; on others it is less."""

_LEAST_COLUMNS = 8193
"""Shorter rows have one program each."""

_MOST_CTAS = 16

_STEP = 16
"""Elements that rows are multiples of apart: then the compiler sees that they are aligned."""


class Share(NamedTuple):
    """What a thread block has of a row.

    Attributes:
        block: columns that it has room for.
        warps: of a thread block.
        registers: of a thread, at most; ``None``: as many as it takes.
        ahead: rows on their way to shared memory; 0: a cluster has one row, in registers.
        each: thread blocks for a multiprocessor, if clusters have several rows.
    """

    block: int
    warps: int
    registers: int | None = None
    ahead: int = 0
    each: int = 0


EXPONENTIALS = Share(8192, 4, 96), Share(8192, 4, 128)
"""For softmax: what was the fastest on an H200 in float32 or bfloat16, as are those below."""

RMS_NORM = Share(8192, 8, 80), Share(4096, 4)
"""For RMS norm. Layer norm, which threads have to exchange something twice for, is as fast without clusters."""

TWO_ARRAYS = Share(8192, 8, 80), Share(4096, 4, 80), Share(4096, 8, 64)
"""Where two arrays are read."""

GRADIENTS = Share(4096, 4, None, 1, 5), Share(4096, 4, None, 2, 3)
"""For gradients with those of parameters."""


@dataclass(frozen=True)
class ClusterTiling:
    """What a kernel is specialised for.

    Attributes:
        ctas: thread blocks of a cluster, each with a part of the row.
        share: what each has.
        vector: neighbours in a row that a thread has together.
        ragged: parts don't fill their blocks.
    """

    ctas: int
    share: Share
    vector: int
    ragged: bool

    @property
    def name(self) -> str:
        """The tiling in a line, unique to it."""
        block, warps, registers, ahead, each = self.share
        most = f", {registers} registers" if registers else ""
        several = f", {ahead} ahead, {each} each" if ahead else ""
        return f"clusters of {self.ctas}×{block}, {warps} warps{most}{several}"

    @property
    def block(self) -> int:
        return self.share.block

    @property
    def ahead(self) -> int:
        return self.share.ahead

    @property
    def slots(self) -> int:
        """Rows that there is room for in shared memory."""
        return self.share.ahead + 1

    @property
    def steps(self) -> int:
        """Of how many steps there are notes at a time."""
        return 4 if self.share.ahead else 1

    @property
    def layout(self) -> Any:
        """Of a tile, parts × columns."""
        return gl.BlockedLayout([1, self.vector], [1, _LANES], [1, self.share.warps], [1, 0], cga_layout=self._parts)

    @property
    def shared(self) -> Any:
        """Of a row in shared memory."""
        return gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=self._parts)

    @property
    def everywhere(self) -> Any:
        """Of one number for each part, all of them in every thread block."""
        replicated = [[0] for _ in self._parts]
        return gl.BlockedLayout([1], [_LANES], [self.share.warps], [0], cga_layout=replicated)

    @property
    def _parts(self) -> list[list[int]]:
        """Which part each thread block has."""
        return [[1 << at, 0] for at in range(self.ctas.bit_length() - 1)]

    def clusters(self, rows: int, processors: int) -> int:
        """How many there are for so many rows."""
        return max(1, min(rows, self.share.each * processors // self.ctas)) if self.share.ahead else rows

    def notes(self, clusters: int) -> int:
        """Words that so many clusters have notes in: of each step, two for each part."""
        return clusters * self.steps * 2 * self.ctas


def in_parts(rows: Rows, ctas: int) -> Rows:
    """So many parts of the rows, as rows.

    >>> in_parts(Rows((7,), ((1000, 1),), 1000, False), 4)
    Rows(sizes=(7, 4), strides=((1000, 256, 1),), columns=256, wide=False)
    """
    part = -(-rows.columns // (4 * _STEP * ctas)) * 4 * _STEP
    strides = tuple([(*each[:-1], each[-1] * part, each[-1]) for each in rows.strides])
    return replace(rows, sizes=(*rows.sizes, ctas), strides=strides, columns=part)


def cluster_tilings(
    rows: Rows, whole: Sequence[int], items: Sequence[int], shares: Sequence[Share], shared: int
) -> list[ClusterTiling]:
    """The tilings that are worth a try; none where there are no clusters, or for rows that don't need or fit them.

    Args:
        rows: how all arrays lie.
        whole: which of them have whole rows.
        items: bytes of an element of those that are read; none if these don't begin at multiples of 16 bytes.
        shares: what thread blocks may have.
        shared: bytes of shared memory that a program may have.
    """
    if interpreted() or not items or max(items) > 4 or shared < _SHARED:
        return []
    if rows.columns < _LEAST_COLUMNS or rows.wide or not rows.count:
        return []
    places = [rows.strides[at] for at in whole]
    if any(along != 1 or any(each % _STEP for each in outer) for *outer, along in places):
        return []
    found = []
    for share in shares:
        ctas = power_of_two(-(-rows.columns // share.block))
        tiling = ClusterTiling(ctas, share, 16 // min(items), rows.columns != ctas * share.block)
        if 2 <= ctas <= _MOST_CTAS and (not share.ahead or tiling.slots * share.block * sum(items) < shared // 2):
            found.append(tiling)
    return found
