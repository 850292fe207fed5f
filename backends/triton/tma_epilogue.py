"""What Hopper's contraction kernel does to its sums: bias and activation, and how they leave.

Activations of many instructions have two warps of their own, which work on the rounded sums in shared memory while the
other warps multiply the next tile.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from einops_fast.backends.triton.barriers import barrier
from einops_fast.backends.triton.epilogue import activated, has_bias
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.tma_tiles import ROWS, dim_of, flat_box, place_of, tile_of

__all__ = ["activate", "beginning", "hand_over", "put"]


@gluon.constexpr_function
def _bias_stride(tiling, at):
    return tiling.bias[at]


@gluon.constexpr_function
def _run(tiling, role):
    """Along which axis of the result a box extends, of those of a role."""
    return next(at for at, dim in enumerate(tiling.out.dims) if dim.role == role and dim.box > 1)


@gluon.constexpr_function
def _bias_has_rows(tiling):
    """Whether the bias differs along the rows of a box; else along the columns, if at all."""
    return tiling.bias[_run(tiling, ROWS)] != 0


@gluon.jit
def _bias(bias, place, tiling: gl.constexpr, run: gl.constexpr, count: gl.constexpr, layout: gl.constexpr):
    """So many elements of the bias along axis ``run`` of the result, from a place in it on."""
    for at in gl.static_range(field(field(tiling, "out"), "rank")):
        if _bias_stride(tiling, at) != 0:
            bias += place[at] * _bias_stride(tiling, at)
    along = gl.arange(0, count, layout=layout)
    exists = place[run] + along < field(dim_of(field(tiling, "out"), run), "size")
    return gl.load(bias + along * _bias_stride(tiling, run), mask=exists, other=0).to(gl.float32)


@gluon.jit
def beginning(bias, place, tiling: gl.constexpr, width: gl.constexpr, layout: gl.constexpr):
    """What the products of a warp group's rows are added to: the bias, if there is one."""
    found = gl.zeros([64, width], gl.float32, layout=layout)
    if has_bias(tiling):
        if _bias_has_rows(tiling):
            found += _bias(bias, place, tiling, _run(tiling, 1), 64, gl.SliceLayout(1, layout))[:, None]
        else:
            found += _bias(bias, place, tiling, _run(tiling, 2), width, gl.SliceLayout(0, layout))[None, :]
    return found


@gluon.jit
def put(product, further, results, group: gl.constexpr, tiling: gl.constexpr):
    """Leave a warp group's rows of a tile in shared memory, both parts, rounded."""
    c, c_rest = results
    width: gl.constexpr = field(tiling, "width")
    rest: gl.constexpr = field(tiling, "rest")
    turned: gl.constexpr = field(field(tiling, "out"), "turned")
    flat_box(c.index(group), 64, width, turned).store(product.to(c.dtype))
    if rest > 0:
        flat_box(c_rest.index(group), 64, rest, turned).store(further.to(c.dtype))
    fence_async_shared()


@gluon.jit
def hand_over(arrays, results, batch, row, column, group, tiling: gl.constexpr):
    """Have the hardware write these to memory."""
    out, out_rest = arrays
    c, c_rest = results
    place = place_of(field(tiling, "out"), batch, row, column, 0, group, 0)
    tma.async_copy_shared_to_global(out, place, c.index(group))
    if field(tiling, "rest") > 0:
        place = place_of(field(tiling, "out_rest"), batch, row, column, 0, group, field(tiling, "width"))
        tma.async_copy_shared_to_global(out_rest, place, c_rest.index(group))


@gluon.jit
def _activate_box(boxes, group, columns: gl.constexpr, tiling: gl.constexpr):
    """Put the activation of a warp group's box in its place: 32 elements of a thread at a time, as they come."""
    at_once: gl.constexpr = 64 * 32
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [2], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    count: gl.constexpr = columns * 64 // at_once
    flat = boxes._reinterpret(boxes.dtype, [field(tiling, "groups") * count, at_once], plain)
    for at in range(count):
        piece = flat.index(group * count + at)
        found = activated(piece.load(layout).to(gl.float32), field(tiling, "epilogue"), boxes.dtype)
        piece.store(found.to(boxes.dtype))


@gluon.jit
def activate(arrays, results, handing, tiling: gl.constexpr):
    """What the warps do that apply the activation, while others multiply the next tile.

    That the others help with the last tile, when they have nothing left to multiply, was measured not to be faster.
    """
    out, before, out_rest, before_rest = arrays
    c, c_rest = results
    given, taken = handing
    rest: gl.constexpr = field(tiling, "rest")
    for number in range(gl.program_id(0), field(tiling, "total"), gl.num_programs(0)):
        batch, row, column = tile_of(number, tiling)
        for group in range(field(tiling, "groups")):
            mbarrier.wait(given.index(group), number // gl.num_programs(0) & 1)
            if field(field(tiling, "epilogue"), "keeps"):
                hand_over((before, before_rest), results, batch, row, column, group, tiling)
                tma.store_wait(0)
                barrier()
            _activate_box(c, group, field(tiling, "width"), tiling)
            if rest > 0:
                _activate_box(c_rest, group, rest, tiling)
            fence_async_shared()
            barrier()
            hand_over((out, out_rest), results, batch, row, column, group, tiling)
            tma.store_wait(0)
            barrier()
            mbarrier.arrive(taken.index(group))
