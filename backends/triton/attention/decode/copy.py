"""Copying queries, and block after block of keys and values, to shared memory: what one warp does for few queries."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

from einops_fast.backends.triton.attention.decode.work import keys_seen, outer_of
from einops_fast.backends.triton.attention.hopper.pipes import room
from einops_fast.backends.triton.attention.hopper.tiles import has
from einops_fast.backends.triton.device.indexing import field

_K, _V = gl.constexpr(0), gl.constexpr(1)


@gluon.constexpr_function
def _pages_axis(tiling):
    """Which of the three batch axes the hardware sees as pages; -1 without these."""
    return 3 - tiling.axes if tiling.page_size else -1


@gluon.jit
def _place(tile, page, row, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a block of keys or values begins."""
    a, b, c = outer_of(tile, numbers, tiling)
    a = a if has(tiling, operand, 0) else 0
    b = b if has(tiling, operand, 1) else 0
    c = c if has(tiling, operand, 2) else 0
    pages: gl.constexpr = _pages_axis(tiling)
    if pages == 0:
        a = page
    if pages == 1:
        b = page
    if pages == 2:
        c = page
    return a, b, c, row, 0


@gluon.jit
def _page(tile, start, kv_len, arrays, numbers, tiling: gl.constexpr):
    """Number of the page that some keys are in, and the first one's row there."""
    size: gl.constexpr = field(tiling, "page_size")
    page = 0
    row = start
    if size:
        # A block may go on beyond the last page, whose keys then stand for those that there aren't.
        at = gl.minimum(start, gl.maximum(kv_len - 1, 0)) // size
        sequence = (tile // numbers.each).to(gl.int64)
        page = gl.load(arrays.table + sequence * numbers.rows + at * numbers.columns).to(gl.int32)
        row = start % size
    return page, row


@gluon.jit
def _fetch(array, tiles, count, tile, start, kv_len, arrays, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Have a block copied as soon as there is room for it, a page at a time if pages are shorter."""
    stages: gl.constexpr = field(tiling, "stages")
    copied: gl.constexpr = field(tiling, "copied")
    times: gl.constexpr = field(tiling, "block") // copied
    full = room(tiles, count, stages, array.block_type.nbytes * times)
    into = tiles.buffers.index(count % stages)
    for at in gl.static_range(times):
        page, row = _page(tile, start + at * copied, kv_len, arrays, numbers, tiling)
        place = _place(tile, page, row, operand, numbers, tiling)
        tma.async_copy_global_to_shared(array, place, full, into.slice(at * copied, copied, dim=3))


@gluon.jit
def copy_blocks(q_desc, k_desc, v_desc, shared, arrays, run, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    block: gl.constexpr = field(tiling, "block")
    count = 0
    done = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        a, b, c = outer_of(tile, numbers, tiling)
        full = room(shared.q, done, 2, q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, (a, b, c, 0, 0), full, shared.q.buffers.index(done % 2))
        done += 1
        kv_len, _, first, blocks = keys_seen(tile, arrays.cached, numbers, tiling)
        stop = gl.minimum(base + blocks, run.end)
        for at in range(x, stop):
            start = (first + at - base) * block
            _fetch(k_desc, shared.k, count, tile, start, kv_len, arrays, _K, numbers, tiling)
            _fetch(v_desc, shared.v, count, tile, start, kv_len, arrays, _V, numbers, tiling)
            count += 1
        x = stop
        tile += 1
        base += blocks
