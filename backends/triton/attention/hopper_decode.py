"""Few queries against many keys on Hopper, as fast as memory gives these.

One warp of a program copies blocks of keys and values to shared memory (TMA), as many ahead as there is room for. A warp
group multiplies these with the queries of all heads that share the keys, padded to 64 rows, and keeps running maxima and
sums. Programs have equal shares of the blocks of all tiles (:mod:`hopper_decode_work`). Where several have worked on a
tile, each leaves its result in memory and counts itself; the last one to come puts them together, always in the same
order, so that the bits don't depend on who that is.

After FlashDecoding (Dao et al., 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from einops_fast.backends.triton.attention.hopper_decode_work import Run, keys_seen, parts_of, run_of, slot_of
from einops_fast.backends.triton.attention.hopper_scores import scored
from einops_fast.backends.triton.attention.hopper_tiles import flat, pipe_of, released, room, there
from einops_fast.backends.triton.barriers import barrier
from einops_fast.backends.triton.indexing import field

__all__ = ["hopper_decode_kernel"]

_K, _V = gl.constexpr(0), gl.constexpr(1)

_ROWS = gl.constexpr(8)
"""Rows that results are put together for at once."""


class _Arrays(NamedTuple):
    """Addresses, ``None`` for what there isn't."""

    q: Any
    out: Any
    lse: Any
    sinks: Any
    cached: Any
    table: Any
    parts: Any
    logs: Any
    arrived: Any


class _Rows(NamedTuple):
    """Rows of a tile: which element of the batch and which query each is, and whether there is such a row."""

    element: Any
    query: Any
    exists: Any


@gluon.constexpr_function
def _has(tiling, operand, axis):
    return tiling.has[operand][axis]


@gluon.constexpr_function
def _pages_axis(tiling):
    """Which of the three batch axes the hardware sees as pages; -1 without these."""
    return 3 - tiling.axes if tiling.page_size else -1


@gluon.constexpr_function
def _parts_at_once(tiling):
    """So many results that they fit in the registers."""
    return max(1, min(16, 2048 // tiling.v_head))


@gluon.jit
def _place(tile, page, row, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a block of keys or values begins."""
    element = tile * numbers.share
    c = element % numbers.third
    b = element // numbers.third % numbers.second
    a = element // numbers.third // numbers.second
    a = a if _has(tiling, operand, 0) else 0
    b = b if _has(tiling, operand, 1) else 0
    c = c if _has(tiling, operand, 2) else 0
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
def _fetch(
    array, tiles, count, tile, start, kv_len, arrays, operand: gl.constexpr, numbers, tiling: gl.constexpr
):  # fmt: skip
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
def _copy(k_desc, v_desc, k, v, arrays, run, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    block: gl.constexpr = field(tiling, "block")
    count = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        kv_len, _, first, blocks = keys_seen(tile, arrays.cached, numbers, tiling)
        stop = gl.minimum(base + blocks, run.end)
        for at in range(x, stop):
            start = (first + at - base) * block
            _fetch(k_desc, k, count, tile, start, kv_len, arrays, _K, numbers, tiling)
            _fetch(v_desc, v, count, tile, start, kv_len, arrays, _V, numbers, tiling)
            count += 1
        x = stop
        tile += 1
        base += blocks


@gluon.jit
def _rows(tile, row, numbers):
    exists = row < numbers.q_len * numbers.share
    return _Rows(tile * numbers.share + row % numbers.share, row // numbers.share, exists)


@gluon.jit
def _offsets(rows, places, numbers):
    """Of rows, in an array that has them."""
    c = rows.element % numbers.third
    b = rows.element // numbers.third % numbers.second
    a = rows.element // numbers.third // numbers.second
    outer = a.to(gl.int64) * places.first + b.to(gl.int64) * places.second
    return outer + c.to(gl.int64) * places.third + rows.query.to(gl.int64) * places.position


@gluon.jit
def _load_queries(into, tile, q, numbers, tiling: gl.constexpr):
    """Put the queries of a tile in shared memory. Rows that there aren't are zero."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    rows = _rows(tile, gl.arange(0, 64, layout=gl.SliceLayout(1, layout)), numbers)
    column = gl.arange(0, field(tiling, "head"), layout=gl.SliceLayout(0, layout))
    places = _offsets(rows, numbers.q, numbers)[:, None] + column[None, :]
    found = gl.load(q + places, mask=rows.exists[:, None] & (column < field(tiling, "head_dim"))[None, :], other=0)
    # Nobody may still be multiplying with what was there.
    barrier()
    into.store(found)
    fence_async_shared()
    barrier()


@gluon.jit
def _hidden(scores, start, i, shift, kv_len, numbers, tiling: gl.constexpr):
    """Scores of a block, but ``-inf`` where a key isn't seen."""
    block: gl.constexpr = field(tiling, "block")
    hides = start + block > kv_len
    if field(tiling, "right"):
        hides = hides | (start + block - 1 > shift + numbers.right)
    if field(tiling, "left"):
        hides = hides | (start < shift + numbers.q_len - 1 - numbers.left)
    if hides:
        j = (start + gl.arange(0, block, layout=gl.SliceLayout(0, scores.type.layout)))[None, :]
        scores = gl.where(j < kv_len, scores, float("-inf"))
        facing = (i + shift)[:, None]
        if field(tiling, "right"):
            scores = gl.where(j <= facing + numbers.right, scores, float("-inf"))
        if field(tiling, "left"):
            scores = gl.where(j >= facing - numbers.left, scores, float("-inf"))
    return scores


@gluon.jit
def _cleared(values, start, kv_len, tiling: gl.constexpr):
    """Make values beyond the end of a sequence zero: whatever is there must not become NaN by a weight of zero."""
    block: gl.constexpr = field(tiling, "block")
    if field(tiling, "cached") or field(tiling, "page_size"):
        if start + block > kv_len:
            layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
            j = start + gl.arange(0, block, layout=gl.SliceLayout(1, layout))
            found = values.load(layout)
            barrier()
            values.store(gl.where((j < kv_len)[:, None], found, gl.zeros_like(found)))
            fence_async_shared()
            barrier()


@gluon.jit
def _with_sinks(value, most, total, rows, sinks, numbers, tiling: gl.constexpr):
    """Divided by the sum of all weights, that of the sinks included; and the logarithm of this sum.

    ``value`` and ``total`` are in units of ``exp2(most)``.
    """
    if field(tiling, "sinks"):
        sink = gl.load(sinks + _offsets(rows, numbers.sinks, numbers), mask=rows.exists, other=0) * 1.4426950408889634
        new = gl.maximum(most, sink)
        reference = gl.where(new == float("-inf"), 0.0, new)
        fade = gl.exp2(most - reference)
        total = total * fade + gl.exp2(sink - reference)
        value = value * gl.convert_layout(fade, gl.SliceLayout(1, value.type.layout))[:, None]
        most = new
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), (most + gl.log2(divisor)) * 0.6931471805599453)
    return value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None], logs


@gluon.jit
def _store(value, most, total, rows, wide_rows, arrays, numbers, tiling: gl.constexpr):
    """Write rows of the result; ``wide_rows`` are the same rows, laid out as those of ``value``."""
    value, logs = _with_sinks(value, most, total, rows, arrays.sinks, numbers, tiling)
    gl.store(arrays.lse + _offsets(rows, numbers.lse, numbers), logs, mask=rows.exists)
    column = gl.arange(0, field(tiling, "v_head"), layout=gl.SliceLayout(0, value.type.layout))
    exists = wide_rows.exists[:, None] & (column < field(tiling, "v_head_dim"))[None, :]
    places = _offsets(wide_rows, numbers.out, numbers)[:, None] + column[None, :]
    gl.store(arrays.out + places, value.to(arrays.out.dtype.element_ty), mask=exists)


@gluon.jit
def _keep(value, most, total, slot, row, wide_row, arrays, numbers, tiling: gl.constexpr):
    """Leave a program's result for a tile where the last one finds it."""
    v_head_dim: gl.constexpr = field(tiling, "v_head_dim")
    count = numbers.q_len * numbers.share
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), most + gl.log2(divisor))
    gl.store(arrays.logs + slot * count + row, logs, mask=row < count)
    value = value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None]
    column = gl.arange(0, field(tiling, "v_head"), layout=gl.SliceLayout(0, value.type.layout))
    places = ((slot * count + wide_row) * v_head_dim)[:, None] + column[None, :]
    gl.store(arrays.parts + places, value, mask=(wide_row < count)[:, None] & (column < v_head_dim)[None, :])


@gluon.jit
def _put_together(tile, first, parts, arrays, numbers, tiling: gl.constexpr):
    """Write the rows of a tile that programs from ``first`` on have worked on."""
    v_head: gl.constexpr = field(tiling, "v_head")
    v_head_dim: gl.constexpr = field(tiling, "v_head_dim")
    chunk: gl.constexpr = _parts_at_once(tiling)
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    of_logs: gl.constexpr = gl.SliceLayout(2, layout)
    of_sums: gl.constexpr = gl.SliceLayout(0, layout)
    of_rows: gl.constexpr = gl.SliceLayout(0, of_logs)
    count = numbers.q_len * numbers.share
    column = gl.arange(0, v_head, layout=gl.SliceLayout(0, of_sums))
    columns = column[None, :][None, :, :]
    for start in range(0, count, _ROWS):
        row = start + gl.arange(0, _ROWS, layout=of_rows)
        most = gl.full([_ROWS], float("-inf"), gl.float32, layout=of_rows)
        total = gl.full([_ROWS], 0.0, gl.float32, layout=of_rows)
        sums = gl.zeros([_ROWS, v_head], gl.float32, layout=of_sums)
        for at in range(0, parts, chunk):
            part = at + gl.arange(0, chunk, layout=gl.SliceLayout(1, of_logs))
            exists = (part < parts)[:, None] & (row < count)[None, :]
            places = (slot_of(first + part, (part == 0).to(gl.int32)) * count)[:, None] + row[None, :]
            logs = gl.load(arrays.logs + places, mask=exists, other=float("-inf"))
            found = gl.load(
                arrays.parts + (places * v_head_dim)[:, :, None] + columns,
                mask=exists[:, :, None] & (columns < v_head_dim),
                other=0.0,
            )
            new = gl.maximum(most, gl.max(logs, 0))
            reference = gl.where(new == float("-inf"), 0.0, new)
            shares = gl.exp2(logs - reference[None, :])
            fade = gl.exp2(most - reference)
            total = total * fade + gl.sum(shares, 0)
            sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, of_sums))[:, None]
            sums += gl.sum(found * shares[:, :, None], 0)
            most = new
        wide = start + gl.arange(0, _ROWS, layout=gl.SliceLayout(1, of_sums))
        rows, wide_rows = _rows(tile, row, numbers), _rows(tile, wide, numbers)
        _store(sums, most, total, rows, wide_rows, arrays, numbers, tiling)


@gluon.jit
def _attend(k, v, queries, arrays, run, numbers, tiling: gl.constexpr, dtype: gl.constexpr):
    """What the warp group does."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    v_head: gl.constexpr = field(tiling, "v_head")
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    of_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, v_head, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(0, of_sums, 2)
    of_rows: gl.constexpr = gl.SliceLayout(1, of_scores)
    zeros = gl.zeros([64, block], gl.float32, layout=of_scores)
    row = gl.arange(0, 64, layout=of_rows)
    wide_row = gl.arange(0, 64, layout=gl.SliceLayout(1, of_sums))
    i = row // numbers.share
    program = gl.program_id(0)
    programs = gl.num_programs(0)
    count = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        kv_len, shift, first, blocks = keys_seen(tile, arrays.cached, numbers, tiling)
        stop = gl.minimum(base + blocks, run.end)
        _load_queries(queries, tile, arrays.q, numbers, tiling)
        most = gl.full([64], float("-inf"), gl.float32, layout=of_rows)
        total = gl.full([64], 0.0, gl.float32, layout=of_rows)
        sums = gl.zeros([64, v_head], gl.float32, layout=of_sums)
        for at in range(x, stop):
            start = (first + at - base) * block
            there(k, count, stages)
            keys = flat(k.buffers, count % stages)
            started = warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=[started])
            released(k, count, stages)
            scores, factor, _ = scored(products, 0.0, numbers, tiling)
            scores = _hidden(scores, start, i, shift, kv_len, numbers, tiling)
            new = gl.maximum(most, gl.max(scores, 1) * factor)
            # A row that has seen nothing yet.
            reference = gl.where(new == float("-inf"), 0.0, new)
            nothing = gl.zeros_like(scores)
            weights = gl.exp2(gl.fma(scores, nothing + factor, nothing - reference[:, None]))
            fade = gl.exp2(most - reference)
            total = total * fade + gl.sum(weights, 1)
            most = new
            sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, of_sums))[:, None]
            weights = gl.convert_layout(weights.to(dtype), of_weights)
            there(v, count, stages)
            values = flat(v.buffers, count % stages)
            _cleared(values, start, kv_len, tiling)
            added = warpgroup_mma(weights, values, sums, is_async=True)
            sums = warpgroup_mma_wait(0, deps=[added])
            released(v, count, stages)
            count += 1
        if (x == base) & (stop == base + blocks):
            rows, wide_rows = _rows(tile, row, numbers), _rows(tile, wide_row, numbers)
            _store(sums, most, total, rows, wide_rows, arrays, numbers, tiling)
        else:
            begins = (x == base).to(gl.int32)
            _keep(sums, most, total, slot_of(program, begins), row, wide_row, arrays, numbers, tiling)
            owner, parts = parts_of(base, blocks, programs, run.total)
            # What all threads have written is there before the count says so.
            barrier()
            before = gl.atomic_add(arrays.arrived + tile, 1, sem="acq_rel", scope="gpu")
            if before == parts - 1:
                # As the next call wants to find it.
                gl.store(arrays.arrived + tile, 0)
                _put_together(tile, owner, parts, arrays, numbers, tiling)
        x = stop
        tile += 1
        base += blocks


@gluon.jit
def hopper_decode_kernel(
    k_desc, v_desc, q, out, lse, sinks, cached, table, parts, arrived, numbers, tiling: gl.constexpr
):
    """Write the result, and the logarithms of its rows' sums.

    Args:
        k_desc, v_desc: three batch axes, one of which may count pages, positions, features; a batch axis that an
            operand lacks has size 1.
        q, out, lse, sinks: addresses; ``numbers`` says where their elements are. Features are contiguous.
        cached: keys of each sequence, or ``None``.
        table: pages of each sequence, or ``None``.
        parts: room for two results of every program, and after these for the logarithms of their rows' sums.
        arrived: a number for each tile, 0 before the call and after it.
        numbers: see :class:`DecodeNumbers`.
        tiling: what the kernel is specialised for.
    """
    dtype: gl.constexpr = k_desc.dtype
    stages: gl.constexpr = field(tiling, "stages")
    head: gl.constexpr = field(tiling, "head")
    blocks: gl.constexpr = [stages, 1, 1, 1, field(tiling, "block")]
    k = pipe_of(gl.allocate_shared_memory(dtype, blocks + [head], k_desc.layout), stages, 1)
    v = pipe_of(gl.allocate_shared_memory(dtype, blocks + [field(tiling, "v_head")], v_desc.layout), stages, 1)
    shape: gl.constexpr = [64, head]
    queries = gl.allocate_shared_memory(dtype, shape, gl.NVMMASharedLayout.get_default_for(shape, dtype))
    fence_async_shared()
    barrier()
    rows = 2 * gl.num_programs(0) * numbers.q_len * numbers.share
    logs = parts + rows.to(gl.int64) * field(tiling, "v_head_dim")
    arrays = _Arrays(q, out, lse, sinks, cached, table, parts, logs, arrived)
    run = run_of(gl.program_id(0), gl.num_programs(0), cached, numbers, tiling)
    gl.warp_specialize(
        [
            (_attend, (k, v, queries, arrays, run, numbers, tiling, dtype)),
            (_copy, (k_desc, v_desc, k, v, arrays, run, numbers, tiling)),
        ],
        [1],
        [40],
    )
