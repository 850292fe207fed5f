"""Copies between arrays and tiles in shared memory, with barriers that say when one is full and when empty again."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from einops_fast.backends.triton.attention.hopper.tiles import OUT, box, boxes


class Pipe(NamedTuple):
    """Tiles in shared memory, and barriers that say when each of them is full and when it's empty again."""

    buffers: Any
    full: Any
    empty: Any


@gluon.jit
def coordinates(element, row, column, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a tile of an operand begins."""
    a = 0
    b = 0
    c = 0
    if tiling.has[OUT][0] or tiling.has[OUT][1]:
        a = element // numbers.third // numbers.second if tiling.has[operand][0] else 0
        b = element // numbers.third % numbers.second if tiling.has[operand][1] else 0
        c = element % numbers.third if tiling.has[operand][2] else 0
    elif tiling.has[operand][2]:
        # There is no other axis; divisions take long.
        c = element
    return a, b, c, row, column


@gluon.jit
def fetch(array, buffers, at, full, element, row, operand: gl.constexpr, numbers, tiling: gl.constexpr, column=0):
    """Have a tile of an operand copied to place number ``at``; the barrier ``full`` is told when it's there."""
    count: gl.constexpr = boxes(tiling, operand)
    for part in gl.static_range(count):
        place = coordinates(element, row, column + part * box(tiling, operand), operand, numbers, tiling)
        tma.async_copy_global_to_shared(array, place, full, buffers.index(at * count + part))


@gluon.jit
def fetch_own(
    first, second, tiles, more, done, element, start, one: gl.constexpr, two: gl.constexpr, numbers,
    tiling: gl.constexpr,
):  # fmt: skip
    """Have a tile's own rows of one array copied for each warp group, or of two (``second`` isn't ``None``).

    ``tiles`` and ``more`` are their pipes, ``one`` and ``two`` say which operands they are; ``done`` tiles came before.
    """
    groups: gl.constexpr = tiling.groups
    one_bytes: gl.constexpr = first.block_type.nbytes * boxes(tiling, one)
    two_bytes: gl.constexpr = 0 if second is None else second.block_type.nbytes * boxes(tiling, two)
    full = room(tiles, done, tiling.own, groups * (one_bytes + two_bytes))
    for group in gl.static_range(groups):
        row = start + 64 * group
        mine = done % tiling.own * groups + group
        fetch(first, tiles.buffers, mine, full, element, row, one, numbers, tiling)
        if second is not None:
            fetch(second, more.buffers, mine, full, element, row, two, numbers, tiling)


@gluon.jit
def handed_over(array, buffers, at, element, row, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Have a tile of an operand, number ``at``, copied from shared memory to an array."""
    count: gl.constexpr = boxes(tiling, operand)
    for part in gl.static_range(count):
        place = coordinates(element, row, part * box(tiling, operand), operand, numbers, tiling)
        tma.async_copy_shared_to_global(array, place, buffers.index(at * count + part))


@gluon.jit
def flat(buffers, at):
    """Tile ``at`` of some as a matrix."""
    return buffers.index(at).reshape([buffers.type.shape[4], buffers.type.shape[5]])


@gluon.jit
def pipe(descriptor, count: gl.constexpr, stages: gl.constexpr, readers: gl.constexpr):
    """Memory for so many parts of tiles of an array, which come at once, or in so many stages one by one."""
    return pipe_of(_tiles(descriptor, count), stages, readers)


@gluon.jit
def pipe_of(buffers, stages: gl.constexpr, readers: gl.constexpr):
    """The same with memory that there is."""
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(stages):
        mbarrier.init(full.index(at), count=1)
        mbarrier.init(empty.index(at), count=readers)
    return Pipe(buffers, full, empty)


@gluon.jit
def beside(other, descriptor, count: gl.constexpr):
    """The same for an array whose tiles come together with those of another one."""
    return Pipe(_tiles(descriptor, count), other.full, other.empty)


@gluon.jit
def second_pipe(first, descriptor, operand: gl.constexpr, tiling: gl.constexpr):
    """Memory for the second of a block's two arrays: it comes with the first one unless it has stages of its own."""
    stages: gl.constexpr = tiling.second_stages
    if tiling.second:
        return pipe(descriptor, stages * boxes(tiling, operand), stages, tiling.groups)
    else:
        return beside(first, descriptor, stages * boxes(tiling, operand))


@gluon.jit
def _tiles(descriptor, count: gl.constexpr):
    return gl.allocate_shared_memory(descriptor.dtype, [count] + descriptor.block_type.shape, descriptor.layout)


@gluon.jit
def room(tiles, count, stages: gl.constexpr, size: gl.constexpr):
    """Wait until stage number ``count`` is empty, announce so many bytes for it, and return its barrier."""
    mbarrier.wait(tiles.empty.index(count % stages), count // stages & 1 ^ 1)
    full = tiles.full.index(count % stages)
    mbarrier.expect(full, size)
    return full


@gluon.jit
def there(tiles, count, stages: gl.constexpr):
    """Wait until stage number ``count`` is full."""
    mbarrier.wait(tiles.full.index(count % stages), count // stages & 1)


@gluon.jit
def released(tiles, count, stages: gl.constexpr):
    """Say that a warp group doesn't need stage number ``count`` any more."""
    mbarrier.arrive(tiles.empty.index(count % stages))


@gluon.jit
def passed(tiles, count, blocks, stages: gl.constexpr):
    """Let so many stages go by from number ``count`` on."""
    for at in range(count, count + blocks):
        # Not before it's full: else it would be released for what it had before.
        there(tiles, at, stages)
        released(tiles, at, stages)


@gluon.jit
def passed_both(first, second, count, blocks, stages: gl.constexpr, others: gl.constexpr):
    """Skip ``blocks`` blocks of two arrays, and count them; ``others`` is 0 if the second has no stages of its own."""
    passed(first, count, blocks, stages)
    if others > 0:
        passed(second, count, blocks, others)
    return count + blocks
