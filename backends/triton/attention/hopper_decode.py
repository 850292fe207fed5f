"""Few queries against many keys on Hopper, as fast as memory gives these.

One warp of a program copies blocks of keys and values to shared memory (TMA), as many ahead as there is room for, and
before the first block of a tile its queries: those of all heads that share the keys. A warp group multiplies them the
other way round, keys times queries and values times weights, because the hardware takes 64 rows at least, while few
queries are no more than 8 columns; and it keeps running maxima and sums. Programs have equal shares of the blocks of
all tiles (:mod:`hopper_decode_work`). Where several have worked on a tile, each leaves its result in memory and
counts itself; the last one to come puts them together, always in the same order, so that the bits don't depend on who
that is.

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

from einops_fast.backends.triton.attention.hopper_decode_work import keys_seen, parts_of, run_of, slot_of
from einops_fast.backends.triton.attention.hopper_scores import scored
from einops_fast.backends.triton.attention.hopper_tiles import pipe_of, released, room, there
from einops_fast.backends.triton.barriers import barrier
from einops_fast.backends.triton.indexing import field

__all__ = ["hopper_decode_kernel"]

_K, _V = gl.constexpr(0), gl.constexpr(1)

_ROWS = gl.constexpr(8)
"""Rows that results are put together for at once."""


class _Arrays(NamedTuple):
    """Addresses, ``None`` for what there isn't."""

    out: Any
    lse: Any
    sinks: Any
    cached: Any
    table: Any
    parts: Any
    logs: Any
    arrived: Any


class _Shared(NamedTuple):
    """What is in shared memory; ``weights`` of one block."""

    q: Any
    k: Any
    v: Any
    weights: Any


class _Rows(NamedTuple):
    """Rows of a tile: which of the heads that share keys and which query each is, and whether there is such a row."""

    head: Any
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
    """So many results that they fit in the registers four times."""
    return 512 // max(128, tiling.v_head)


@gluon.jit
def _outer(tile, numbers, tiling: gl.constexpr):
    """Where a tile is along the three batch axes; 0 along one that its rows count."""
    c = tile * 0
    if not field(tiling, "shared"):
        c = tile % numbers.third
        tile = tile // numbers.third
    return tile // numbers.second, tile % numbers.second, c


@gluon.jit
def _place(tile, page, row, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a block of keys or values begins."""
    a, b, c = _outer(tile, numbers, tiling)
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
def _copy(q_desc, k_desc, v_desc, shared, arrays, run, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    block: gl.constexpr = field(tiling, "block")
    count = 0
    done = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        a, b, c = _outer(tile, numbers, tiling)
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


@gluon.jit
def _rows(row, numbers, tiling: gl.constexpr):
    head = row // field(tiling, "queries")
    query = row % field(tiling, "queries")
    return _Rows(head, query, (head < numbers.share) & (query < numbers.q_len))


@gluon.jit
def _offsets(tile, rows, places, numbers, tiling: gl.constexpr):
    """Of rows, in an array that has them."""
    a, b, c = _outer(tile, numbers, tiling)
    outer = a.to(gl.int64) * places.first + b.to(gl.int64) * places.second + c.to(gl.int64) * places.third
    inner = rows.query.to(gl.int64) * places.position
    if field(tiling, "shared"):
        inner += rows.head.to(gl.int64) * places.third
    return outer + inner


@gluon.jit
def _hidden(scores, start, i, shift, kv_len, numbers, tiling: gl.constexpr):
    """Scores of a block of keys, its rows, with queries, but ``-inf`` where a key isn't seen."""
    block: gl.constexpr = field(tiling, "block")
    hides = start + block > kv_len
    if field(tiling, "right"):
        hides = hides | (start + block - 1 > shift + numbers.right)
    if field(tiling, "left"):
        hides = hides | (start < shift + numbers.q_len - 1 - numbers.left)
    if hides:
        j = (start + gl.arange(0, block, layout=gl.SliceLayout(1, scores.type.layout)))[:, None]
        scores = gl.where(j < kv_len, scores, float("-inf"))
        facing = (i + shift)[None, :]
        if field(tiling, "right"):
            scores = gl.where(j <= facing + numbers.right, scores, float("-inf"))
        if field(tiling, "left"):
            scores = gl.where(j >= facing - numbers.left, scores, float("-inf"))
    return scores


@gluon.jit
def _cleared(values, start, kv_len, tiling: gl.constexpr):
    """Make values beyond the end of a sequence zero: whatever is there must not become NaN by a weight of zero."""
    block: gl.constexpr = field(tiling, "block")
    if (field(tiling, "cached") or field(tiling, "page_size")) and start + block > kv_len:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        j = start + gl.arange(0, block, layout=gl.SliceLayout(1, layout))
        found = values.load(layout)
        barrier()
        values.store(gl.where((j < kv_len)[:, None], found, gl.zeros_like(found)))
        fence_async_shared()
        barrier()


@gluon.jit
def _with_sinks(value, most, total, offsets, exists, sinks, tiling: gl.constexpr):
    """Rows divided by the sum of all weights, that of the sinks included; and the logarithm of this sum.

    ``value`` and ``total`` are in units of ``exp2(most)``.
    """
    if field(tiling, "sinks"):
        sink = gl.load(sinks + offsets, mask=exists, other=0) * 1.4426950408889634
        new = gl.maximum(most, sink)
        reference = gl.where(new == float("-inf"), 0.0, new)
        fade = gl.exp2(most - reference)
        total = total * fade + gl.exp2(sink - reference)
        value = value * gl.convert_layout(fade, gl.SliceLayout(1, value.type.layout))[:, None]
        most = new
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), most + gl.log2(divisor))
    return value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None], logs


@gluon.jit
def _store(value, most, total, tile, start, arrays, numbers, tiling: gl.constexpr):
    """Write rows of the result from row ``start`` of a tile on."""
    count: gl.constexpr = value.shape[0]
    rows = _rows(start + gl.arange(0, count, layout=most.type.layout), numbers, tiling)
    sinks = 0
    if field(tiling, "sinks"):
        sinks = _offsets(tile, rows, numbers.sinks, numbers, tiling)
    value, logs = _with_sinks(value, most, total, sinks, rows.exists, arrays.sinks, tiling)
    places = _offsets(tile, rows, numbers.lse, numbers, tiling)
    gl.store(arrays.lse + places, logs * 0.6931471805599453, mask=rows.exists)
    rows = _rows(start + gl.arange(0, count, layout=gl.SliceLayout(1, value.type.layout)), numbers, tiling)
    column = gl.arange(0, field(tiling, "v_head"), layout=gl.SliceLayout(0, value.type.layout))
    exists = rows.exists[:, None] & (column < field(tiling, "v_head_dim"))[None, :]
    places = _offsets(tile, rows, numbers.out, numbers, tiling)[:, None] + column[None, :]
    gl.store(arrays.out + places, value.to(arrays.out.dtype.element_ty), mask=exists)


@gluon.jit
def _keep(value, most, total, slot, arrays, numbers, tiling: gl.constexpr):
    """Leave a program's result for a tile where the last one finds it."""
    v_head_dim: gl.constexpr = field(tiling, "v_head_dim")
    count: gl.constexpr = field(tiling, "rows")
    row = gl.arange(0, count, layout=most.type.layout)
    divisor = gl.where(total == 0.0, 1.0, total)
    logs = gl.where(total == 0.0, float("-inf"), most + gl.log2(divisor))
    gl.store(arrays.logs + slot * count + row, logs)
    value = value * gl.convert_layout(1.0 / divisor, gl.SliceLayout(1, value.type.layout))[:, None]
    row = gl.arange(0, count, layout=gl.SliceLayout(1, value.type.layout))
    column = gl.arange(0, field(tiling, "v_head"), layout=gl.SliceLayout(0, value.type.layout))
    places = ((slot * count + row) * v_head_dim)[:, None] + column[None, :]
    exists = _rows(row, numbers, tiling).exists[:, None] & (column < v_head_dim)[None, :]
    gl.store(arrays.parts + places, value, mask=exists)


@gluon.jit
def _kept(at, parts, first, row, column, arrays, numbers, tiling: gl.constexpr, layout: gl.constexpr):
    """Some of the results of programs for a tile, and the logarithms of their sums."""
    v_head_dim: gl.constexpr = field(tiling, "v_head_dim")
    part = at + gl.arange(0, _parts_at_once(tiling), layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    exists = (part < parts)[:, None] & _rows(row, numbers, tiling).exists[None, :]
    slots = slot_of(first + part, (part == 0).to(gl.int32)) * field(tiling, "rows")
    places = slots[:, None] + row[None, :]
    logs = gl.load(arrays.logs + places, mask=exists, other=float("-inf"))
    exists = exists[:, :, None] & (column < v_head_dim)
    return gl.load(arrays.parts + (places * v_head_dim)[:, :, None] + column, mask=exists, other=0.0), logs


@gluon.jit
def _put_together(tile, first, parts, arrays, numbers, tiling: gl.constexpr):
    """Write the rows of a tile that programs from ``first`` on have worked on."""
    v_head: gl.constexpr = field(tiling, "v_head")
    chunk: gl.constexpr = _parts_at_once(tiling)
    layout: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [1, 4, 1], [2, 1, 0])
    of_logs: gl.constexpr = gl.SliceLayout(2, layout)
    of_sums: gl.constexpr = gl.SliceLayout(0, layout)
    of_rows: gl.constexpr = gl.SliceLayout(0, of_logs)
    column = gl.arange(0, v_head, layout=gl.SliceLayout(0, of_sums))[None, :][None, :, :]
    for start in range(0, field(tiling, "rows"), _ROWS):
        row = start + gl.arange(0, _ROWS, layout=of_rows)
        most = gl.full([_ROWS], float("-inf"), gl.float32, layout=of_rows)
        total = gl.full([_ROWS], 0.0, gl.float32, layout=of_rows)
        sums = gl.zeros([_ROWS, v_head], gl.float32, layout=of_sums)
        # Each has a long way: so three are on it while one is added.
        found, logs = _kept(0, parts, first, row, column, arrays, numbers, tiling, layout)
        second, second_logs = _kept(chunk, parts, first, row, column, arrays, numbers, tiling, layout)
        third, third_logs = _kept(2 * chunk, parts, first, row, column, arrays, numbers, tiling, layout)
        for at in range(0, parts, chunk):
            fourth, fourth_logs = _kept(at + 3 * chunk, parts, first, row, column, arrays, numbers, tiling, layout)
            new = gl.maximum(most, gl.max(logs, 0))
            reference = gl.where(new == float("-inf"), 0.0, new)
            shares = gl.exp2(logs - reference[None, :])
            fade = gl.exp2(most - reference)
            total = total * fade + gl.sum(shares, 0)
            sums = sums * gl.convert_layout(fade, gl.SliceLayout(1, of_sums))[:, None]
            sums += gl.sum(found * shares[:, :, None], 0)
            most = new
            found, logs = second, second_logs
            second, second_logs = third, third_logs
            third, third_logs = fourth, fourth_logs
        _store(sums, most, total, tile, start, arrays, numbers, tiling)


@gluon.jit
def _tile_of(buffers, at):
    """Tile ``at`` of some as a matrix of the features of rows."""
    shape: gl.constexpr = buffers.type.shape
    return buffers.index(at).reshape([shape[3] * shape[4], shape[5]])


@gluon.jit
def _attend(shared, arrays, run, numbers, tiling: gl.constexpr, dtype: gl.constexpr):
    """What the warp group does."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    rows: gl.constexpr = field(tiling, "rows")
    v_head: gl.constexpr = field(tiling, "v_head")
    # Tiles are turned: keys or features along the first axis, queries along the second.
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    of_rows: gl.constexpr = gl.SliceLayout(0, layout)
    zeros = gl.zeros([block, rows], gl.float32, layout=layout)
    i = gl.arange(0, rows, layout=of_rows) % field(tiling, "queries")
    program = gl.program_id(0)
    count = 0
    done = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        kv_len, shift, first, blocks = keys_seen(tile, arrays.cached, numbers, tiling)
        stop = gl.minimum(base + blocks, run.end)
        most = gl.full([rows], float("-inf"), gl.float32, layout=of_rows)
        totals = gl.zeros([block, rows], gl.float32, layout=layout)
        sums = gl.zeros([v_head, rows], gl.float32, layout=layout)
        there(shared.q, done, 2)
        queries = _tile_of(shared.q.buffers, done % 2).permute((1, 0))
        for at in range(x, stop):
            start = (first + at - base) * block
            there(shared.k, count, stages)
            keys = _tile_of(shared.k.buffers, count % stages)
            started = warpgroup_mma(keys, queries, zeros, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=[started])
            released(shared.k, count, stages)
            scores, factor, _ = scored(products, 0.0, numbers, tiling)
            scores = _hidden(scores, start, i, shift, kv_len, numbers, tiling)
            new = gl.maximum(most, gl.max(scores, 0) * factor)
            # A query that has seen nothing yet.
            reference = gl.where(new == float("-inf"), 0.0, new)
            nothing = gl.zeros_like(scores)
            weights = gl.exp2(gl.fma(scores, nothing + factor, nothing - reference[None, :]))
            fade = gl.exp2(most - reference)
            totals = totals * fade[None, :] + weights
            sums = sums * fade[None, :]
            most = new
            shared.weights.store(gl.permute(weights.to(dtype), (1, 0)))
            fence_async_shared()
            barrier()
            there(shared.v, count, stages)
            values = _tile_of(shared.v.buffers, count % stages)
            _cleared(values, start, kv_len, tiling)
            added = warpgroup_mma(values.permute((1, 0)), shared.weights.permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(0, deps=[added])
            released(shared.v, count, stages)
            count += 1
        released(shared.q, done, 2)
        done += 1
        total = gl.sum(totals, 0)
        result = gl.permute(sums, (1, 0))
        if (x == base) & (stop == base + blocks):
            _store(result, most, total, tile, 0, arrays, numbers, tiling)
        else:
            _keep(result, most, total, slot_of(program, (x == base).to(gl.int32)), arrays, numbers, tiling)
            owner, parts = parts_of(base, blocks, gl.num_programs(0), run.total)
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
    q_desc, k_desc, v_desc, out, lse, sinks, cached, table, parts, arrived, numbers, tiling: gl.constexpr
):
    """Write the result, and the logarithms of its rows' sums.

    Args:
        q_desc, k_desc, v_desc: three batch axes, one of which may count pages of k and v, positions, features; a batch
            axis that k or v lacks has size 1.
        out, lse, sinks: addresses; ``numbers`` says where their elements are. Features are contiguous.
        cached: keys of each sequence, or ``None``.
        table: pages of each sequence, or ``None``.
        parts: room for two results of every program, and after these for the logarithms of their rows' sums.
        arrived: a number for each tile, 0 before the call and after it.
        numbers: see :class:`DecodeNumbers`.
        tiling: what the kernel is specialised for.
    """
    dtype: gl.constexpr = k_desc.dtype
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    rows: gl.constexpr = field(tiling, "rows")
    blocks: gl.constexpr = [stages, 1, 1, 1, block]
    q = pipe_of(gl.allocate_shared_memory(dtype, [2] + q_desc.block_type.shape, q_desc.layout), 2, 1)
    k = pipe_of(gl.allocate_shared_memory(dtype, blocks + [field(tiling, "head")], k_desc.layout), stages, 1)
    v = pipe_of(gl.allocate_shared_memory(dtype, blocks + [field(tiling, "v_head")], v_desc.layout), stages, 1)
    of_weights: gl.constexpr = gl.NVMMASharedLayout.get_default_for([rows, block], dtype)
    shared = _Shared(q, k, v, gl.allocate_shared_memory(dtype, [rows, block], of_weights))
    fence_async_shared()
    barrier()
    kept = 2 * gl.num_programs(0) * rows
    arrays = _Arrays(out, lse, sinks, cached, table, parts, parts + kept * field(tiling, "v_head_dim"), arrived)
    run = run_of(gl.program_id(0), gl.num_programs(0), cached, numbers, tiling)
    gl.warp_specialize(
        [
            (_attend, (shared, arrays, run, numbers, tiling, dtype)),
            (_copy, (q_desc, k_desc, v_desc, shared, arrays, run, numbers, tiling)),
        ],
        [1],
        [80],
    )
