"""The contraction kernel for float32 without tensor cores, whichever axes the operands are contiguous along.

A thread multiplies a few rows with a few columns, one contracted position after the other. Tiles of the operands are
copied to shared memory as they lie in memory, some steps ahead, and past the registers. Where an operand is contiguous
along contracted axes, a thread reads two of their positions at once, else four neighbouring rows, or columns. What then
limits the kernel is how many numbers are read for how many products. Where only one of the operands is contiguous along
contracted axes, it may also be turned on the way to shared memory: each element is copied by itself, and fewer reads
follow. Where many products are summed, the sums of chunks are added up in shared memory: registers are full of those of
one chunk.

Tiles may consist of several parts down and across, each a power of two, so that they fit extents that are none.

The division of labour is that of Volkov and Demmel (2008, https://doi.org/10.1109/SC.2008.5214359).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.device.barriers import barrier
from einops_fast.backends.triton.device.indexing import counted, field, inside_at, offsets_at, take_turn
from einops_fast.backends.triton.device.offsets import in_swaths


@gluon.constexpr_function
def _parts(tiling, operand):
    """How many parts a tile of an operand has."""
    return len(tiling.parts_of(operand))


@gluon.constexpr_function
def _part(tiling, operand, part):
    """The rows, or columns, of a part of an operand's tile."""
    return tiling.parts_of(operand)[part]


@gluon.constexpr_function
def _sums_layout(tiling, number, name="sums_layout"):
    """That of the sums of one part of the rows and one of the columns."""
    return getattr(tiling, name)(*divmod(number, len(tiling.parts_of(1))))


@gluon.constexpr_function
def _shape(tiling, operand, part):
    return [tiling.stages, tiling.block_of(operand, part), tiling.contracted.block]


@gluon.constexpr_function
def _sums_shape(tiling, number):
    row_part, column_part = divmod(number, len(tiling.parts_of(1)))
    return [tiling.block_of(0, row_part), tiling.block_of(1, column_part)]


@gluon.jit
def _sums(tiling: gl.constexpr):
    """Sums of no products yet: for each part of the rows, and each of the columns."""
    found = ()
    for at in gl.static_range(_parts(tiling, 0) * _parts(tiling, 1)):
        found = found + (gl.zeros(_sums_shape(tiling, at), gl.float32, layout=_sums_layout(tiling, at)),)
    return found


@gluon.jit
def _totals(sums, tiling: gl.constexpr):
    """Shared memory for the sums of chunks: every thread reads and writes its own."""
    found = ()
    for at in gl.static_range(len(sums)):
        buffer = gl.allocate_shared_memory(gl.float32, sums[at].shape, _sums_layout(tiling, at, "totals_layout"))
        buffer.store(sums[at])
        found = found + (buffer,)
    return found


@gluon.jit
def _with_totals(sums, totals, tiling: gl.constexpr):
    """The sums with those of the chunks before."""
    found = ()
    for at in gl.static_range(len(sums)):
        found = found + (sums[at] + totals[at].load(_sums_layout(tiling, at)),)
    return found


@gluon.jit
def _buffers(tiling: gl.constexpr, operand: gl.constexpr):
    """Shared memory for an operand's tiles of some steps."""
    found = ()
    for part in gl.static_range(_parts(tiling, operand)):
        found = found + (
            gl.allocate_shared_memory(gl.float32, _shape(tiling, operand, part), tiling.shared_layout(operand, part)),
        )
    return found


@gluon.jit
def _fetch(buffers, array, tile, step, at, tiling: gl.constexpr, operand: gl.constexpr):
    """Have a tile of an operand copied to shared memory."""
    for part in gl.static_range(_parts(tiling, operand)):
        _fetch_part(buffers[part].index(at), array, tile, step, tiling, operand, part)


@gluon.jit
def _fetch_part(
    buffer, array, tile, step, tiling: gl.constexpr, operand: gl.constexpr, part: gl.constexpr
):  # fmt: skip
    layout: gl.constexpr = tiling.loading_layout(operand, part)
    down, down_inside = _places(tile, _part(tiling, operand, part), operand, gl.SliceLayout(1, layout))
    across, across_inside = _places(step, field(tiling, "contracted"), operand, gl.SliceLayout(0, layout))
    async_copy.async_copy_global_to_shared(
        buffer, array + down[:, None] + across[None, :], mask=down_inside[:, None] & across_inside[None, :]
    )


@gluon.jit
def _numbers(buffers, at, k: gl.constexpr, tiling: gl.constexpr, operand: gl.constexpr):
    """What the threads multiply of some contracted positions: of each part, a tuple with one vector per position."""
    found = ()
    for part in gl.static_range(_parts(tiling, operand)):
        found = found + (_vectors(buffers[part].index(at), k, tiling, operand, part),)
    return found


@gluon.jit
def _vectors(buffer, k: gl.constexpr, tiling: gl.constexpr, operand: gl.constexpr, part: gl.constexpr):
    layout: gl.constexpr = tiling.vector_layout(operand, part)
    if tiling.in_runs(operand, part):
        # Two contracted positions, which are neighbours in shared memory.
        first, second = gl.split(buffer.slice(k, 2, 1).load(tiling.reading_layout(operand, part, 2)))
        found = (
            gl.convert_layout(first, layout, assert_trivial=True),
            gl.convert_layout(second, layout, assert_trivial=True),
        )
    else:
        found = ()
        for at in gl.static_range(field(tiling, "at_once")):
            one = buffer.slice(k + at, 1, 1).load(tiling.reading_layout(operand, part, 1))
            one = gl.reshape(one, [tiling.block_of(operand, part)])
            found = found + (gl.convert_layout(one, layout, assert_trivial=True),)
    return found


@gluon.jit
def _with_product(total, a, b, layout: gl.constexpr):
    down = gl.convert_layout(a, gl.SliceLayout(1, layout), assert_trivial=True)
    across = gl.convert_layout(b, gl.SliceLayout(0, layout), assert_trivial=True)
    return gl.fma(down[:, None], across[None, :], total)


@gluon.jit
def _with_products(sums, left, right, tiling: gl.constexpr):
    """The sums with the products of some contracted positions."""
    for each in gl.static_range(field(tiling, "at_once")):
        found = ()
        for at in gl.static_range(len(sums)):
            a, b = left[at // _parts(tiling, 1)][each], right[at % _parts(tiling, 1)][each]
            found = found + (_with_product(sums[at], a, b, _sums_layout(tiling, at)),)
        sums = found
    return sums


@gluon.jit
def _places(tile, role: gl.constexpr, array: gl.constexpr, layout: gl.constexpr):
    """Offsets of a tile along one of its dimensions, and which positions exist."""
    run = gl.arange(0, role.block, layout=layout)
    every = gl.full([role.block], True, gl.int1, layout=layout)
    offsets = offsets_at(run, tile, role, array, False) + gl.zeros_like(run)
    return offsets, inside_at(run, every, tile, role)


@gluon.jit
def _store(out, sums, row_tile, column_tile, tiling: gl.constexpr):
    for at in gl.static_range(_parts(tiling, 0) * _parts(tiling, 1)):
        _store_part(out, sums[at], row_tile, column_tile, tiling, at // _parts(tiling, 1), at % _parts(tiling, 1))


@gluon.jit
def _store_part(
    out, sums, row_tile, column_tile, tiling: gl.constexpr, row_part: gl.constexpr, column_part: gl.constexpr
):  # fmt: skip
    layout: gl.constexpr = tiling.out_layout(row_part, column_part)
    sums = gl.convert_layout(sums, layout)
    down, down_inside = _places(row_tile, _part(tiling, 0, row_part), 2, gl.SliceLayout(1, layout))
    across, across_inside = _places(column_tile, _part(tiling, 1, column_part), 2, gl.SliceLayout(0, layout))
    gl.store(out + down[:, None] + across[None, :], sums, mask=down_inside[:, None] & across_inside[None, :])


@gluon.jit
def _placed(number, tiling: gl.constexpr):
    """Index along the batch axes, row tile and column tile of a tile's number."""
    row_tiles: gl.constexpr = tiling.rows.tiles
    column_tiles: gl.constexpr = tiling.columns.tiles
    batch = number // (row_tiles * column_tiles)
    row_tile, column_tile = in_swaths(number % (row_tiles * column_tiles), row_tiles, column_tiles, tiling.swath)
    return batch, row_tile, column_tile


@gluon.jit
def _batch(array, batch, at: gl.constexpr, tiling: gl.constexpr):
    # Batch offsets are 64 bits wide: they are scalars, which cost nothing.
    return array + counted(batch.to(gl.int64), field(tiling, "batch"), at, False)


@gluon.jit
def _fetch_both(left, right, a, b, at, program, begin, tiling: gl.constexpr):
    """Have the tiles of a program's step copied."""
    batch, row_tile, column_tile = _placed(program, tiling)
    stage = at % tiling.stages
    _fetch(a, _batch(left, batch, 0, tiling), row_tile, begin + at, stage, tiling, 0)
    _fetch(b, _batch(right, batch, 1, tiling), column_tile, begin + at, stage, tiling, 1)


@gluon.jit
def fma_kernel(
    left, right, third, out, before, tiling: gl.constexpr, acc_type: gl.constexpr, upcast: gl.constexpr
):  # fmt: skip
    """Write a tile of the result, or of ``split`` partial results; the arguments are those of ``contract_kernel``.

    ``third``, ``before`` and ``upcast`` aren't used.
    """
    steps: gl.constexpr = (tiling.contracted.tiles + tiling.split - 1) // tiling.split
    take_turn(tiling)
    program = gl.program_id(0)
    part = gl.program_id(1)
    begin = part * steps
    count = gl.minimum(begin + steps, tiling.contracted.tiles) - begin
    if tiling.split > 1:
        out += part.to(gl.int64) * tiling.reach

    a, b = _buffers(tiling, 0), _buffers(tiling, 1)
    sums = _sums(tiling)
    if tiling.chunk > 0:
        totals = _totals(_sums(tiling), tiling)
    for first in gl.static_range(field(tiling, "stages")):
        if first < count:
            _fetch_both(left, right, a, b, first, program, begin, tiling)
        async_copy.commit_group()
    async_copy.wait_group(tiling.stages - 1)
    barrier()
    some, others = _numbers(a, 0, 0, tiling, 0), _numbers(b, 0, 0, tiling, 1)
    for at in range(0, count):
        # Numbers are read while those before them are multiplied.
        for k in gl.static_range(0, tiling.contracted.block - tiling.at_once, field(tiling, "at_once")):
            next_some = _numbers(a, at % tiling.stages, k + tiling.at_once, tiling, 0)
            next_others = _numbers(b, at % tiling.stages, k + tiling.at_once, tiling, 1)
            sums = _with_products(sums, some, others, tiling)
            some, others = next_some, next_others
        # The next tiles have come, and all threads have read these ones.
        async_copy.wait_group(tiling.stages - 2)
        barrier()
        next_some = _numbers(a, (at + 1) % tiling.stages, 0, tiling, 0)
        next_others = _numbers(b, (at + 1) % tiling.stages, 0, tiling, 1)
        if at + tiling.stages < count:
            _fetch_both(left, right, a, b, at + tiling.stages, program, begin, tiling)
        async_copy.commit_group()
        sums = _with_products(sums, some, others, tiling)
        some, others = next_some, next_others
        if tiling.chunk > 0 and at % tiling.chunk == tiling.chunk - 1:
            added = _with_totals(sums, totals, tiling)
            for each in gl.static_range(len(added)):
                totals[each].store(added[each])
            sums = _sums(tiling)
    if tiling.chunk > 0:
        sums = _with_totals(sums, totals, tiling)
    batch, row_tile, column_tile = _placed(program, tiling)
    _store(_batch(out, batch, 2, tiling), sums, row_tile, column_tile, tiling)
