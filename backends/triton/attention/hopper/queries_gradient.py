"""The gradient of q on Hopper, and that of a bias that lacks no axis: a program owns tiles of queries."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.hopper.backward import Operands, both_products, delta_of, logs_of, weights_of
from einops_fast.backends.triton.attention.hopper.pipes import (
    beside,
    coordinates,
    fetch,
    fetch_own,
    flat,
    passed,
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
    features_of,
    held,
    leave,
    no_sums,
    parts,
    tiles_of,
)
from einops_fast.backends.triton.attention.hopper.scores import Added, added_of, added_tiles, fetch_added
from einops_fast.backends.triton.attention.hopper.tiles import D_BIAS, OUT, K, Q, V, boxes
from einops_fast.backends.triton.attention.hopper.turns import in_groups, note, noted, notes
from einops_fast.backends.triton.device.barriers import barrier


class _State(NamedTuple):
    """What a warp group knows of its queries."""

    sums: Any  # their gradient, of the blocks before
    weights: Any  # of a block of keys
    slope: Any  # derivative of its scores by scaled products
    d_weights: Any  # gradients of the weights
    count: Any  # blocks of all tiles before


@gluon.constexpr_function
def _held(tiling):
    """Whether queries and gradients of the result are kept in registers: blocks of wide heads are short enough."""
    return features_of(tiling, 0) + features_of(tiling, 1) > 128 and not (
        tiling.softcap or tiling.patchy or tiling.wide
    )


@gluon.constexpr_function
def _early(tiling):
    """Whether the next block's products are begun before this one's are added up: there are registers for both."""
    return features_of(tiling, 0) <= 192


@gluon.jit
def _copy(arrays, bounds, shared, numbers, tiling: gl.constexpr):
    """Copy into shared memory, by one warp, what the other warps read."""
    second: gl.constexpr = tiling.second_stages
    v_bytes: gl.constexpr = arrays.v.block_type.nbytes * boxes(tiling, V)
    block_bytes: gl.constexpr = tiling.stage_bytes - (v_bytes if tiling.second else 0)
    count = 0
    done = 0
    lap = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = tile_of(turn, numbers, tiling)
        first, end = within_bounds(bounds, element, start, first, end, numbers, tiling)
        note(shared.notes, lap, element, start, first, whole, whole_end, end)
        lap += 1  # noqa: SIM113, nothing is enumerated while compiling
        for at in range(end - 1, first - 1, -1):
            stage = count % tiling.stages
            full = room(shared.k, count, tiling.stages, block_bytes)
            fetch(arrays.k, shared.k.buffers, stage, full, element, at * tiling.block, K, numbers, tiling)
            fetch_added(arrays.added, shared.added, stage, full, element, start, at * tiling.block, numbers, tiling)
            if tiling.second:
                full = room(shared.v, count, second, v_bytes)
            fetch(arrays.v, shared.v.buffers, count % second, full, element, at * tiling.block, V, numbers, tiling)
            count += 1
            if at == end - 1:
                # After the first block, for which there is memory earlier.
                fetch_own(arrays.q, arrays.d_out, shared.q, shared.d_out, done, element, start, Q, OUT, numbers, tiling)
                done += 1
        if tiling.wide and first >= end:
            # The memory has to be waited for all the same, since the gradient leaves from there.
            fetch_own(arrays.q, arrays.d_out, shared.q, shared.d_out, done, element, start, Q, OUT, numbers, tiling)
            done += 1


@gluon.jit
def _weighed(products, shared, count, element, at, partly, i, logs, numbers, tiling: gl.constexpr, group: gl.constexpr):
    """The weights of a block of keys, and their slope."""
    layout: gl.constexpr = products.type.layout
    j = at * tiling.block + gl.arange(0, tiling.block, layout=gl.SliceLayout(0, layout))
    stage = count % tiling.stages
    extra = added_of(shared.added, stage, group, element, i[:, None], j[None, :], layout, numbers, tiling)
    return weights_of(products, extra, i, j, logs, partly, True, numbers, tiling)


@gluon.jit
def _queries_step(
    queries, d_out, shared, d_bias, state, element, start, at, whole, whole_end, i, logs, delta, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr, last: gl.constexpr,
):  # fmt: skip
    """Add a block of keys to the gradient. Unless it's the last, have the next one's weights worked out meanwhile."""
    count = state.count
    stage = count % tiling.stages
    keys = tiles_of(shared.k.buffers, stage, K, tiling)
    d_scores = state.weights * (state.d_weights - delta[:, None])
    if tiling.d_bias:
        # They leave from where the bias was.
        own = shared.added.bias.index(stage * tiling.groups + group)
        flat(shared.added.bias, stage * tiling.groups + group).store(d_scores.to(d_bias.dtype))
        fence_async_shared()
        place = coordinates(element, start + 64 * group, at * tiling.block, D_BIAS, numbers, tiling)
        tma.async_copy_shared_to_global(d_bias, place, own)
    sums = adding((d_scores * state.slope).to(dtype), keys, state.sums, 0, tiling)
    if last or not _early(tiling):
        sums = added(sums, 0, 0, tiling)
    if not last:
        started, more = both_products(queries, d_out, shared.k, shared.v, count + 1, zeros, K, V, tiling)
        products = warpgroup_mma_wait(parts(tiling, 1), deps=[started])
        if _early(tiling):
            sums = added(sums, parts(tiling, 1), 0, tiling)
    if tiling.d_bias:
        tma.store_wait(0)
    released(shared.k, count, tiling.stages)
    if not last:
        partly = sides(at - 1, whole, whole_end)
        weights, slope = _weighed(products, shared, count + 1, element, at - 1, partly, i, logs, numbers, tiling, group)
        d_weights = warpgroup_mma_wait(0, deps=[more])
        if tiling.second:
            released(shared.v, count + 1, tiling.second_stages)
        state = _State(sums, weights, slope, d_weights, count + 1)
    else:
        state = _State(sums, state.weights, state.slope, state.d_weights, count + 1)
    return state


@gluon.jit
def _own_queries(
    dq_desc, d_bias, rows, shared, out, scale, numbers,
    dtype: gl.constexpr, tiling: gl.constexpr, group: gl.constexpr,
):  # fmt: skip
    """Compute what one warp group owns, of every tile."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tiling.block, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, of_scores)
    of_left: gl.constexpr = gl.DotOperandLayout(0, of_scores, 2)
    zeros = gl.full([64, tiling.block], 0.0, gl.float32, layout=of_scores)
    count = 0
    done = 0
    lap = 0
    for _ in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = noted(shared.notes, lap)
        lap += 1  # noqa: SIM113, nothing is enumerated while compiling
        fetched = first < end
        first, whole, whole_end, end, before, after = own_blocks(
            start, first, whole, whole_end, end, numbers, tiling, group
        )
        count = passed_both(shared.k, shared.v, count, after, tiling.stages, tiling.second)
        sums = no_sums(0, tiling)
        if first < end:
            i = start + 64 * group + gl.arange(0, 64, layout=of_rows)
            logs = logs_of(rows, element, i, numbers)
            delta = delta_of(rows, element, i, numbers)
            there(shared.q, done, tiling.own)
            queries = tiles_of(shared.q.buffers, done % tiling.own * tiling.groups + group, Q, tiling)
            d_out = tiles_of(shared.d_out.buffers, done % tiling.own * tiling.groups + group, OUT, tiling)
            if _held(tiling):
                # From here on their memory is for the next tile's.
                queries = held(queries, 0, of_left, tiling)
                d_out = held(d_out, 1, of_left, tiling)
                released(shared.q, done, tiling.own)
            started, more = both_products(queries, d_out, shared.k, shared.v, count, zeros, K, V, tiling)
            products = warpgroup_mma_wait(parts(tiling, 1), deps=[started])
            partly = sides(end - 1, whole, whole_end)
            weights, slope = _weighed(
                products, shared, count, element, end - 1, partly, i, logs, numbers, tiling, group
            )
            d_weights = warpgroup_mma_wait(0, deps=[more])
            if tiling.second:
                released(shared.v, count, tiling.second_stages)
            state = _State(sums, weights, slope, d_weights, count)
            for at in range(end - 1, first, -1):
                state = _queries_step(
                    queries, d_out, shared, d_bias, state, element, start, at, whole, whole_end, i, logs, delta,
                    numbers, zeros, tiling, group, dtype, False,
                )  # fmt: skip
            state = _queries_step(
                queries, d_out, shared, d_bias, state, element, start, first, whole, whole_end, i, logs, delta, numbers,
                zeros, tiling, group, dtype, True,
            )  # fmt: skip
            sums = state.sums
            count = state.count
            if not (_held(tiling) or tiling.wide):
                released(shared.q, done, tiling.own)
            if not tiling.wide:
                done += 1
        elif fetched and not tiling.wide:
            # They came for the other group.
            passed(shared.q, done, 1, tiling.own)
            done += 1
        count = passed_both(shared.k, shared.v, count, before, tiling.stages, tiling.second)
        row = start + 64 * group
        if tiling.wide:
            # It leaves from where the queries were.
            there(shared.q, done, tiling.own)
            mine = done % tiling.own * tiling.groups + group
            leave(dq_desc, out, mine, sums, scale, element, row, dtype, Q, numbers, tiling)
            tma.store_wait(0)
            released(shared.q, done, tiling.own)
            done += 1
        else:
            # What was handed over for the tile before has to be read before it's overwritten.
            tma.store_wait(0)
            barrier()
            leave(dq_desc, out, group, sums, scale, element, row, dtype, Q, numbers, tiling)
    tma.store_wait(0)


@gluon.jit
def hopper_queries_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dq_desc, bias, mask, d_bias, bounds, rows, scale, numbers, tiling: gl.constexpr
):
    """Write the gradient of q; see :func:`hopper_kernel`.

    If ``tiling.d_bias``, that of the bias, too, which then lacks no axis; but for blocks that aren't seen.
    """
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = tiling.groups
    q = pipe(q_desc, groups * tiling.own * boxes(tiling, Q), tiling.own, groups)
    d_out = beside(q, d_out_desc, groups * tiling.own * boxes(tiling, OUT))
    k = pipe(k_desc, tiling.stages * boxes(tiling, K), tiling.stages, groups)
    v = second_pipe(k, v_desc, V, tiling)
    if tiling.wide:
        out = q.buffers
    else:
        out = gl.allocate_shared_memory(dtype, [groups * boxes(tiling, Q)] + dq_desc.block_type.shape, dq_desc.layout)
    added = Added(bias, mask)
    shared = Operands(q, k, v, d_out, None, added_tiles(added, tiling), notes(groups))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, None, added)
    in_groups(
        _own_queries, (dq_desc, d_bias, rows, shared, out, scale, numbers, dtype, tiling),
        _copy, (arrays, bounds, shared, numbers), tiling,
    )  # fmt: skip
