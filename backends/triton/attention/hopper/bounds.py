"""Blocks of a tile that a mask hides from all its rows aren't worked on by Hopper's kernels, if they are at its ends.

Which those are is known before, see :mod:`~einops_fast.backends.triton.attention.around.mask_bounds`.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.indexing import field

__all__ = ["bounds_array", "within_bounds"]


@gluon.jit
def bounds_array(bounds, nothing, tiling: gl.constexpr):
    """The bounds' address; ``nothing``, something else, where there are none."""
    found = nothing
    if field(tiling, "bounded"):
        found = bounds
    return found


@gluon.jit
def within_bounds(bounds, element, start, first, end, numbers, tiling: gl.constexpr):
    """The blocks from ``first`` to ``end`` that a tile meets, but those that the mask hides at both ends.

    Args:
        bounds: for each 64 of a tile's positions the first of the others that the mask shows, and the last one plus 1.
        element: of the batch.
        start: first position of the tile.
        first, end: blocks of the others that it meets else.
        numbers, tiling: see :class:`Numbers`, :class:`HopperTiling`.
    """
    if field(tiling, "bounded"):
        block: gl.constexpr = field(tiling, "block")
        # A tile that there isn't has no bounds either.
        if first < end:
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
            first = gl.minimum(gl.maximum(first, low // block), end)
            end = gl.maximum(gl.minimum(end, (high + block - 1) // block), first)
    return first, end
