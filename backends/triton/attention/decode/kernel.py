"""Few queries against many keys on Hopper, as fast as memory gives these.

One warp of a program copies blocks of keys and values to shared memory (TMA), as many ahead as there is room for, and
before the first block of a tile its queries: those of all heads that share the keys. A warp group multiplies them the
other way round, keys times queries and values times weights, because the hardware takes 64 rows at least, while few
queries are no more than 8 columns; and it keeps running maxima and sums. Programs have equal shares of the blocks of
all tiles (:mod:`work`). Where several have worked on a tile, each leaves its result in memory and
counts itself; the last one to come puts them together, always in the same order, so that the bits don't depend on who
that is.

After FlashDecoding (Dao et al., 2023, https://crfm.stanford.edu/2023/10/12/flashdecoding.html).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.decode.result import keep, put_together, store
from einops_fast.backends.triton.attention.decode.work import (
    Arrays,
    Shared,
    keys_seen,
    outer_of,
    parts_of,
    run_of,
    slot_of,
)
from einops_fast.backends.triton.attention.hopper.pipes import pipe_of, released, room, there
from einops_fast.backends.triton.attention.hopper.scores import scored
from einops_fast.backends.triton.device.barriers import barrier

_K, _V = gl.constexpr(0), gl.constexpr(1)


@gluon.constexpr_function
def _pages_axis(tiling):
    """Which of the three batch axes the hardware sees as pages; -1 without these."""
    return 3 - tiling.axes if tiling.page_size else -1


@gluon.jit
def _place(tile, page, row, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a block of keys or values begins."""
    a, b, c = outer_of(tile, numbers, tiling)
    a = a if tiling.has[operand][0] else 0
    b = b if tiling.has[operand][1] else 0
    c = c if tiling.has[operand][2] else 0
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
    page = 0
    row = start
    if tiling.page_size:
        # A block may go on beyond the last page, whose keys then stand for those that there aren't.
        at = gl.minimum(start, gl.maximum(kv_len - 1, 0)) // tiling.page_size
        sequence = (tile // numbers.each).to(gl.int64)
        page = gl.load(arrays.table + sequence * numbers.rows + at * numbers.columns).to(gl.int32)
        row = start % tiling.page_size
    return page, row


@gluon.jit
def _fetch(array, tiles, count, tile, start, kv_len, arrays, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Have a block copied as soon as there is room for it, a page at a time if pages are shorter."""
    times: gl.constexpr = tiling.block // tiling.copied
    full = room(tiles, count, tiling.stages, array.block_type.nbytes * times)
    into = tiles.buffers.index(count % tiling.stages)
    for at in gl.static_range(times):
        page, row = _page(tile, start + at * tiling.copied, kv_len, arrays, numbers, tiling)
        place = _place(tile, page, row, operand, numbers, tiling)
        tma.async_copy_global_to_shared(array, place, full, into.slice(at * tiling.copied, tiling.copied, dim=3))


@gluon.jit
def _copy(q_desc, k_desc, v_desc, shared, arrays, run, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
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
            start = (first + at - base) * tiling.block
            _fetch(k_desc, shared.k, count, tile, start, kv_len, arrays, _K, numbers, tiling)
            _fetch(v_desc, shared.v, count, tile, start, kv_len, arrays, _V, numbers, tiling)
            count += 1
        x = stop
        tile += 1
        base += blocks


@gluon.jit
def _hidden(scores, start, i, shift, kv_len, numbers, tiling: gl.constexpr):
    """Scores of a block of keys, its rows, with queries, but ``-inf`` where a key isn't seen."""
    hides = start + tiling.block > kv_len
    if tiling.right:
        hides = hides | (start + tiling.block - 1 > shift + numbers.right)
    if tiling.left:
        hides = hides | (start < shift + numbers.q_len - 1 - numbers.left)
    if hides:
        j = (start + gl.arange(0, tiling.block, layout=gl.SliceLayout(1, scores.type.layout)))[:, None]
        scores = gl.where(j < kv_len, scores, float("-inf"))
        facing = (i + shift)[None, :]
        if tiling.right:
            scores = gl.where(j <= facing + numbers.right, scores, float("-inf"))
        if tiling.left:
            scores = gl.where(j >= facing - numbers.left, scores, float("-inf"))
    return scores


@gluon.jit
def _cleared(values, start, kv_len, tiling: gl.constexpr):
    """Make values beyond the end of a sequence zero: whatever is there must not become NaN by a weight of zero."""
    if (tiling.cached or tiling.page_size) and start + tiling.block > kv_len:
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        j = start + gl.arange(0, tiling.block, layout=gl.SliceLayout(1, layout))
        found = values.load(layout)
        barrier()
        values.store(gl.where((j < kv_len)[:, None], found, gl.zeros_like(found)))
        fence_async_shared()
        barrier()


@gluon.jit
def _tile_of(buffers, at):
    """Tile ``at`` of some as a matrix of the features of rows."""
    return buffers.index(at).reshape([buffers.type.shape[3] * buffers.type.shape[4], buffers.type.shape[5]])


@gluon.jit
def _attend(shared, arrays, run, numbers, tiling: gl.constexpr, dtype: gl.constexpr):
    """What the warp group does."""
    # Tiles are turned: keys or features along the first axis, queries along the second.
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tiling.rows, 16])
    of_rows: gl.constexpr = gl.SliceLayout(0, layout)
    zeros = gl.full([tiling.block, tiling.rows], 0.0, gl.float32, layout=layout)
    i = gl.arange(0, tiling.rows, layout=of_rows) % tiling.queries
    program = gl.program_id(0)
    count = 0
    done = 0
    x = run.first
    tile = run.tile
    base = run.base
    while x < run.end:
        kv_len, shift, first, blocks = keys_seen(tile, arrays.cached, numbers, tiling)
        stop = gl.minimum(base + blocks, run.end)
        most = gl.full([tiling.rows], float("-inf"), gl.float32, layout=of_rows)
        totals = gl.full([tiling.block, tiling.rows], 0.0, gl.float32, layout=layout)
        sums = gl.full([tiling.v_head, tiling.rows], 0.0, gl.float32, layout=layout)
        there(shared.q, done, 2)
        queries = _tile_of(shared.q.buffers, done % 2).permute((1, 0))
        for at in range(x, stop):
            start = (first + at - base) * tiling.block
            there(shared.k, count, tiling.stages)
            keys = _tile_of(shared.k.buffers, count % tiling.stages)
            started = warpgroup_mma(keys, queries, zeros, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=[started])
            released(shared.k, count, tiling.stages)
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
            there(shared.v, count, tiling.stages)
            values = _tile_of(shared.v.buffers, count % tiling.stages)
            _cleared(values, start, kv_len, tiling)
            added = warpgroup_mma(values.permute((1, 0)), shared.weights.permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(0, deps=[added])
            released(shared.v, count, tiling.stages)
            count += 1
        released(shared.q, done, 2)
        done += 1
        total = gl.sum(totals, 0)
        result = gl.permute(sums, (1, 0))
        if (x == base) & (stop == base + blocks):
            store(result, most, total, tile, 0, arrays, numbers, tiling)
        else:
            keep(result, most, total, slot_of(program, (x == base).to(gl.int32)), arrays, numbers, tiling)
            owner, parts = parts_of(base, blocks, gl.num_programs(0), run.total)
            # What all threads have written is there before the count says so.
            barrier()
            before = gl.atomic_add(arrays.arrived + tile, 1, sem="acq_rel", scope="gpu")
            if before == parts - 1:
                # As the next call wants to find it.
                gl.store(arrays.arrived + tile, 0)
                put_together(tile, owner, parts, arrays, numbers, tiling)
        x = stop
        tile += 1
        base += blocks


@gluon.jit
def hopper_decode_kernel(
    q_desc, k_desc, v_desc, out, lse, sinks, cached, table, parts, arrived, numbers, tiling: gl.constexpr
):
    """Write the result, and the logarithms of its rows' sums.

    Descriptors are as in :func:`hopper_kernel`, but one of the batch axes of k and v may count pages. ``parts`` has
    room for two results of every program, then for the logarithms of their rows' sums; ``arrived`` has a number for
    each tile, 0 before the call and after it.
    """
    dtype: gl.constexpr = k_desc.dtype
    blocks: gl.constexpr = [tiling.stages, 1, 1, 1, tiling.block]
    q = pipe_of(gl.allocate_shared_memory(dtype, [2] + q_desc.block_type.shape, q_desc.layout), 2, 1)
    k = pipe_of(gl.allocate_shared_memory(dtype, blocks + [tiling.head], k_desc.layout), tiling.stages, 1)
    v = pipe_of(gl.allocate_shared_memory(dtype, blocks + [tiling.v_head], v_desc.layout), tiling.stages, 1)
    of_weights: gl.constexpr = gl.NVMMASharedLayout.get_default_for([tiling.rows, tiling.block], dtype)
    shared = Shared(q, k, v, gl.allocate_shared_memory(dtype, [tiling.rows, tiling.block], of_weights))
    fence_async_shared()
    barrier()
    kept = 2 * gl.num_programs(0) * tiling.rows
    arrays = Arrays(out, lse, sinks, cached, table, parts, parts + kept * tiling.v_head_dim, arrived)
    run = run_of(gl.program_id(0), gl.num_programs(0), cached, numbers, tiling)
    gl.warp_specialize(
        [
            (_attend, (shared, arrays, run, numbers, tiling, dtype)),
            (_copy, (q_desc, k_desc, v_desc, shared, arrays, run, numbers, tiling)),
        ],
        [1],
        [80],
    )
