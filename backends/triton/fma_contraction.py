"""The contraction kernel for float32 without tensor cores, whichever axes the operands are contiguous along.

A thread multiplies a few rows with a few columns, one contracted position after the other: it wants neighbouring rows,
and neighbouring columns, next to each other in shared memory. So a tile is loaded along the axis that it is contiguous
along, and turned while it is stored to shared memory; the next one is on its way meanwhile. The kernel of
``contraction.py`` leaves an operand in shared memory as it came: where that is along contracted axes, it takes more
than twice as long.

The division of labour is that of Volkov and Demmel (2008, https://doi.org/10.1109/SC.2008.5214359).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.following import take_turn
from einops_fast.backends.triton.indexing import counted, field, in_swaths, inside_at, offsets_at

__all__ = ["fma_kernel"]


@gluon.constexpr_function
def _item(record, name, at):
    """One of a tiling's fields that has several."""
    return getattr(record, name)[at]


@gluon.constexpr_function
def _count(tiling):
    """Parts of a tile's columns."""
    return len(tiling.parts)


@gluon.constexpr_function
def _shape(tiling, at):
    return [tiling.rows.block, tiling.parts[at].block]


@gluon.constexpr_function
def _right_shape(tiling, at):
    return [2, tiling.contracted.block, tiling.parts[at].block]


@gluon.jit
def _left_tile(left, row_tile, step, tiling: gl.constexpr):
    rows: gl.constexpr = field(tiling, "rows")
    contracted: gl.constexpr = field(tiling, "contracted")
    return _tile(left, row_tile, step, rows, contracted, 0, field(tiling, "left_layout"))


@gluon.jit
def _right_tile(right, step, column_tile, tiling: gl.constexpr, part: gl.constexpr):
    columns: gl.constexpr = _item(tiling, "parts", part)
    contracted: gl.constexpr = field(tiling, "contracted")
    return _tile(right, step, column_tile, contracted, columns, 1, _item(tiling, "right_layouts", part))


@gluon.jit
def _right_tiles(right, step, column_tile, tiling: gl.constexpr):
    found = ()
    for part in gl.static_range(_count(tiling)):
        found = found + (_right_tile(right, step, column_tile, tiling, part),)
    return found


@gluon.jit
def _nothing(tiling: gl.constexpr):
    """Sums of no products yet."""
    found = ()
    for part in gl.static_range(_count(tiling)):
        found = found + (gl.zeros(_shape(tiling, part), gl.float32, layout=_item(tiling, "product_layouts", part)),)
    return found


@gluon.jit
def _buffers(tiling: gl.constexpr):
    """Shared memory for two tiles of the right operand."""
    found = ()
    for part in gl.static_range(_count(tiling)):
        found = found + (
            gl.allocate_shared_memory(gl.float32, _right_shape(tiling, part), _item(tiling, "right_shared", part)),
        )
    return found


@gluon.jit
def _keep(buffers, tiles, at, tiling: gl.constexpr):
    """Store the parts of a tile of the right operand."""
    for part in gl.static_range(_count(tiling)):
        buffers[part].index(at).store(tiles[part])


@gluon.jit
def _with_product(total, a, buffer, k: gl.constexpr, tiling: gl.constexpr, part: gl.constexpr):
    layout: gl.constexpr = _item(tiling, "product_layouts", part)
    return gl.fma(a.slice(k, 1, 1).load(layout), buffer.slice(k, 1, 0).load(layout), total)


@gluon.jit
def _with_products(sums, a, buffers, at, tiling: gl.constexpr):
    """The sums with the products of a step, one contracted position after the other for all parts.

    Part by part, a thread would have to keep what it reads of the left operand.
    """
    left = a.index(at)
    for k in gl.static_range(field(field(tiling, "contracted"), "block")):
        found = ()
        for part in gl.static_range(_count(tiling)):
            found = found + (_with_product(sums[part], left, buffers[part].index(at), k, tiling, part),)
        sums = found
    return sums


@gluon.jit
def _places(tile, role: gl.constexpr, array: gl.constexpr, layout: gl.constexpr):
    """Offsets of a tile along one of its dimensions, and which positions exist."""
    run = gl.arange(0, field(role, "block"), layout=layout)
    every = gl.full([field(role, "block")], True, gl.int1, layout=layout)
    offsets = offsets_at(run, tile, role, array, False, False) + gl.zeros_like(run)
    return offsets, inside_at(run, every, tile, role, False)


@gluon.jit
def _tile(
    array,
    first,
    second,
    first_role: gl.constexpr,
    second_role: gl.constexpr,
    at: gl.constexpr,
    layout: gl.constexpr,
):
    down, down_inside = _places(first, first_role, at, gl.SliceLayout(1, layout))
    across, across_inside = _places(second, second_role, at, gl.SliceLayout(0, layout))
    return gl.load(
        array + down[:, None] + across[None, :],
        mask=down_inside[:, None] & across_inside[None, :],
        other=0.0,
    )


@gluon.jit
def _store(out, sums, row_tile, column_tile, tiling: gl.constexpr):
    for part in gl.static_range(_count(tiling)):
        _store_part(out, sums[part], row_tile, column_tile, tiling, part)


@gluon.jit
def _store_part(out, sums, row_tile, column_tile, tiling: gl.constexpr, part: gl.constexpr):
    regrouped: gl.constexpr = field(tiling, "regrouped")
    layout: gl.constexpr = _item(tiling, "out_layouts" if regrouped else "product_layouts", part)
    if regrouped:
        sums = gl.convert_layout(sums, layout)
    down, down_inside = _places(row_tile, field(tiling, "rows"), 2, gl.SliceLayout(1, layout))
    columns: gl.constexpr = _item(tiling, "parts", part)
    across, across_inside = _places(column_tile, columns, 2, gl.SliceLayout(0, layout))
    gl.store(out + down[:, None] + across[None, :], sums, mask=down_inside[:, None] & across_inside[None, :])


@gluon.jit
def _placed(number, tiling: gl.constexpr):
    """Index along the batch axes, row tile and column tile of a tile's number."""
    row_tiles: gl.constexpr = field(field(tiling, "rows"), "tiles")
    column_tiles: gl.constexpr = field(field(tiling, "columns"), "tiles")
    batch = number // (row_tiles * column_tiles)
    row_tile, column_tile = in_swaths(
        number % (row_tiles * column_tiles), row_tiles, column_tiles, field(tiling, "swath")
    )
    return batch, row_tile, column_tile


@gluon.jit
def _batch(array, batch, at: gl.constexpr, tiling: gl.constexpr):
    # Batch offsets are 64 bits wide: they are scalars, which cost nothing.
    return array + counted(batch.to(gl.int64), field(tiling, "batch"), at, False)


@gluon.jit
def fma_kernel(
    left, right, third, out, before, tiling: gl.constexpr, acc_type: gl.constexpr, upcast: gl.constexpr
):  # fmt: skip
    """Write the tiles of the result, or of ``split`` partial results; the arguments are those of ``contract_kernel``.

    ``third``, ``before`` and ``upcast`` aren't used.
    """
    contracted: gl.constexpr = field(tiling, "contracted")
    split: gl.constexpr = field(tiling, "split")
    programs: gl.constexpr = field(tiling, "programs")
    persistent: gl.constexpr = field(tiling, "persistent")
    tiles: gl.constexpr = field(tiling, "tiles")
    depth: gl.constexpr = field(contracted, "block")
    steps: gl.constexpr = (field(contracted, "tiles") + split - 1) // split
    take_turn(tiling)
    program = gl.program_id(0)
    part = gl.program_id(1)
    begin = part * steps
    count = gl.minimum(begin + steps, field(contracted, "tiles")) - begin
    if persistent:
        count *= (tiles - program + programs - 1) // programs
    if split > 1:
        out += part.to(gl.int64) * field(tiling, "elements")

    a = gl.allocate_shared_memory(
        gl.float32, [2, field(field(tiling, "rows"), "block"), depth], field(tiling, "left_shared")
    )
    b = _buffers(tiling)
    sums = _nothing(tiling)
    batch, row_tile, column_tile = _placed(program, tiling)
    a.index(0).store(_left_tile(_batch(left, batch, 0, tiling), row_tile, begin, tiling))
    _keep(b, _right_tiles(_batch(right, batch, 1, tiling), begin, column_tile, tiling), 0, tiling)
    for at in range(0, count):
        here = at % 2
        # The last step loads its own tile once more.
        ahead = gl.minimum(at + 1, count - 1)
        if persistent:
            batch, row_tile, column_tile = _placed(program + ahead // steps * programs, tiling)
            following = ahead % steps
        else:
            following = begin + ahead
        next_left = _left_tile(_batch(left, batch, 0, tiling), row_tile, following, tiling)
        next_right = _right_tiles(_batch(right, batch, 1, tiling), following, column_tile, tiling)
        sums = _with_products(sums, a, b, here, tiling)
        if persistent and at % steps == steps - 1:
            done_batch, done_rows, done_columns = _placed(program + at // steps * programs, tiling)
            _store(_batch(out, done_batch, 2, tiling), sums, done_rows, done_columns, tiling)
            sums = _nothing(tiling)
        a.index(1 - here).store(next_left)
        _keep(b, next_right, 1 - here, tiling)
    if not persistent:
        _store(_batch(out, batch, 2, tiling), sums, row_tile, column_tile, tiling)
