"""How long rows are cut for a ring of chunks, which rows have one, and the call of a kernel with it.

See :mod:`~einops_fast.backends.triton.row_ring` for what happens in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.kernel_call import KernelCall
from einops_fast.backends.triton.launch import interpreted
from einops_fast.backends.triton.rows import Rows
from einops_fast.backends.triton.tiling import LANES
from einops_fast.layout import VECTOR

__all__ = ["Cut", "Ring", "RingTiling", "ring_call", "ring_for", "ring_of_cut"]

_SCRATCH = 2048
"""Bytes of shared memory left for what threads tell each other."""

_LEAST_SHARED = 98305
"""Bytes of shared memory; GPUs that can't copy to it asynchronously have less."""


class Cut(NamedTuple):
    """A way to cut rows.

    Attributes:
        run: vectors of a chunk that each thread has.
        warps: of a program.
        ahead: chunks that are on their way.
        turned: whether programs begin with different chunks.
        apart: whether what is copied again has slots of its own, ``ahead`` as well.
    """

    run: int
    warps: int
    ahead: int
    turned: bool = True
    apart: bool = True


@dataclass(frozen=True)
class RingTiling:
    """What a kernel is specialised for: how a row is cut, and how many chunks there is room for.

    Attributes:
        axes: how many count the rows.
        vector: neighbours in a row that a thread copies together.
        run: vectors of a chunk that each thread has.
        slots: chunks that the ring has room for.
        ahead: how many of these are for chunks that are on their way.
        turned: programs begin with different chunks.
        ragged: the last chunk of a row isn't a whole one.
        warps: of a program.
    """

    axes: int
    vector: int
    run: int
    slots: int
    ahead: int
    turned: bool
    ragged: bool
    warps: int

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def vectors(self) -> int:
        """Of a chunk."""
        return self.run * self.threads

    @property
    def layout(self) -> Any:
        """Of a chunk, run × threads × vector: each thread works on what it has copied."""
        return gl.BlockedLayout([self.run, 1, self.vector], [1, LANES, 1], [1, self.warps, 1], [2, 1, 0])

    @property
    def of_threads(self) -> Any:
        """Layout of one number for each thread."""
        return gl.SliceLayout(0, gl.SliceLayout(2, self.layout))

    @property
    def shared(self) -> Any:
        return gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])


class Ring(NamedTuple):
    """A ring, how many chunks are kept in it, whether these are a whole row, and how many programs have one."""

    tiling: RingTiling
    kept: int
    whole: bool
    programs: int


def ring_for(
    rows: Rows, items: Sequence[int], read: int, shared: int, processors: int, elsewhere: Mapping[int, int],
    whole: Cut, part: Cut | None,
) -> Ring | None:  # fmt: skip
    """The ring for long rows; ``None`` where other kernels must do, or are as fast.

    Args:
        rows: how all arrays lie; those that are read come first.
        items: bytes of an element of each array with whole rows, the first ones; none if an address isn't a multiple
            of 16 bytes.
        read: how many of these arrays are copied to rings.
        shared: bytes of shared memory that a program may have.
        processors: multiprocessors of the device.
        elsewhere: by bytes of an element, how long rows are for which other kernels are as fast; all, if it has none.
        whole: how to cut rows for which there is room.
        part: and others, if they are for this kernel at all.
    """
    if interpreted() or not items or shared < _LEAST_SHARED or rows.wide or 2 * rows.count < processors:
        return None
    vector = VECTOR // min(items[:read])
    places = rows.strides[: len(items)]
    if rows.columns % vector or any(each[-1] != 1 or any(at % vector for at in each[:-1]) for each in places):
        return None
    if not _long(rows.columns, elsewhere.get(items[0])):
        return None
    ring = ring_of_cut(whole, rows, vector, sum(items[:read]), shared, processors)
    if ring is None or not ring.whole:
        ring = part and ring_of_cut(part, rows, vector, sum(items[:read]), shared, processors)
    return ring


def _long(columns: int, elsewhere: int | None) -> bool:
    return elsewhere is not None and columns > elsewhere


def ring_of_cut(cut: Cut, rows: Rows, vector: int, size: int, shared: int, processors: int) -> Ring | None:
    """The ring that there is room for, if any. ``size`` are the bytes of an element in all arrays that are copied."""
    chunk = cut.run * cut.warps * LANES * vector
    slots = (shared - _SCRATCH) // (chunk * size)
    chunks = -(-rows.columns // chunk)
    kept = min(chunks, slots - cut.ahead)
    if cut.apart and kept < chunks:
        kept -= cut.ahead
        if kept < cut.ahead:
            return None  # the first that are copied again wouldn't be in time
    if kept < 1:
        return None
    ragged = rows.columns % chunk != 0
    tiling = RingTiling(len(rows.sizes), vector, cut.run, slots, cut.ahead, cut.turned, ragged, cut.warps)
    return Ring(tiling, kept, kept == chunks, min(rows.count, processors))


def ring_call(
    kernel: Any, ring: Ring | None, rows: Rows, arrays: int, places: tuple[Any, ...], numbers: tuple[Any, ...],
    constants: Mapping[str, Any],
) -> KernelCall | None:  # fmt: skip
    """A kernel with its ring, or ``None`` if there is none.

    Args:
        kernel: takes arrays, sizes, strides in vectors of those with whole rows, and then ``places``, how many rows
            there are, vectors in a row, and chunks that are kept, ``numbers``, ``constants`` and the tiling.
        ring: from :func:`ring_for`.
        rows: how all arrays lie.
        arrays: how many of them have whole rows, the first ones.
        places, numbers, constants: what else the kernel takes.
    """
    if ring is None:
        return None
    vector = ring.tiling.vector
    strides = [tuple([each // vector for each in along[:-1]]) for along in rows.strides[:arrays]]
    tail = rows.sizes, *strides, *places, rows.count, rows.columns // vector, ring.kept, *numbers
    return KernelCall(kernel, (ring.programs, 1), tail, {**constants, "t": ring.tiling}, ring.tiling.warps, 1)
