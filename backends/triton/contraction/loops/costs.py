"""How long a memory-bound loop nest takes with one tiling.

Four things bound it: memory, where each array is read or written once; the cache, from which tiles are read by the
sector, and in which what several tiles share is read again; instructions, of which it takes more where rows begin at
odd places; and waiting, since a program reads a tile only after it has added up the one before. Other programs fill
the gaps, so it takes about the root of the sum of the squares. The constants were fitted to the times of 3500 tilings
of 68 problems on an H200, but for that of elements apart, and for those of instructions, which come from 342 tilings of
11 problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd, hypot, log2, prod

from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling
from einops_fast.backends.triton.contraction.tiling import SECTOR
from einops_fast.backends.triton.device.tiling import LANES, Group
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import VECTOR

_CACHE = 1.35
"""How many times as fast as memory the cache is."""

_STEP, _PROGRAM, _SUM_OF_PARTS = 0.6e-6, 0.2e-6, 3.8e-6
"""Seconds that a program waits for each tile and at its end, and that partial results take to be added up."""

_TURN = 5e-11
"""Seconds that a multiprocessor takes for an element of a tile that operands are contiguous along different axes of."""

_APART = 3e-10
"""Seconds that a multiprocessor takes for an element that a thread finds no neighbour of, nor do those beside it."""

_ISSUE = 2.5e-10
"""Seconds that a multiprocessor takes for an instruction of a warp, with what it waits for meanwhile."""

_PER_LOAD, _PER_ELEMENT, _PER_SHUFFLE = 5, 2, 2
"""Instructions of a thread to load from one place, for an element found there, and to add what another thread has."""

_THREADS, _PROGRAMS, _REGISTERS = 2048, 32, 65536
"""What a multiprocessor has."""


def reduction_seconds(tiling: ReductionTiling, sizes: Sequence[int], item: int, on: Ceilings) -> float:
    """Predict the time of a tiling; ``sizes`` are elements of each operand, and of the result."""
    out = tiling.operands
    resident = _resident(tiling, item)
    programs = tiling.free.tiles * tiling.split / on.units
    steps = -(-tiling.summed.tiles // tiling.split)
    loads = [_sectors(tiling, array, item) for array in range(out)]
    stored = _sectors(tiling, out, item if tiling.split == 1 else max(item, 4))
    turns = _directions(tiling, loads) - 1
    cache = _CACHE * on.bandwidth / on.units
    # A multiprocessor has a whole number of programs; of many, some are done before the others.
    busy = ceil(programs) if programs < 8 else programs + min(resident, 8) / 2
    apart = [_APART * _places(tiling, array) for array in range(out + 1)]
    turning = turns * _TURN * tiling.block
    at_work = busy * (steps * (sum(loads) / cache + sum(apart[:out]) + turning) + stored / cache + apart[out])
    issuing = busy * _ISSUE * (steps * _issued(tiling, item) + _shuffled(tiling, item, loads))
    rounds = ceil(programs / resident) if programs <= 3 * resident else programs / resident + 0.5
    waiting = rounds * (steps * _STEP + _PROGRAM)
    moved = sum(sizes) * item
    if tiling.split > 1:
        moved += 12 * tiling.split * sizes[out]  # written and read again, which takes a bit longer than others
    parts = _SUM_OF_PARTS if tiling.split > 1 else 0.0
    return hypot(at_work, issuing, waiting, moved / on.bandwidth) + on.call + parts


def _resident(tiling: ReductionTiling, item: int) -> int:
    """Programs that a multiprocessor works on at a time: each thread has its sums, and what it has loaded."""
    threads = LANES * tiling.warps
    registers = min(24 + tiling.block / threads * (max(item / 4, 1) + tiling.operands * item / 8), 255)
    return max(min(_THREADS // threads, int(_REGISTERS / (registers * threads)), _PROGRAMS), 1)


def _sectors(tiling: ReductionTiling, array: int, item: int) -> int:
    """Bytes of the sectors that a tile takes of an array."""
    within = [
        (abs(axis.strides[array]), axis.size, count, role is tiling.summed)
        for role in (tiling.free, tiling.summed)
        for group in role.groups
        for axis, count in group.counts
        if axis.strides[array]
    ]
    elements, run, reach = prod(count for *_, count, _ in within), 1, 1
    for stride, size, count, summed in sorted(within):
        # What is between two elements of a sector comes with them.
        if stride > max(reach, SECTOR // item):
            break
        run *= count
        reach += stride * (count - 1)
        if count < size:
            if summed and tiling.split == 1:
                # The next step finds what is left of the last sector in the first cache.
                return elements // run * reach * item
            break
    align = _alignment(tiling, array, item)
    # What begins anywhere reaches into one sector more.
    sectors = -(-reach * item // SECTOR) * SECTOR if align == SECTOR else reach * item + SECTOR - align
    return elements // run * sectors


def _alignment(tiling: ReductionTiling, array: int, item: int) -> int:
    """Bytes that all strides of an array but the contiguous one divide by; those of a sector at most."""
    align = SECTOR
    for role in (tiling.free, tiling.summed):
        for axis in (*role.outer, *role.groups[0].axes, *role.groups[1].axes):
            if abs(axis.strides[array]) > 1:
                align = gcd(align, axis.strides[array] * item)
    return align


def _at_once(tiling: ReductionTiling, array: int, item: int) -> int:
    """Elements that a thread loads at once."""
    runs = [_beside(group, array)[1] for role in (tiling.free, tiling.summed) for group in role.groups if group.axes]
    each = max(tiling.block // (LANES * tiling.warps), 1)
    return max(min(_alignment(tiling, array, item), VECTOR, max(runs, default=1) * item, each * item) // item, 1)


def _issued(tiling: ReductionTiling, item: int) -> float:
    """Instructions of all warps for a tile: also positions that don't exist take some."""
    found = 0.0
    for array in range(tiling.operands):
        groups = [group for role in (tiling.free, tiling.summed) for group in role.groups if not group.missing(array)]
        positions = prod(group.block for group in groups) / LANES
        found += positions * (_PER_LOAD / _at_once(tiling, array, item) + _PER_ELEMENT)
    return found


def _shuffled(tiling: ReductionTiling, item: int, loads: Sequence[int]) -> float:
    """Instructions of all warps to add up what threads have, once: those along a contiguous summed axis have parts."""
    most = max(range(len(loads)), key=lambda array: loads[array])
    group = tiling.summed.groups[1]
    if not _runs(group, most):
        return 0.0
    threads = min(max(group.block // _at_once(tiling, most, item), 1), LANES * tiling.warps)
    lanes = min(threads, LANES)
    return _PER_SHUFFLE * log2(lanes) * tiling.free.block * threads / LANES


def _places(tiling: ReductionTiling, array: int) -> float:
    """In how many places of an array threads find what a tile takes, those beside each other all at once."""
    elements = most = 1
    for role in (tiling.free, tiling.summed):
        for group in role.groups:
            if not group.missing(array):
                again, run = _beside(group, array)
                elements *= again * prod(count for axis, count in group.counts if axis.strides[array])
                most = max(most, again * run)
    return elements / min(most, LANES)


def _beside(group: Group, array: int) -> tuple[int, int]:
    """Of a block: how often an element comes in a row, and how many neighbours in the array do."""
    again = run = 1
    for axis, count in group.counts:
        if axis.strides[array] == 0:
            again *= count
        elif abs(axis.strides[array]) == run:
            run *= count
        else:
            break
        if count < axis.size:
            break
    return again, run


def _directions(tiling: ReductionTiling, loads: Sequence[int]) -> int:
    """Along how many different groups the operands are contiguous; those that little is read of don't count."""
    groups = [group for role in (tiling.free, tiling.summed) for group in role.groups]
    return len(
        {
            next((at for at, group in enumerate(groups) if group.block > 1 and _runs(group, array)), None)
            for array, load in enumerate(loads)
            if 4 * load >= max(loads)
        }
    )


def _runs(group: Group, array: int) -> bool:
    return bool(group.axes) and abs(group.axes[-1].strides[array]) == 1
