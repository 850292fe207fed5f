"""What the warps of Hopper's kernels of attention tell each other: whose turn it is, and which tile comes next."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from einops_fast.backends.triton.attention.hopper.pipes import pipe_of, released, there
from einops_fast.backends.triton.attention.hopper.tiles import COPYING
from einops_fast.backends.triton.device.barriers import barrier


@gluon.jit
def _do(work: gl.constexpr, given, last: gl.constexpr):
    work(*given, last)


@gluon.jit
def in_groups(work: gl.constexpr, given, copy: gl.constexpr, copied, tiling: gl.constexpr):
    """Have each warp group ``work`` on what is ``given`` and its number, and one more warp ``copy``.

    What threads have written to shared memory by now is seen by all.
    """
    fence_async_shared()
    barrier()
    # One by one: the compiler keeps no list of functions.
    if tiling.groups == 1:
        gl.warp_specialize([(_do, (work, given, 0)), (_do, (copy, copied, tiling))], [1], [COPYING])
    elif tiling.groups == 2:
        gl.warp_specialize(
            [(_do, (work, given, 0)), (_do, (work, given, 1)), (_do, (copy, copied, tiling))],
            [4, 1],
            [tiling.group_registers, COPYING],
        )
    else:
        gl.warp_specialize(
            [(_do, (work, given, 0)), (_do, (work, given, 1)), (_do, (work, given, 2)), (_do, (copy, copied, tiling))],
            [4, 4, 1],
            [tiling.group_registers, tiling.group_registers, COPYING],
        )


@gluon.jit
def turns_of(tiling: gl.constexpr):
    """A barrier for each warp group, which tells it that the one before it has begun its products."""
    groups: gl.constexpr = tiling.groups
    barriers = gl.allocate_shared_memory(gl.int64, [groups, 1], mbarrier.MBarrierLayout())
    for group in gl.static_range(groups):
        mbarrier.init(barriers.index(group), count=1)
    return barriers


@gluon.jit
def my_turn(turns, count, group: gl.constexpr, tiling: gl.constexpr):
    """Wait until all other groups have begun their products up to block ``count``, or for the first, the one before."""
    if tiling.turns:
        mbarrier.wait(turns.index(group), count & 1 ^ (1 if group == 0 else 0))


@gluon.jit
def next_turn(turns, group: gl.constexpr, tiling: gl.constexpr):
    """Let the next group begin its products."""
    if tiling.turns:
        mbarrier.arrive(turns.index((group + 1) % tiling.groups))


_NOTED = gl.constexpr(8)
"""Numbers that there is memory for, of a tile."""


@gluon.jit
def notes(readers: gl.constexpr):
    """Memory for what the copying warp knows of two tiles: to find out takes a warp group long, and at a bad time."""
    layout: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    return pipe_of(gl.allocate_shared_memory(gl.int32, [2, 1, _NOTED], layout), 2, readers)


@gluon.jit
def note(tiles, count, element, start, first, full, full_end, end):
    """Write down what :func:`~.positions.tile_of` says of tile number ``count`` of the program."""
    at = gl.arange(0, _NOTED, layout=gl.BlockedLayout([8], [32], [1], [0]))
    values = gl.where(at == 0, element, gl.where(at == 1, start, gl.where(at == 2, first, full)))
    values = gl.where(at == 4, full_end, gl.where(at == 5, end, values))
    mbarrier.wait(tiles.empty.index(count % 2), count // 2 & 1 ^ 1)
    tiles.buffers.index(count % 2).reshape([_NOTED]).store(values)
    mbarrier.arrive(tiles.full.index(count % 2))


@gluon.jit
def noted(tiles, count):
    """What is written down of tile number ``count``."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    there(tiles, count, 2)
    values = tiles.buffers.index(count % 2).reshape([_NOTED]).load(layout)
    released(tiles, count, 2)
    at = gl.arange(0, _NOTED, layout=layout)
    return (
        _number(values, at, 0),
        _number(values, at, 1),
        _number(values, at, 2),
        _number(values, at, 3),
        _number(values, at, 4),
        _number(values, at, 5),
    )


@gluon.jit
def _number(values, at, which: gl.constexpr):
    # Each thread has them all.
    return gl.sum(gl.where(at == which, values, 0), 0)
