"""What Hopper's contraction kernel does to its sums: bias and activation, and how they leave.

What takes time is done in one of two ways. In pieces: sums are activated in registers, and leave by columns. Or
meanwhile: sums wait in shared memory, rounded, and the warps that have multiplied them work on them while the tensor
cores are busy with the next tile. Either way, an instruction for each element costs about a cycle of the tensor cores'
time, as measured on an H200; activations by warps of their own took longer.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma

from einops_fast.backends.triton.contraction.boxes.tiles import (
    ROWS,
    flat_box,
    part_of,
    place_of,
    product_layout,
    run_of,
    tile_of,
)
from einops_fast.backends.triton.contraction.matrix_product import activated, has_bias
from einops_fast.backends.triton.device.barriers import barrier
from einops_fast.backends.triton.device.indexing import field


@gluon.constexpr_function
def _bias_has_rows(tiling):
    """Whether the bias differs along the rows of a box; else along the columns, if at all."""
    return tiling.bias[run_of(tiling.out, ROWS)] != 0


@gluon.jit
def _bias(bias, place, tiling: gl.constexpr, run: gl.constexpr, count: gl.constexpr, layout: gl.constexpr):
    """So many elements of the bias along axis ``run`` of the result, from a place in it on."""
    for at in gl.static_range(field(tiling.out, "rank")):
        if tiling.bias[at] != 0:
            bias += place[at] * tiling.bias[at]
    along = gl.arange(0, count, layout=layout)
    exists = place[run] + along < tiling.out.dims[run].size
    return gl.load(bias + along * tiling.bias[run], mask=exists, other=0)


@gluon.jit
def bias_of(bias, number, own: gl.constexpr, columns_on: gl.constexpr, width: gl.constexpr, tiling: gl.constexpr):
    """The bias of a warp group's rows of a tile, of so many columns from one of its columns on, if there is any."""
    if has_bias(tiling) and width > 0:
        batch, row, column = tile_of(number, tiling)
        place = place_of(field(tiling, "out"), batch, row, column, 0, part_of(tiling, own), columns_on)
        by_rows: gl.constexpr = _bias_has_rows(tiling)
        run: gl.constexpr = run_of(tiling.out, 1 if by_rows else 2)
        layout: gl.constexpr = gl.SliceLayout(1 if by_rows else 0, product_layout(width))
        found = _bias(bias, place, tiling, run, 64 if by_rows else width, layout)
    else:
        found = 0
    return found


@gluon.jit
def beginning(found, width: gl.constexpr, tiling: gl.constexpr):
    """What the products of a warp group's rows are added to: their bias, if there is one; something, of no columns."""
    columns: gl.constexpr = width if width > 0 else 16
    if has_bias(tiling) and width > 0:
        # The compiler knows that a product with 1 is a copy; of a sum with 0, it has to think of -0.
        start = gl.full([64, columns], 1.0, gl.float32, layout=product_layout(columns))
        if _bias_has_rows(tiling):
            start *= found.to(gl.float32)[:, None]
        else:
            start *= found.to(gl.float32)[None, :]
    else:
        start = gl.zeros([64, columns], gl.float32, layout=product_layout(columns))
    return start


@gluon.jit
def put(product, further, results, own: gl.constexpr, tiling: gl.constexpr):
    """Leave a warp group's rows of a tile in shared memory, both parts, rounded."""
    c, c_rest = results
    rest: gl.constexpr = tiling.rest
    flat_box(c.index(own), 64, tiling.width, tiling.out.turned).store(product.to(c.dtype))
    if rest > 0:
        flat_box(c_rest.index(own), 64, rest, tiling.out.turned).store(further.to(c.dtype))
    fence_async_shared()


@gluon.jit
def hand_over(arrays, results, batch, row, column, own: gl.constexpr, tiling: gl.constexpr):
    """Have the hardware write to memory what a warp group has left there."""
    out, out_rest = arrays
    c, c_rest = results
    place = place_of(field(tiling, "out"), batch, row, column, 0, part_of(tiling, own), 0)
    tma.async_copy_shared_to_global(out, place, c.index(own))
    if tiling.rest > 0:
        place = place_of(field(tiling, "out_rest"), batch, row, column, 0, part_of(tiling, own), tiling.width)
        tma.async_copy_shared_to_global(out_rest, place, c_rest.index(own))


@gluon.constexpr_function
def _written_layout(tiling, width):
    """Which threads write which elements: neighbours in memory are written at once, as many as strides allow.

    Sums of parts stay where they are: of these, neighbouring threads have whole sectors of memory.
    """
    if tiling.split > 1:
        return product_layout(width)
    each = tiling.stored_at_once
    if tiling.out.turned:
        threads = 64 // each if each > 2 else 32
        return gl.BlockedLayout([each, 1], [threads, 32 // threads], [1, 4], [0, 1])
    threads = min(32, width // each)
    return gl.BlockedLayout([1, each], [32 // threads, threads], [4, 1], [1, 0])


@gluon.jit
def write(
    product, array, number, own: gl.constexpr, columns_on: gl.constexpr, width: gl.constexpr, tiling: gl.constexpr
):  # fmt: skip
    """Write a warp group's rows of a tile, from one of its columns on, by threads.

    To the result, or to an array with sums of all parts, one after the other, each of which lies as the result does.
    """
    out: gl.constexpr = tiling.out
    layout: gl.constexpr = _written_layout(tiling, width)
    product = gl.convert_layout(product.to(array.dtype.element_ty), layout)
    batch, row, column = tile_of(number, tiling)
    place = place_of(out, batch, row, column, 0, part_of(tiling, own), columns_on)
    down: gl.constexpr = run_of(tiling.out, 1)
    across: gl.constexpr = run_of(tiling.out, 2)
    rows = gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, width, layout=gl.SliceLayout(0, layout))
    row_exists = (place[down] + rows < out.dims[down].size)[:, None]
    exists = row_exists & (place[across] + columns < out.dims[across].size)[None, :]
    if tiling.split > 1:
        array += (number // tiling.places).to(gl.int64) * tiling.reach
    for at in gl.static_range(field(out, "rank")):
        array += place[at].to(gl.int64) * out.dims[at].stride
        if at != down and at != across:
            # One group's rows may lie beyond the last ones along another axis.
            exists &= place[at] < out.dims[at].size
    downwards = rows * out.dims[down].stride
    places = array + downwards[:, None] + (columns * out.dims[across].stride)[None, :]
    gl.store(places, product, mask=exists)


@gluon.jit
def _halves(x):
    """The left and the right columns of a product, which are in different registers."""
    columns: gl.constexpr = x.shape[1] // 2
    layout: gl.constexpr = product_layout(columns)
    left, right = gl.split(x.reshape([64, 2, columns]).permute((0, 2, 1)))
    return gl.convert_layout(left, layout), gl.convert_layout(right, layout)


@gluon.jit
def _in_pieces(x, count: gl.constexpr):
    """A product by columns."""
    found = (x,)
    for _ in gl.static_range(count.bit_length() - 1):
        wide = found
        found = ()
        for at in gl.static_range(len(wide)):
            found = found + _halves(wide[at])
    return found


@gluon.jit
def _leave(
    piece, array, place, c, turn: gl.constexpr, again: gl.constexpr, own: gl.constexpr, tiling: gl.constexpr
):  # fmt: skip
    """Have a piece written through one of a warp group's two boxes in shared memory, which take turns.

    ``again`` if the piece before, of another tile, took the same one.
    """
    box = c.index(2 * own + turn % 2)
    # What the box had before has been read when at most the other one is still on its way.
    tma.store_wait(0 if again else 1)
    barrier()
    flat_box(box, 64, piece.shape[1], tiling.out_piece.turned).store(piece)
    fence_async_shared()
    tma.async_copy_shared_to_global(array, place, box)


@gluon.jit
def finish_in_pieces(product, further, arrays, c, batch, row, column, own: gl.constexpr, tiling: gl.constexpr):
    """Have a warp group's rows of a tile activated and written by columns: while some leave, the next are activated."""
    out, before, _, _ = arrays
    view: gl.constexpr = tiling.out_piece
    epilogue: gl.constexpr = tiling.epilogue
    keeps: gl.constexpr = epilogue.keeps if epilogue is not None else False
    found = _in_pieces(product, tiling.pieces)
    if tiling.rest > 0:
        found = found + (further,)
    odd: gl.constexpr = len(found) % 2 == 1 and not keeps
    for at in gl.static_range(len(found)):
        place = place_of(view, batch, row, column, 0, part_of(tiling, own), at * found[at].shape[1])
        if keeps:
            _leave(found[at].to(out.dtype), before, place, c, 2 * at, False, own, tiling)
        piece = found[at]
        if epilogue is not None:
            piece = activated(piece, epilogue, out.dtype)
        _leave(piece.to(out.dtype), out, place, c, 2 * at + 1 if keeps else at, at == 0 and odd, own, tiling)


_PIECE = gl.constexpr(64 * 32)
"""Sums that a warp group activates at once: 16 of a thread."""

_LEAD = gl.constexpr(2)
"""Steps of the next tile that come before the first piece."""


@gluon.constexpr_function
def last_meanwhile(tiling):
    """The step of the next tile at which a tile is written."""
    return _LEAD + (tiling.width + tiling.rest) // 32


@gluon.jit
def _activate_piece(boxes, number, count: gl.constexpr, tiling: gl.constexpr):
    """Put the activation of piece ``number`` of so many in its place."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    piece = boxes._reinterpret(boxes.dtype, [count, _PIECE], plain).index(number)
    found = activated(piece.load(layout).to(gl.float32), field(tiling, "epilogue"), boxes.dtype)
    piece.store(found.to(boxes.dtype))


@gluon.jit
def activate_meanwhile(step, number, arrays, results, own: gl.constexpr, tiling: gl.constexpr):
    """What is done at one of the steps of the next tile for tile ``number``, whose sums are in shared memory, rounded.

    Where these are kept, they're on their way to memory from there at first.
    """
    out, _, out_rest, _ = arrays
    c, c_rest = results
    pieces: gl.constexpr = tiling.width // 32
    further: gl.constexpr = tiling.rest // 32
    at = step - _LEAD
    if (at >= 0) & (at < pieces):
        _activate_piece(c, own * pieces + at, tiling.workers * pieces, tiling)
    elif step == last_meanwhile(tiling):
        fence_async_shared()
        barrier()
        batch, row, column = tile_of(number, tiling)
        hand_over((out, out_rest), results, batch, row, column, own, tiling)
    elif (at >= pieces) & (at < pieces + further):
        if further > 0:
            _activate_piece(c_rest, own * further + at - pieces, tiling.workers * further, tiling)
    elif step == _LEAD - 1:
        if tiling.epilogue.keeps:
            tma.store_wait(0)
        barrier()
