"""Compute the gradients of k and v on Hopper: a program owns tiles of keys, and reads the queries that see them.

A kernel of its own computes the gradient of v of wide heads: there are no registers for both.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.hopper.backward import Operands, begun_more, both_products, weights_of
from einops_fast.backends.triton.attention.hopper.pipes import (
    beside,
    fetch,
    fetch_own,
    handed_over,
    passed_both,
    pipe,
    released,
    room,
    second_pipe,
    there,
)
from einops_fast.backends.triton.attention.hopper.positions import own_blocks, sides, tile_of, within_bounds
from einops_fast.backends.triton.attention.hopper.products import (
    added,
    adding,
    begun,
    features_of,
    held,
    leave,
    no_sums,
    parts,
    stored,
    tiles_of,
)
from einops_fast.backends.triton.attention.hopper.scores import Added, added_of, added_tiles, fetch_added
from einops_fast.backends.triton.attention.hopper.tiles import DK, DV, OUT, K, Q, V, boxes
from einops_fast.backends.triton.attention.hopper.turns import in_groups, note, noted, notes


class _State(NamedTuple):
    """What a warp group knows of its keys."""

    # gradients, of the blocks before
    dk: Any
    dv: Any
    weights: Any  # of a block of queries
    slope: Any  # derivative of its scores by scaled products
    d_weights: Any  # gradients of the weights
    count: Any  # blocks of all tiles before


@gluon.constexpr_function
def _summed(tiling):
    """Features of all sums of a key."""
    return features_of(tiling, 0) + features_of(tiling, 1) * tiling.dv


@gluon.constexpr_function
def _early(tiling):
    """How many of the next block's products are begun before this one's are added up: there are registers for these."""
    if tiling.softcap or tiling.patchy:
        return 2 if _summed(tiling) <= 192 else 0
    return 2 if _summed(tiling) <= 128 else 1


@gluon.constexpr_function
def _held(tiling):
    """Whether there are also registers for the keys and values."""
    return features_of(tiling, 0) + features_of(tiling, 1) <= 128


@gluon.jit
def _waited(pending: gl.constexpr, dk, dv, tiling: gl.constexpr):
    """The gradients when at most so many products are under way."""
    if tiling.dv:
        dv = added(dv, pending, 1, tiling)
    return added(dk, pending, 0, tiling), dv


@gluon.jit
def _copy(arrays, bounds, shared, numbers, tiling: gl.constexpr):
    """Copy into shared memory, by one warp, what the other warps read; without values, leave ``delta`` out."""
    block: gl.constexpr = tiling.block
    second: gl.constexpr = tiling.second_stages
    numbers_of_rows: gl.constexpr = 1 if arrays.v is None else 2
    d_out_bytes: gl.constexpr = arrays.d_out.block_type.nbytes * boxes(tiling, OUT)
    apart_bytes: gl.constexpr = d_out_bytes if tiling.second else 0
    block_bytes: gl.constexpr = tiling.stage_bytes + numbers_of_rows * arrays.rows.block_type.nbytes - apart_bytes
    count = 0
    done = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = tile_of(turn, numbers, tiling)
        first, end = within_bounds(bounds, element, start, first, end, numbers, tiling)
        note(shared.notes, done, element, start, first, whole, whole_end, end)
        reader = element * numbers.share
        # Even where no query sees them: the memory has to be waited for, since gradients leave from there.
        fetch_own(arrays.k, arrays.v, shared.k, shared.v, done, reader, start, K, V, numbers, tiling)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling
        for reader in range(element * numbers.share, (element + 1) * numbers.share):
            for at in range(first, end):
                stage = count % tiling.stages
                full = room(shared.q, count, tiling.stages, block_bytes)
                fetch(arrays.q, shared.q.buffers, stage, full, reader, at * block, Q, numbers, tiling)
                for which in gl.static_range(numbers_of_rows):
                    into = shared.rows.buffers.index(numbers_of_rows * stage + which)
                    tma.async_copy_global_to_shared(arrays.rows, (2 * reader + which, at * block), full, into)
                fetch_added(arrays.added, shared.added, stage, full, reader, at * block, start, numbers, tiling)
                if tiling.second:
                    full = room(shared.d_out, count, second, apart_bytes)
                fetch(
                    arrays.d_out, shared.d_out.buffers, count % second, full, reader, at * block, OUT, numbers, tiling
                )
                count += 1


@gluon.jit
def _weighed(products, shared, count, reader, at, j, partly, numbers, tiling: gl.constexpr, group: gl.constexpr):
    """The weights of a block of queries, and their slope."""
    layout: gl.constexpr = products.type.layout
    of_queries: gl.constexpr = gl.SliceLayout(0, layout)
    stage = count % tiling.stages
    i = at * tiling.block + gl.arange(0, tiling.block, layout=of_queries)
    extra = added_of(shared.added, stage, group, reader, i[None, :], j[:, None], layout, numbers, tiling)
    logs = shared.rows.buffers.index(2 * stage).reshape([tiling.block]).load(of_queries)
    return weights_of(products, extra, i, j, logs, partly, False, numbers, tiling)


@gluon.jit
def _keys_step(
    keys, values, shared, reader, state, at, j, partly, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr, last: gl.constexpr,
):  # fmt: skip
    """Add a block of queries to the gradients. Unless it's the last, have the next one's weights worked out meanwhile.

    ``reader``, ``at`` and ``partly`` are about the next one.
    """
    count = state.count
    stage = count % tiling.stages
    queries = tiles_of(shared.q.buffers, stage, Q, tiling)
    dv = state.dv
    if tiling.dv:
        d_out = tiles_of(shared.d_out.buffers, stage, OUT, tiling)
        dv = adding(state.weights.to(dtype), d_out, dv, 1, tiling)
    delta = shared.rows.buffers.index(2 * stage + 1).reshape([tiling.block])
    delta = delta.load(gl.SliceLayout(0, zeros.type.layout))
    d_scores = state.weights * (state.d_weights - delta[None, :]) * state.slope
    dk = adding(d_scores.to(dtype), queries, state.dk, 0, tiling)
    if last or _early(tiling) == 0:
        dk, dv = _waited(0, dk, dv, tiling)
        released(shared.q, count, tiling.stages)
    if last:
        state = _State(dk, dv, state.weights, state.slope, state.d_weights, count + 1)
    else:
        if _early(tiling) == 1:
            started = begun(keys, shared.q, count + 1, zeros, Q, tiling)
            products = warpgroup_mma_wait(0, deps=[started])
            dk, dv = _waited(0, dk, dv, tiling)
            released(shared.q, count, tiling.stages)
            more = begun_more(values, shared.d_out, count + 1, zeros, OUT, tiling)
        else:
            started, more = both_products(keys, values, shared.q, shared.d_out, count + 1, zeros, Q, OUT, tiling)
            products = warpgroup_mma_wait(parts(tiling, 1), deps=[started])
            if _early(tiling) == 2:
                dk, dv = _waited(parts(tiling, 1), dk, dv, tiling)
                released(shared.q, count, tiling.stages)
        weights, slope = _weighed(products, shared, count + 1, reader, at, j, partly, numbers, tiling, group)
        d_weights = warpgroup_mma_wait(0, deps=[more])
        if tiling.second:
            released(shared.d_out, count + 1, tiling.second_stages)
        state = _State(dk, dv, weights, slope, d_weights, count + 1)
    return state


@gluon.jit
def _own_keys(dk_desc, dv_desc, shared, scale, numbers, dtype: gl.constexpr, tiling: gl.constexpr, group: gl.constexpr):
    """Compute what one warp group owns, of every tile."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tiling.block, 16])
    of_left: gl.constexpr = gl.DotOperandLayout(0, of_scores, 2)
    zeros = gl.full([64, tiling.block], 0.0, gl.float32, layout=of_scores)
    count = 0
    done = 0
    for _ in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = noted(shared.notes, done)
        first, whole, whole_end, end, before, after = own_blocks(
            start, first, whole, whole_end, end, numbers, tiling, group
        )
        count = passed_both(shared.q, shared.d_out, count, before, tiling.stages, tiling.second)
        reader = element * numbers.share
        dk = no_sums(0, tiling)
        dv = (0.0,)
        if tiling.dv:
            dv = no_sums(1, tiling)
        j = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        mine = done % tiling.own * tiling.groups + group
        there(shared.k, done, tiling.own)
        if first < end:
            left = tiles_of(shared.k.buffers, mine, K, tiling)
            right = tiles_of(shared.v.buffers, mine, V, tiling)
            if _held(tiling):
                left = held(left, 0, of_left, tiling)
                right = held(right, 1, of_left, tiling)
            started, more = both_products(left, right, shared.q, shared.d_out, count, zeros, Q, OUT, tiling)
            products = warpgroup_mma_wait(parts(tiling, 1), deps=[started])
            at = first
            partly = sides(at, whole, whole_end)
            weights, slope = _weighed(products, shared, count, reader, at, j, partly, numbers, tiling, group)
            d_weights = warpgroup_mma_wait(0, deps=[more])
            if tiling.second:
                released(shared.d_out, count, tiling.second_stages)
            state = _State(dk, dv, weights, slope, d_weights, count)
            for _ in range(numbers.share * (end - first) - 1):
                at += 1
                if tiling.grouped and at == end:
                    # On to the next element that shares these keys.
                    at = first
                    reader += 1
                partly = sides(at, whole, whole_end)
                state = _keys_step(
                    left, right, shared, reader, state, at, j, partly, numbers, zeros, tiling, group, dtype, False
                )
            state = _keys_step(
                left, right, shared, reader, state, at, j, partly, numbers, zeros, tiling, group, dtype, True
            )
            dk = state.dk
            dv = state.dv
            count = state.count
        count = passed_both(shared.q, shared.d_out, count, after, tiling.stages, tiling.second)
        # The gradients leave from where the keys and values were.
        row = start + 64 * group
        stored(shared.k.buffers, mine, dk, scale, dtype, K, tiling)
        if tiling.dv:
            stored(shared.v.buffers, mine, dv, 1.0, dtype, V, tiling)
        fence_async_shared()
        handed_over(dk_desc, shared.k.buffers, mine, element * numbers.share, row, DK, numbers, tiling)
        if tiling.dv:
            handed_over(dv_desc, shared.v.buffers, mine, element * numbers.share, row, DV, numbers, tiling)
        tma.store_wait(0)
        released(shared.k, done, tiling.own)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_keys_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, bias, mask, bounds, rows, scale, numbers, tiling: gl.constexpr
):
    """Write the gradients of k and v; see :func:`hopper_kernel`. Tiles are of keys, blocks of queries.

    ``rows`` has the logarithms and delta of each batch element by turns.
    """
    dtype: gl.constexpr = q_desc.dtype
    stages: gl.constexpr = tiling.stages
    k = pipe(k_desc, tiling.groups * tiling.own * boxes(tiling, K), tiling.own, tiling.groups)
    v = beside(k, v_desc, tiling.groups * tiling.own * boxes(tiling, V))
    q = pipe(q_desc, stages * boxes(tiling, Q), stages, tiling.groups)
    d_out = second_pipe(q, d_out_desc, OUT, tiling)
    added = Added(bias, mask)
    shared = Operands(q, k, v, d_out, beside(q, rows, 2 * stages), added_tiles(added, tiling), notes(tiling.groups))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, rows, added)
    in_groups(
        _own_keys, (dk_desc, dv_desc, shared, scale, numbers, dtype, tiling),
        _copy, (arrays, bounds, shared, numbers), tiling,
    )  # fmt: skip


@gluon.jit
def _weights_alone(
    started, pending: gl.constexpr, shared, count, at, j, partly, numbers, zeros,
    dtype: gl.constexpr, tiling: gl.constexpr,
):  # fmt: skip
    """Return the weights of a block of queries, once at most so many later products are under way."""
    of_queries: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    i = at * tiling.block + gl.arange(0, tiling.block, layout=of_queries)
    logs = shared.rows.buffers.index(count % tiling.stages).reshape([tiling.block]).load(of_queries)
    products = warpgroup_mma_wait(pending, deps=[started])
    released(shared.q, count, tiling.stages)
    weights, _ = weights_of(products, (0.0, 0), i, j, logs, partly, False, numbers, tiling)
    return weights.to(dtype)


@gluon.jit
def _adding(weights, shared, count, sums, tiling: gl.constexpr):
    """Start adding the product of a block's weights with the gradients of the result."""
    there(shared.d_out, count, tiling.stages)
    return adding(weights, tiles_of(shared.d_out.buffers, count % tiling.stages, OUT, tiling), sums, 1, tiling)


@gluon.jit
def _own_values(dv_desc, shared, out, numbers, dtype: gl.constexpr, tiling: gl.constexpr, group: gl.constexpr):
    """What a warp group does for the gradient of v alone: it begins the next block before it adds this one up."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tiling.block, 16])
    zeros = gl.full([64, tiling.block], 0.0, gl.float32, layout=of_scores)
    count = 0
    done = 0
    keys = tiles_of(shared.k.buffers, group, K, tiling)
    for _ in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = noted(shared.notes, done)
        first, whole, whole_end, end, before, after = own_blocks(
            start, first, whole, whole_end, end, numbers, tiling, group
        )
        count = passed_both(shared.q, shared.d_out, count, before, tiling.stages, tiling.stages)
        sums = no_sums(1, tiling)
        j = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        there(shared.k, done, 1)
        if first < end:
            started = begun(keys, shared.q, count, zeros, Q, tiling)
            at = first
            partly = sides(at, whole, whole_end)
            weights = _weights_alone(started, 0, shared, count, at, j, partly, numbers, zeros, dtype, tiling)
            for _ in range(numbers.share * (end - first) - 1):
                at += 1
                if tiling.grouped and at == end:
                    # On to the next element that shares these keys.
                    at = first
                partly = sides(at, whole, whole_end)
                started = begun(keys, shared.q, count + 1, zeros, Q, tiling)
                sums = _adding(weights, shared, count, sums, tiling)
                pending: gl.constexpr = parts(tiling, 1)
                weights = _weights_alone(
                    started, pending, shared, count + 1, at, j, partly, numbers, zeros, dtype, tiling
                )
                sums = added(sums, 0, 1, tiling)
                released(shared.d_out, count, tiling.stages)
                count += 1
            sums = added(_adding(weights, shared, count, sums, tiling), 0, 1, tiling)
            released(shared.d_out, count, tiling.stages)
            count += 1
        count = passed_both(shared.q, shared.d_out, count, after, tiling.stages, tiling.stages)
        of = element * numbers.share
        leave(dv_desc, out, group, sums, 1.0, of, start + 64 * group, dtype, DV, numbers, tiling)
        tma.store_wait(0)
        released(shared.k, done, 1)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_values_kernel(q_desc, k_desc, d_out_desc, dv_desc, rows, numbers, tiling: gl.constexpr):
    """Write the gradient of v; see :func:`hopper_keys_kernel`. There is no bias and no mask."""
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = tiling.groups
    k = pipe(k_desc, groups * boxes(tiling, K), 1, groups)
    q = pipe(q_desc, tiling.stages * boxes(tiling, Q), tiling.stages, groups)
    d_out = second_pipe(q, d_out_desc, OUT, tiling)
    shared = Operands(q, k, None, d_out, beside(q, rows, tiling.stages), None, notes(groups))
    out = k.buffers
    if not tiling.alike:
        out = gl.allocate_shared_memory(dtype, [groups * boxes(tiling, V)] + dv_desc.block_type.shape, dv_desc.layout)
    arrays = Operands(q_desc, k_desc, None, d_out_desc, rows, None)
    in_groups(
        _own_values, (dv_desc, shared, out, numbers, dtype, tiling), _copy, (arrays, None, shared, numbers), tiling
    )
