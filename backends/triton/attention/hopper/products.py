"""Products of Hopper's kernels of attention along and into features, of which a tile may have more than there are.

Tiles have a power of two of them. Where three quarters are enough, half of a tile and the quarter after it are
multiplied one after the other, and sums are in two parts; of a wide head's, each quarter lies for itself.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.hopper.pipes import flat, handed_over, there
from einops_fast.backends.triton.attention.hopper.tiles import along, boxes


@gluon.constexpr_function
def _widths(tiling, which):
    """Of the parts of a tile that have features: of ``head`` or, for 1, of ``v_head``."""
    if tiling.boxes(which) > 1:
        return (tiling.box(which),) * tiling.boxes(which)
    width = (tiling.head, tiling.v_head)[which]
    return (width // 2, width // 4) if tiling.three_quarters[which] else (width,)


@gluon.constexpr_function
def features_of(tiling, which):
    """How many of them are worked on."""
    return sum(_widths(tiling, which))


@gluon.constexpr_function
def parts(tiling, which):
    """How many products one along these features is made of, or how many sums there are of them."""
    return len(_widths(tiling, which))


@gluon.constexpr_function
def _width(tiling, which, part):
    return _widths(tiling, which)[part]


@gluon.constexpr_function
def _before(tiling, which, part):
    return sum(_widths(tiling, which)[:part])


@gluon.jit
def tiles_of(buffers, at, operand: gl.constexpr, tiling: gl.constexpr):
    """The parts of an operand's tile, number ``at``, that have features."""
    which: gl.constexpr = along(operand)
    count: gl.constexpr = boxes(tiling, operand)
    found = ()
    for part in gl.static_range(parts(tiling, which)):
        if count > 1:
            found = found + (flat(buffers, at * count + part),)
        else:
            tile = flat(buffers, at)
            found = found + (tile.slice(_before(tiling, which, part), _width(tiling, which, part), 1),)
    return found


@gluon.jit
def held(tiles, which: gl.constexpr, layout: gl.constexpr, tiling: gl.constexpr):
    """The same parts in registers."""
    found = ()
    for part in gl.static_range(parts(tiling, which)):
        found = found + (tiles[part].load(layout),)
    return found


@gluon.jit
def product(left, right, zeros, which: gl.constexpr, tiling: gl.constexpr):
    """Start the product of the parts of a tile with those of another one, along their features: ``parts`` in all."""
    found = warpgroup_mma(left[0], right[0].permute((1, 0)), zeros, use_acc=False, is_async=True)
    for part in gl.static_range(1, parts(tiling, which)):
        found = warpgroup_mma(left[part], right[part].permute((1, 0)), found, is_async=True)
    return found


@gluon.jit
def begun(left, others, count, zeros, operand: gl.constexpr, tiling: gl.constexpr):
    """Start the products of a tile's parts with block ``count`` of an operand, keys or queries, when it is there."""
    there(others, count, tiling.stages)
    return product(left, tiles_of(others.buffers, count % tiling.stages, operand, tiling), zeros, 0, tiling)


@gluon.jit
def _zeros(width: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    return gl.zeros([64, width], gl.float32, layout=layout)


@gluon.jit
def no_sums(which: gl.constexpr, tiling: gl.constexpr):
    """Sums of nothing, of 64 rows."""
    found = ()
    for part in gl.static_range(parts(tiling, which)):
        found = found + (_zeros(_width(tiling, which, part)),)
    return found


@gluon.jit
def adding(left, right, sums, which: gl.constexpr, tiling: gl.constexpr):
    """Start adding the product of a matrix with the parts of a tile to the tile's sums."""
    found = ()
    for part in gl.static_range(parts(tiling, which)):
        weights = gl.convert_layout(left, gl.DotOperandLayout(0, sums[part].type.layout, 2))
        found = found + (warpgroup_mma(weights, right[part], sums[part], is_async=True),)
    return found


@gluon.jit
def added(sums, pending: gl.constexpr, which: gl.constexpr, tiling: gl.constexpr):
    """The sums, when at most so many products are under way."""
    if parts(tiling, which) > 1:
        return warpgroup_mma_wait(pending, deps=sums)
    else:
        return (warpgroup_mma_wait(pending, deps=sums),)


@gluon.jit
def scaled(sums, factor, which: gl.constexpr, tiling: gl.constexpr):
    """The sums, of each row times its own factor."""
    found = ()
    for part in gl.static_range(parts(tiling, which)):
        of_row = gl.convert_layout(factor, gl.SliceLayout(1, sums[part].type.layout))
        found = found + (sums[part] * of_row[:, None],)
    return found


@gluon.jit
def stored(buffers, at, sums, factor, dtype: gl.constexpr, operand: gl.constexpr, tiling: gl.constexpr):
    """Write the sums times a factor to an operand's tile, number ``at``; what else it has isn't written."""
    into = tiles_of(buffers, at, operand, tiling)
    for part in gl.static_range(parts(tiling, along(operand))):
        into[part].store((sums[part] * factor).to(dtype))


@gluon.jit
def leave(
    array, buffers, at, sums, factor, element, row, dtype: gl.constexpr, operand: gl.constexpr, numbers,
    tiling: gl.constexpr,
):  # fmt: skip
    """Have the hardware write the sums times a factor to an array, through tile ``at`` of some in shared memory."""
    stored(buffers, at, sums, factor, dtype, operand, tiling)
    fence_async_shared()
    handed_over(array, buffers, at, element, row, operand, numbers, tiling)
