"""Which boxes to try for a contraction on Hopper, where strides let the hardware copy them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from einops_fast.backends.triton.contraction.boxes.tiles import (
    BATCH,
    COLUMNS,
    CONTRACTED,
    ROWS,
    BoxTiling,
    Dim,
    View,
    ends_late,
)
from einops_fast.backends.triton.contraction.problems import Contraction
from einops_fast.backends.triton.contraction.tiling import (
    BIAS,
    FACTOR,
    LEFT,
    OUT,
    RIGHT,
    even_parts,
    idle,
    listed,
    padded,
)
from einops_fast.backends.triton.device.tiling import Axis, power_of_two
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.planning.cost import ITEM_SIZES, Ceilings

_ITEM = 2
"""Bytes of an element: the products of warp groups turn operands around for these only."""

_GROUP_ROWS = 64
"""Rows that a warp group multiplies at once."""

_MOST_AXES = 5
"""Axes that the hardware counts through."""

_SHARED = 225 << 10
"""Bytes of shared memory for boxes."""

_MOST_STAGES = 6

_LEAST_STEPS = 4
"""Of a part of a sum; and of one whose right operand stays in shared memory."""

_MOST_ROUNDS = 6
"""Tiles for each multiprocessor up to which sums are cut into parts."""

_WIDE = 2 * 256
"""Columns of all warp groups from which on swaths of 16 tiles of rows were faster than of 8."""

_FAR = 1 << 22
"""Elements between neighbours of a result that threads write beyond which offsets in a tile may not fit in 32 bits."""

_PIECE = 64
"""Columns that leave together, where not all do."""

_CACHE = 2.6
"""How many times faster than memory the L2 cache is for such copies, as measured on an H200."""

_BY_THREADS = {1: 3.4, 2: 2.0, 4: 1.3, 8: 1.0}
"""How many times as long as from the cache it takes threads to write a result, by how much they store at once."""

_FROM_REGISTERS = 1.2
"""How much longer products take whose left operands are multiplied in registers first; an estimate."""

# Warp groups, columns of a tile, and of its second part as a fraction of these (0: none).
_SHAPES = (
    (2, 256, 0), (2, 256, 8), (2, 256, 4), (2, 128, 0), (2, 128, 2), (2, 128, 4), (2, 64, 0), (2, 64, 2), (2, 32, 0),
    (1, 256, 0), (1, 256, 8), (1, 128, 0), (1, 128, 2), (1, 64, 0), (1, 32, 0),
)  # fmt: skip


def tilings(problem: Contraction, dtype: str, on: Ceilings) -> list[tuple[float, BoxTiling]]:
    """Return tilings with predicted seconds, fastest first; none where strides don't let boxes be copied."""
    tiled = _tiled_axes(problem)
    if (
        ITEM_SIZES[dtype] != _ITEM
        or tiled is None
        or (problem.factored and tiled[0].strides[FACTOR] and tiled[-1].strides[FACTOR])
        or not all(_copyable(problem, array) for array in (LEFT, RIGHT))
        or (_has_bias(problem) and not _along_one_side(problem, tiled))
        or (loose(problem) and (problem.results > 1 or max(axis.strides[OUT] for axis in tiled) >= _FAR))
    ):
        return []
    return listed(_all(problem, tiled, on), lambda tiling: _seconds(problem, tiling, on))


def _tiled_axes(problem: Contraction) -> tuple[Axis, Axis, Axis] | None:
    """The row, column and contracted axis that boxes extend along: every array is contiguous along one of its two."""
    chosen = []
    wanted = ((problem.rows, (LEFT, OUT)), (problem.columns, (RIGHT, OUT)), (problem.contracted, (LEFT, RIGHT)))
    for axes, arrays in wanted:
        contiguous = {axis for axis in axes for array in arrays if axis.strides[array] == 1}
        if not axes or len(contiguous) > 1:
            return None
        chosen.append(contiguous.pop() if contiguous else max(axes, key=lambda axis: axis.size))
    rows, columns, contracted = chosen
    pairs = {LEFT: (rows, contracted), RIGHT: (columns, contracted), OUT: (rows, columns)}
    if any(all(axis.strides[array] != 1 for axis in pair) for array, pair in pairs.items()):
        return None
    return rows, columns, contracted


def _copyable(problem: Contraction, array: int) -> bool:
    """Whether the hardware can count through the axes of an array."""
    axes = [axis for _, axis in _of_array(problem, array)]
    return len(axes) <= _MOST_AXES and all(
        axis.strides[array] == 1 or (axis.strides[array] > 0 and axis.strides[array] * _ITEM % ALIGNMENT == 0)
        for axis in axes
    )


def loose(problem: Contraction) -> bool:
    """Whether threads have to write the result, as it doesn't lie as the hardware can write it."""
    return not _copyable(problem, OUT)


def _has_bias(problem: Contraction) -> bool:
    return problem.epilogue is not None and problem.epilogue.bias is not None


def _along_one_side(problem: Contraction, tiled: tuple[Axis, Axis, Axis]) -> bool:
    """Whether the bias differs along rows or columns of a box, not along both; and isn't spread too far."""
    rows, columns, _ = tiled
    reach = sum((axis.size - 1) * axis.strides[BIAS] for axis in (*problem.batch, *problem.rows, *problem.columns))
    return not (rows.strides[BIAS] and columns.strides[BIAS]) and reach < 1 << 30


def _of_array(problem: Contraction, array: int) -> list[tuple[int, Axis]]:
    """The axes that an array has, each with its role, slowest first."""
    roles = {BATCH: problem.batch, ROWS: problem.rows, COLUMNS: problem.columns, CONTRACTED: problem.contracted}
    axes = [(role, axis) for role, of_role in roles.items() for axis in of_role if axis.strides[array]]
    return sorted(axes, key=lambda each: -each[1].strides[array])


def _all(problem: Contraction, tiled: tuple[Axis, Axis, Axis], on: Ceilings) -> Iterator[BoxTiling]:
    rows, columns, contracted = tiled
    others = [axis for axis in problem.rows if axis is not rows]
    for groups, width, fraction in _SHAPES:
        rest = width // fraction if fraction else 0
        if width > max(16, power_of_two(columns.size)):
            continue
        if rest and padded(columns.size, width + rest) > 0.93 * padded(columns.size, width):
            continue
        # Warp groups have neighbouring rows, or rows that lie apart along another axis.
        aparts: list[Axis | None] = [None] if rows.size > _GROUP_ROWS or groups == 1 else []
        if groups > 1 and others:
            aparts.append(max(others, key=lambda axis: axis.size))
        for apart in aparts:
            for pieces, depth in product(_pieces(problem, width, rest), _depths(contracted.size)):
                tiling = _tiling(problem, tiled, apart, groups, (width, rest), depth, pieces)
                if tiling.stages > 1:
                    yield tiling
                    yield from _in_parts(tiling, on)
                    yield from _resident(tiling, on)


def _depths(size: int) -> Iterator[int]:
    """Contracted extents of a step: as deep as can be, and half of that where it leaves less of the last one empty."""
    deepest = min(64, max(16, power_of_two(size)))
    yield deepest
    half = deepest // 2
    if half >= 16 and padded(size, half) < 0.93 * padded(size, deepest):
        yield half


def _pieces(problem: Contraction, width: int, rest: int) -> Iterator[int]:
    """In how many pieces a tile may leave: where the end of one takes time, each way is faster for some."""
    yield 1
    if ends_late(problem.epilogue) and not rest and width > _PIECE and not loose(problem):
        yield width // _PIECE


def _in_parts(tiling: BoxTiling, on: Ceilings) -> Iterator[BoxTiling]:
    """Where tiles are few, the tiling with the steps in so many parts that no multiprocessor is idle for long."""
    steps, places = tiling.tiles[CONTRACTED], tiling.places
    split = min(on.units // places, steps // _LEAST_STEPS)
    if split < 2:
        # More than one for each: the fewest parts that come close to whole rounds.
        most = min(_MOST_ROUNDS * on.units // places, steps // _LEAST_STEPS)
        busy = {parts: round(parts * places / padded(parts * places, on.units), 1) for parts in range(1, most + 1)}
        split = max(busy, key=lambda parts: (busy[parts], -parts), default=1)
    if split > 1 and tiling.epilogue is None:
        yield _staged(replace(tiling, split=even_parts(steps, split)))


def _resident(tiling: BoxTiling, on: Ceilings) -> Iterator[BoxTiling]:
    """The tiling with the right operand in shared memory, where it's the same for several tiles and leaves room.

    With few steps, little is read again anyway.
    """
    batches, row_tiles, column_tiles, steps = tiling.tiles
    piece = tiling.rest or min(_PIECE, tiling.width)
    few = row_tiles < 2 * on.units or steps < _LEAST_STEPS
    kept = tiling.epilogue is not None or tiling.factor is not None
    if batches * column_tiles > 1 or few or kept or piece < 32:
        return
    stays = _staged(replace(tiling, resident=True, pieces=1 if tiling.loose else max(1, tiling.width // piece)))
    if stays.stages > 2:
        yield stays


def _staged(tiling: BoxTiling) -> BoxTiling:
    """The tiling with as many steps in shared memory as fit beside what leaves, and a right operand that stays."""
    columns, rows = tiling.width + tiling.rest, _GROUP_ROWS * tiling.groups
    at_once = tiling.width if tiling.loose else columns
    leaving = at_once if tiling.pieces == 1 else 2 * tiling.width // tiling.pieces
    held = 0 if tiling.split > 1 else _GROUP_ROWS * tiling.workers * leaving
    step, most = (rows + columns) * tiling.depth, _MOST_STAGES
    if tiling.resident:
        held += columns * tiling.depth * tiling.tiles[CONTRACTED]
        step, most = rows * tiling.depth, 2 * _MOST_STAGES
    return replace(tiling, stages=min((_SHARED - _ITEM * held) // (_ITEM * step), most))


def _tiling(
    problem: Contraction,
    tiled: tuple[Axis, Axis, Axis],
    apart: Axis | None,
    groups: int,
    widths: tuple[int, int],
    depth: int,
    pieces: int,
) -> BoxTiling:
    width, rest = widths
    rows, columns, contracted = tiled
    steps = {rows: _GROUP_ROWS * (1 if apart else groups), columns: width + rest, contracted: depth}
    shifts = {apart: 1} if apart else {rows: _GROUP_ROWS}
    if apart:
        steps[apart] = groups
    boxes = {rows: _GROUP_ROWS, columns: width, contracted: depth}
    *free, summed = problem.batch, problem.rows, problem.columns, problem.contracted
    # What the left operand lacks comes first: its boxes stay meanwhile.
    lacking = [axis for axis in summed if not axis.strides[LEFT]]
    counted = [*(_counted(axes, steps) for axes in free), _counted(summed, steps, lacking)]

    def view(array: int, first: int) -> View:
        axes = _of_array(problem, array)
        dims = [
            Dim(
                axis.size,
                axis.strides[array],
                role,
                *counted[role][axis],
                steps.get(axis, 1),
                boxes.get(axis, 1),
                shifts.get(axis, 0),
            )
            for role, axis in axes
        ]
        return View(tuple(dims), turned=axes[-1][0] == first)

    bias = tuple(axis.strides[BIAS] for _, axis in _of_array(problem, OUT)) if _has_bias(problem) else ()
    batches, row_tiles, column_tiles, depths = (prod(count for _, count in each.values()) for each in counted)
    tiling = BoxTiling(
        view(LEFT, ROWS),
        view(RIGHT, CONTRACTED),
        view(OUT, ROWS),
        (batches, row_tiles, column_tiles, depths),
        groups,
        width,
        depth,
        swath=16 if groups * width >= _WIDE else 8,
        pieces=pieces,
        rest=rest,
        epilogue=problem.epilogue,
        bias=bias,
        factor=view(FACTOR, ROWS) if problem.factored else None,
        loose=loose(problem),
    )
    return _staged(tiling)


def _counted(
    axes: Sequence[Axis], steps: Mapping[Axis, int], first: Sequence[Axis] = ()
) -> dict[Axis, tuple[int, int]]:
    """For each axis of a role, by what a tile's number is divided, and how many positions there are then.

    Axes that boxes extend along come early, after those that are to be first: neighbouring tiles share what they read.
    """
    found: dict[Axis, tuple[int, int]] = {}
    divisor = 1
    for axis in sorted(axes, key=lambda axis: (axis not in first, -steps.get(axis, 1))):
        count = -(-axis.size // steps.get(axis, 1))
        found[axis] = divisor, count
        divisor *= count
    return found


def _seconds(problem: Contraction, tiling: BoxTiling, on: Ceilings) -> float:
    """Predict the time: arithmetic or traffic, whichever takes longer; copies hide all but the first tile's."""
    waiting = idle(tiling.total, on)
    rows, columns = _GROUP_ROWS * tiling.groups, tiling.width + tiling.rest
    steps = -(-tiling.tiles[CONTRACTED] // tiling.split)
    products = 2 * tiling.total * rows * columns * steps * tiling.depth
    reach: float = min(1.0, (rows * tiling.turns * columns / 32768) ** 0.15)
    arithmetic = waiting * products / (on.gemm_rate("float16") * reach)
    loaded = rows if tiling.resident else rows / tiling.repeats + columns
    cache = waiting * _ITEM * tiling.total * steps * tiling.depth * loaded / (on.bandwidth * _CACHE)
    if problem.factored:
        arithmetic *= _FROM_REGISTERS
    memory = _ITEM * problem.moved / on.bandwidth
    parts = 0.0
    if tiling.split > 1:
        # Sums of parts are written to the cache, and read from there.
        parts = 8 * tiling.split * tiling.reach / (on.bandwidth * _CACHE) + on.call / 2
    elif tiling.loose:
        # Nothing is multiplied meanwhile.
        parts = _BY_THREADS[tiling.stored_at_once] * _ITEM * tiling.reach / (on.bandwidth * _CACHE)
    # What isn't hidden of the end of one tile behind the next.
    tail = 0.1 / tiling.turns * min(arithmetic, memory)
    return max(arithmetic, cache, memory) + tail + parts + on.call
