"""Long rows shared by clusters: several thread blocks, side by side on the GPU, have a part of each row.

So a row is read once however long it is, up to what the registers of a cluster hold. In Triton's
terms, a program is the whole cluster. Its tiles' first axis, the parts of a row, is spread over the warps of its thread
blocks ("CTAs"): a warp has a part of its own, and what it finds out about it the others learn by
:mod:`~einops_fast.backends.triton.device.exchange`. So the threads of a block never wait for each other alone. The
parts are counted like rows, by one more axis (:func:`~einops_fast.backends.triton.rows.cluster_tilings.in_parts`), so
that the functions of the other kernels work on these tiles, too.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.rows.tiles import element_place, row_place


@gluon.jit
def with_parts(sizes, t: gl.constexpr):
    """The sizes of the axes that count parts of rows: the rows' own, and how many parts each has, as a constant."""
    return sizes + (gl.to_tensor(t.parts),)


@gluon.jit
def parts_of(part, columns, t: gl.constexpr):
    """The number of each part, its columns, which of these there are, both by pieces, and how many there are."""
    number = gl.arange(0, t.parts, layout=gl.SliceLayout(1, t.layout))
    count = gl.minimum(gl.maximum(columns - number * part, 0), part)
    runs = ()
    exist = ()
    for at in gl.static_range(field(t, "pieces")):
        run = at * t.block + gl.arange(0, t.block, layout=gl.SliceLayout(0, t.layout))
        here = (run[None, :] >= 0) & (number[:, None] >= 0)
        if t.ragged:
            here = run[None, :] < count[:, None]
        runs += (run,)
        exist += (here,)
    return number, runs, exist, count


@gluon.jit
def part_of_row(array, row, rows, number, runs, exist, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """A row's parts in the array's own type, by pieces, 0 where there is nothing, and if there is no such row."""
    first = row_place(row * t.parts + number, sizes, strides, f)
    found = ()
    for at in gl.static_range(len(runs)):
        place = element_place(first, runs[at], strides, f)
        found += (gl.load(array + place, mask=exist[at] & (row < rows), other=0.0),)
    return found


@gluon.jit
def parameter(array, stride, number, part, runs, exist):
    """What all rows share, in its own type; anything if there is none."""
    found = ()
    for at in gl.static_range(len(runs)):
        piece = number[:, None]
        if array is not None:
            place = (number * part)[:, None] + runs[at][None, :]
            piece = gl.load(array + place * stride, mask=exist[at], other=0, eviction_policy="evict_last")
        found += (piece,)
    return found


@gluon.jit
def stored(array, stride, number, part, runs, exist, t: gl.constexpr):
    """The same in shared memory, for many rows; anything if there is none."""
    shape: gl.constexpr = [t.parts, t.block]
    pieces = parameter(array, stride, number, part, runs, exist)
    found = ()
    for at in gl.static_range(len(runs)):
        piece = pieces[at]
        if array is not None:
            place = gl.allocate_shared_memory(array.dtype.element_ty, shape, t.shared)
            place.store(piece)
        else:
            place = piece
        found += (place,)
    return found


@gluon.jit
def from_shared(array, place, t: gl.constexpr):
    """A piece of it back in registers, from what :func:`stored` gave."""
    if array is None:
        return place
    else:
        return place.load(t.layout)


@gluon.jit
def packed_pieces(tiles, item: gl.constexpr):
    """Several tiles of numbers of ``item`` bytes, each packed: what a loop carries has a register for each number."""
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
