"""How a long row is shared by the thread blocks of a cluster, and which rows are.

See :mod:`~einops_fast.backends.triton.rows.cluster` for what happens in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.tiling import LANES, power_of_two
from einops_fast.backends.triton.rows.rows import Rows, pieces_of
from einops_fast.backends.triton_support import interpreted
from einops_fast.planning.layout import VECTOR

_SHARED = 232448
"""Bytes of shared memory that a program may have on a GPU with clusters; on others it is less."""

_LEAST_COLUMNS = 8193
"""Shorter rows have one program each."""

_MOST_CTAS = 16

_LONG = 16384
"""Columns of a thread block for rows that are too long for a cluster of smaller ones; for others these are faster."""

_STEP = 16
"""Elements that rows are multiples of apart: then the compiler sees that they are aligned."""


class Share(NamedTuple):
    """What a thread block has of a row: room for a ``block`` of columns, warps, and registers of each thread, at most.

    There are ``each`` thread blocks for a multiprocessor; 0: as many as there are rows for. What is told about a row is
    only heard when the next one has been worked on if it is ``late``.
    """

    block: int
    warps: int
    registers: int
    each: int = 0
    late: bool = False


EXPONENTIALS = Share(8192, 4, 128), Share(4096, 4, 80), Share(_LONG, 8, 80), Share(_LONG, 8, 128)
"""For softmax: what was the fastest on an H200, as are those below; in bfloat16 the first ones, in float32 the last."""

GRADIENTS_OF_EXPONENTIALS = Share(8192, 8, 80), Share(4096, 4, 80), Share(_LONG, 8, 128)
"""For the gradient of softmax."""

NORM = Share(8192, 8, 64), Share(4096, 4, 96)
"""For RMS norm."""

CENTRED_NORM = Share(8192, 4, 128, 4), Share(4096, 4, 168, 3)
"""For layer norm."""

NORM_OF_SUM = Share(8192, 8, 80), Share(4096, 8, 64)
"""For norms of sums."""

GRADIENTS_OF_NORM = Share(4096, 8, 128, 2, late=True), Share(8192, 8, 255, 1), Share(4096, 8, 128, 2)
"""For gradients with those of parameters."""


@dataclass(frozen=True)
class ClusterTiling:
    """What a kernel is specialised for: thread blocks of a cluster, each with a share of the row.

    ``items`` are bytes of an element of each array that is read; so many ``pieces``, tiles of ``block`` columns, hold
    the parts of a row, which don't fill them if they are ``ragged``.
    """

    ctas: int
    share: Share
    items: tuple[int, ...]
    block: int
    pieces: int
    ragged: bool

    @property
    def name(self) -> str:
        """The tiling in a line, unique to it for rows of one length."""
        _, warps, registers, each, late = self.share
        several = f", {each} each{', late' if late else ''}" if each else ""
        columns = warps * self.pieces * self.block
        return f"clusters of {self.ctas}×{columns}, {warps} warps, {registers} registers{several}"

    @property
    def parts(self) -> int:
        """Of a row: a warp has one."""
        return self.ctas * self.share.warps

    @property
    def several(self) -> bool:
        """Clusters have several rows, one after the other."""
        return self.share.each > 0

    @property
    def late(self) -> bool:
        return self.share.late

    @property
    def layout(self) -> Any:
        """Of a tile, parts × columns."""
        vector = min(VECTOR // min(self.items), self.block // LANES)
        return gl.BlockedLayout([1, vector], [1, LANES], [self.share.warps, 1], [1, 0], cga_layout=self._parts)

    @property
    def shared(self) -> Any:
        """Of a row in shared memory."""
        return gl.SwizzledSharedLayout(1, 1, 1, [1, 0], cga_layout=self._parts)

    @property
    def everywhere(self) -> Any:
        """Of one number for each part, all of them in every thread block."""
        replicated = [[0] for _ in self._parts]
        each = max(1, self.parts // LANES)  # so that every warp has all
        return gl.BlockedLayout([each], [LANES], [self.share.warps], [0], cga_layout=replicated)

    @property
    def _parts(self) -> list[list[int]]:
        """Which parts each thread block has."""
        return [[1 << at, 0] for at in range(self.ctas.bit_length() - 1)]

    def clusters(self, rows: int, processors: int) -> int:
        """How many there are for so many rows."""
        return max(1, min(rows, self.share.each * processors // self.ctas)) if self.several else rows


def in_parts(rows: Rows, count: int) -> Rows:
    """So many parts of the rows, as rows.

    >>> in_parts(Rows((7,), ((1000, 1),), 1000, False), 4)
    Rows(sizes=(7, 4), strides=((1000, 256, 1),), columns=256, wide=False)
    """
    part = -(-rows.columns // (4 * _STEP * count)) * 4 * _STEP
    strides = tuple([(*each[:-1], each[-1] * part, each[-1]) for each in rows.strides])
    return replace(rows, sizes=(*rows.sizes, count), strides=strides, columns=part)


def cluster_tilings(
    rows: Rows, whole: Sequence[int], items: Sequence[int], shares: Sequence[Share], shared: int
) -> list[ClusterTiling]:
    """Return tilings worth trying; none where there are no clusters, or for rows that don't need or fit them.

    ``whole`` are the arrays that have whole rows, and ``items`` bytes of an element of those that are read: none if
    these don't begin at multiples of 16 bytes. The first of the shares is the rule's for elements of two bytes; for
    others the last one is.
    """
    if interpreted() or not items or max(items) > 4 or shared < _SHARED:
        return []
    if rows.columns < _LEAST_COLUMNS or rows.wide or not rows.count:
        return []
    places = [rows.strides[at] for at in whole]
    if any(along != 1 or any(each % _STEP for each in outer) for *outer, along in places):
        return []
    found = []
    for share in shares if min(items) == 2 else reversed(shares):
        ctas = power_of_two(-(-rows.columns // share.block))
        if not 2 <= ctas <= _MOST_CTAS or (share.block == _LONG and ctas < _MOST_CTAS):
            continue
        parts = ctas * share.warps
        least = 8 * LANES // min(items)  # 8 bytes for each thread
        block, pieces = pieces_of(in_parts(rows, parts).columns, share.block // share.warps, least)
        found.append(ClusterTiling(ctas, share, tuple(items), block, pieces, rows.columns != parts * pieces * block))
    return found
