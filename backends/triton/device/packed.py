"""Tiles of 16-bit numbers as 32-bit ones, two neighbours in a row each.

What a loop carries from one pass to the next has a register for each number, however few bits it has.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

__all__ = ["packed_pieces", "unpacked"]


@gluon.jit
def packed_pieces(tiles, item: gl.constexpr):
    """Several tiles of numbers of ``item`` bytes, each packed."""
    found = ()
    for at in gl.static_range(len(tiles)):
        found += (_packed(tiles[at], item),)
    return found


@gluon.jit
def _packed(tile, item: gl.constexpr):
    """A tile whose numbers have ``item`` bytes, in half as many columns if these are two, else as it is."""
    if item == 2:
        pairs = gl.reshape(tile.to(gl.uint16, bitcast=True), [tile.shape[0], tile.shape[1] // 2, 2])
        first, second = gl.split(pairs)
        tile = first.to(gl.uint32) | (second.to(gl.uint32) << 16)
    return tile


@gluon.jit
def unpacked(tile, item: gl.constexpr, dtype: gl.constexpr, layout: gl.constexpr):
    """The same back as float32, from numbers of ``dtype``."""
    if item == 2:
        first = (tile & 0xFFFF).to(gl.uint16).to(dtype, bitcast=True)
        second = (tile >> 16).to(gl.uint16).to(dtype, bitcast=True)
        pairs = gl.join(first, second)
        tile = gl.convert_layout(gl.reshape(pairs, [tile.shape[0], tile.shape[1] * 2]), layout, assert_trivial=True)
    return tile.to(gl.float32)
