"""Which positions the tile has that a program works on at a turn, and which blocks of others it meets."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.indexing import field


@gluon.jit
def _position(turn, numbers, tiling: gl.constexpr):
    """Batch element of the tile that a program has at a turn, and which of its tiles it is; beyond the last if none.

    Where tiles differ in what there is to do, those of ``together`` elements make up a section, and are dealt out in
    rounds: those with most to do first, and to the programs there and back. So all programs have as much to do.
    """
    # Of queries that see what is before them, the last ones have most to do.
    most_last: gl.constexpr = tiling.right and not tiling.turned
    tiles = numbers.tiles
    element = turn // tiles
    at = turn % tiles
    if tiling.right:
        programs = gl.num_programs(0)
        section = turn // programs // numbers.rounds
        lap = turn // programs % numbers.rounds
        program = turn % programs
        program = program if (lap + section) % 2 == 0 else programs - 1 - program
        width = gl.minimum(numbers.elements - section * numbers.together, numbers.together)
        card = lap * programs + program
        element = section * numbers.together + card % width
        at = card // width
        if most_last:
            at = at if at >= tiles else tiles - 1 - at
    elif most_last:
        at = tiles - 1 - at
    return element, at


@gluon.jit
def tile_of(turn, numbers, tiling: gl.constexpr):
    """Of the tile at a turn: its batch element, its first query, and the blocks of keys that it sees.

    Blocks from ``first`` to ``end`` are seen, those from ``full`` to ``full_end`` by all queries of the tile in whole.
    Of a tile of keys, those are the blocks of queries that see it, and ``element`` counts what has keys of its own.
    """
    element, at = _position(turn, numbers, tiling)
    start = at * tiling.rows
    first, full, full_end, end = blocks_met(start, tiling.rows, numbers, tiling)
    return element, start, first, full, full_end, end if at < numbers.tiles else first


@gluon.jit
def blocks_met(start, rows: gl.constexpr, numbers, tiling: gl.constexpr):
    """The blocks that so many positions from ``start`` on meet; see :func:`tile_of`."""
    if tiling.turned:
        return _blocks_seeing(start, rows, numbers, tiling)
    else:
        return _blocks_seen(start, rows, numbers, tiling)


@gluon.jit
def _blocks_seen(start, rows: gl.constexpr, numbers, tiling: gl.constexpr):
    end = numbers.kv_len
    full_end = numbers.kv_len // tiling.block
    first = 0
    full = 0
    if tiling.right:
        end = gl.minimum(end, gl.maximum(start + rows + numbers.right, 0))
        full_end = gl.minimum(full_end, gl.maximum(start + numbers.right + 1, 0) // tiling.block)
    if tiling.left:
        first = gl.maximum(start + numbers.left, 0) // tiling.block
        full = (gl.maximum(start + rows - 1 + numbers.left, 0) + tiling.block - 1) // tiling.block
    end = (end + tiling.block - 1) // tiling.block
    return gl.minimum(first, end), full, full_end, end


@gluon.jit
def _blocks_seeing(start, rows: gl.constexpr, numbers, tiling: gl.constexpr):
    # Beyond the last query, and after the last key, weights are zero or go nowhere.
    end = numbers.q_len
    full_end = (numbers.q_len + tiling.block - 1) // tiling.block
    first = 0
    full = 0
    if tiling.right:
        first = gl.maximum(start - numbers.right, 0) // tiling.block
        full = (gl.maximum(start + rows - 1 - numbers.right, 0) + tiling.block - 1) // tiling.block
    if tiling.left:
        end = gl.minimum(end, gl.maximum(start + rows - numbers.left, 0))
        full_end = gl.minimum(full_end, gl.maximum(start - numbers.left + 1, 0) // tiling.block)
    end = (end + tiling.block - 1) // tiling.block
    return gl.minimum(first, end), full, full_end, end


@gluon.jit
def within_bounds(bounds, element, start, first, end, numbers, tiling: gl.constexpr):
    """The blocks from ``first`` to ``end`` that a tile meets, but those at both ends that the mask hides from all rows.

    ``bounds`` are what :mod:`~einops_fast.backends.triton.attention.around.mask_bounds` has found.
    """
    # A tile that there isn't has no bounds either.
    if tiling.bounded and first < end:
        places = numbers.bounds
        c = element % numbers.third
        b = element // numbers.third % numbers.second
        a = element // numbers.third // numbers.second
        place = a * places.first + b * places.second + c * places.third + start // 64 * places.position
        low = gl.load(bounds + place)
        high = gl.load(bounds + place + 1)
        for group in gl.static_range(1, field(tiling, "groups")):
            low = gl.minimum(low, gl.load(bounds + place + group * places.position))
            high = gl.maximum(high, gl.load(bounds + place + group * places.position + 1))
        first = gl.minimum(gl.maximum(first, low // tiling.block), end)
        end = gl.maximum(gl.minimum(end, (high + tiling.block - 1) // tiling.block), first)
    return first, end


@gluon.jit
def own_blocks(start, first, full, full_end, end, numbers, tiling: gl.constexpr, group: gl.constexpr):
    """Of what :func:`tile_of` says of a tile's blocks, what holds for the rows of a warp group.

    Returns:
        Its first block, those that are seen in whole, its end, and how many blocks the tile has before and after.
    """
    before = 0
    after = 0
    if tiling.apart:
        tile_first = first
        tile_end = end
        row = start + 64 * group
        first, full, full_end, end = blocks_met(row, 64, numbers, tiling)
        # A tile that there isn't has no blocks.
        first = gl.minimum(gl.maximum(first, tile_first), tile_end)
        end = gl.maximum(gl.minimum(end, tile_end), first)
        before = first - tile_first
        after = tile_end - end
    return first, full, full_end, end, before, after


@gluon.jit
def sides(at, full, full_end):
    """0 for a block that is seen in whole; 1 for one before ``full``, 2 for one from ``full_end`` on, 3 for both."""
    return (at < full).to(gl.int32) + 2 * (at >= full_end).to(gl.int32)


@gluon.jit
def without(values, i, j, value: gl.constexpr, partly, numbers, tiling: gl.constexpr):
    """``values``, but ``value`` where key ``j`` isn't seen by query ``i``; the tile's positions make up a column.

    In a tile of queries also where there is no key. ``partly`` is what :func:`sides` says of the block.
    """
    # Bounds are worked out for the column, of which a thread has two numbers.
    left: gl.constexpr = tiling.left
    right: gl.constexpr = tiling.right
    if tiling.turned:
        if _hides(partly, 1, right, tiling):
            values = gl.where(i < j - numbers.right, value, values)
        if _hides(partly, 2, left, tiling):
            values = gl.where(i > j - numbers.left, value, values)
    else:
        if _hides(partly, 2, True, tiling):
            last = numbers.kv_len - 1
            if right:
                last = gl.minimum(i + numbers.right, last)
            values = gl.where(j > last, value, values)
        if _hides(partly, 1, left, tiling):
            values = gl.where(j < i + numbers.left, value, values)
    return values


@gluon.jit
def _hides(partly, side: gl.constexpr, ever: gl.constexpr, tiling: gl.constexpr):
    """Whether keys may be hidden at a side, if they ever are; without keys hidden at the left there is but one side."""
    found = ever
    if ever and tiling.left:
        found = (partly & side) > 0
    return found
