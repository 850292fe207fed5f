"""Products of Hopper's kernels of attention along and into features, of which a tile may have more than there are.

Tiles have a power of two of them. Where three quarters are enough, half of a tile and the quarter after it are
multiplied one after the other, and sums are in two parts.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from einops_fast.backends.triton.attention.hopper_tiles import flat, there
from einops_fast.backends.triton.indexing import field

__all__ = [
    "added",
    "adding",
    "begun",
    "features_of",
    "held",
    "leave",
    "no_sums",
    "parts",
    "product",
    "scaled",
    "stored",
    "tiles_of",
]


@gluon.constexpr_function
def _partial(tiling, which):
    return tiling.three_quarters[which]


@gluon.constexpr_function
def features_of(tiling, which):
    """That are worked on: of ``head`` or, for 1, of ``v_head``."""
    width = (tiling.head, tiling.v_head)[which]
    return width * 3 // 4 if tiling.three_quarters[which] else width


@gluon.constexpr_function
def parts(tiling, which):
    """How many products one along these features is made of, or how many sums there are of them."""
    return 1 + tiling.three_quarters[which]


@gluon.constexpr_function
def _of_sums(width):
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])


@gluon.jit
def tiles_of(tile, which: gl.constexpr, tiling: gl.constexpr):
    """The parts of a tile that have features."""
    if _partial(tiling, which):
        quarter: gl.constexpr = features_of(tiling, which) // 3
        return tile.slice(0, 2 * quarter, 1), tile.slice(2 * quarter, quarter, 1)
    else:
        return (tile,)


@gluon.jit
def held(tiles, which: gl.constexpr, layout: gl.constexpr, tiling: gl.constexpr):
    """The same parts in registers."""
    if _partial(tiling, which):
        return tiles[0].load(layout), tiles[1].load(layout)
    else:
        return (tiles[0].load(layout),)


@gluon.jit
def product(left, right, zeros, which: gl.constexpr, tiling: gl.constexpr):
    """Start the product of the parts of a tile with another one, along their features: ``parts`` in all."""
    others = tiles_of(right, which, tiling)
    found = warpgroup_mma(left[0], others[0].permute((1, 0)), zeros, use_acc=False, is_async=True)
    if _partial(tiling, which):
        found = warpgroup_mma(left[1], others[1].permute((1, 0)), found, is_async=True)
    return found


@gluon.jit
def begun(left, others, count, zeros, tiling: gl.constexpr):
    """Start the products of a tile's parts with block ``count`` of keys or queries, when it is there."""
    stages: gl.constexpr = field(tiling, "stages")
    there(others, count, stages)
    return product(left, flat(others.buffers, count % stages), zeros, 0, tiling)


@gluon.jit
def no_sums(which: gl.constexpr, tiling: gl.constexpr):
    """Sums of nothing, of 64 rows."""
    width: gl.constexpr = features_of(tiling, which)
    if _partial(tiling, which):
        quarter: gl.constexpr = width // 3
        sums = gl.zeros([64, 2 * quarter], gl.float32, layout=_of_sums(2 * quarter))
        return sums, gl.zeros([64, quarter], gl.float32, layout=_of_sums(quarter))
    else:
        return (gl.zeros([64, width], gl.float32, layout=_of_sums(width)),)


@gluon.jit
def _add(left, right, sums):
    left = gl.convert_layout(left, gl.DotOperandLayout(0, sums.type.layout, 2))
    return warpgroup_mma(left, right, sums, is_async=True)


@gluon.jit
def adding(left, right, sums, which: gl.constexpr, tiling: gl.constexpr):
    """Start adding the product of a matrix with a tile to the tile's sums."""
    others = tiles_of(right, which, tiling)
    if _partial(tiling, which):
        return _add(left, others[0], sums[0]), _add(left, others[1], sums[1])
    else:
        return (_add(left, others[0], sums[0]),)


@gluon.jit
def added(sums, pending: gl.constexpr, which: gl.constexpr, tiling: gl.constexpr):
    """The sums, when at most so many products are under way."""
    if _partial(tiling, which):
        return warpgroup_mma_wait(pending, deps=[sums[0], sums[1]])
    else:
        return (warpgroup_mma_wait(pending, deps=[sums[0]]),)


@gluon.jit
def _times(sums, factor):
    return sums * gl.convert_layout(factor, gl.SliceLayout(1, sums.type.layout))[:, None]


@gluon.jit
def scaled(sums, factor, which: gl.constexpr, tiling: gl.constexpr):
    """The sums, of each row times its own factor."""
    if _partial(tiling, which):
        return _times(sums[0], factor), _times(sums[1], factor)
    else:
        return (_times(sums[0], factor),)


@gluon.jit
def stored(tile, sums, factor, dtype: gl.constexpr, which: gl.constexpr, tiling: gl.constexpr):
    """Write the sums times a factor to a tile; what else it has isn't written."""
    into = tiles_of(tile, which, tiling)
    into[0].store((sums[0] * factor).to(dtype))
    if _partial(tiling, which):
        into[1].store((sums[1] * factor).to(dtype))


@gluon.jit
def leave(
    descriptor, place, buffers, at, sums, factor, dtype: gl.constexpr, which: gl.constexpr, tiling: gl.constexpr
):  # fmt: skip
    """Have the hardware write the sums times a factor to an array, through tile ``at`` of some in shared memory."""
    stored(flat(buffers, at), sums, factor, dtype, which, tiling)
    fence_async_shared()
    tma.async_copy_shared_to_global(descriptor, place, buffers.index(at))
