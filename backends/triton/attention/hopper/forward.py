"""The forward kernel for Hopper: copies by the hardware, products and exponentials of several tiles side by side.

One warp of a program copies tiles of q, k and v to shared memory (TMA), some blocks of keys ahead. One to three warp
groups have 64 queries each. A group starts the scores of the next block of keys, then the product of its weights with
the values of this one, and works out the next weights while the tensor cores are busy with that. The result leaves
through shared memory, while the group goes on with its next tile.

After FlashAttention-3 (Shah et al., 2024, https://arxiv.org/abs/2407.08608), algorithm 2.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.hopper.pipes import (
    fetch,
    fetch_own,
    passed,
    passed_both,
    pipe,
    released,
    room,
    there,
)
from einops_fast.backends.triton.attention.hopper.positions import own_blocks, sides, tile_of, within_bounds, without
from einops_fast.backends.triton.attention.hopper.products import (
    added,
    adding,
    begun,
    leave,
    no_sums,
    parts,
    scaled,
    tiles_of,
)
from einops_fast.backends.triton.attention.hopper.scores import (
    Added,
    added_of,
    added_tiles,
    fetch_added,
    hidden,
    highest,
    powers,
    scored,
)
from einops_fast.backends.triton.attention.hopper.tiles import OUT, K, Q, V, boxes
from einops_fast.backends.triton.attention.hopper.turns import (
    in_groups,
    my_turn,
    next_turn,
    note,
    noted,
    notes,
    turns_of,
)
from einops_fast.backends.triton.device.barriers import barrier


class _Shared(NamedTuple):
    """What is in shared memory."""

    q: Any
    k: Any
    v: Any
    out: Any
    added: Any
    turns: Any
    notes: Any


class _State(NamedTuple):
    """What a warp group knows of its rows after some blocks of keys."""

    weights: Any  # of the last block, whose values aren't added yet
    sums: Any  # of values
    # the largest score, in units of `1 / log2(e)`, and the sum of the weights
    most: Any
    total: Any
    count: Any  # blocks of all tiles so far


@gluon.jit
def _copy(q_desc, k_desc, v_desc, added, bounds, shared, numbers, tiling: gl.constexpr):
    """Copy into shared memory, by one warp, what the other warps read."""
    k_bytes: gl.constexpr = k_desc.block_type.nbytes * boxes(tiling, K) + tiling.added_bytes
    v_bytes: gl.constexpr = v_desc.block_type.nbytes * boxes(tiling, V)
    count = 0
    done = 0
    lap = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = tile_of(turn, numbers, tiling)
        first, end = within_bounds(bounds, element, start, first, end, numbers, tiling)
        note(shared.notes, lap, element, start, first, whole, whole_end, end)
        lap += 1  # noqa: SIM113, nothing is enumerated while compiling
        if tiling.reused and first >= end:
            # The memory has to be waited for all the same, since the result leaves from there.
            fetch_own(q_desc, None, shared.q, None, done, element, start, Q, Q, numbers, tiling)
            done += 1
        for at in range(end - 1, first - 1, -1):
            stage = count % tiling.stages
            full = room(shared.k, count, tiling.stages, k_bytes)
            fetch(k_desc, shared.k.buffers, stage, full, element, at * tiling.block, K, numbers, tiling)
            fetch_added(added, shared.added, stage, full, element, start, at * tiling.block, numbers, tiling)
            if at == end - 1:
                # After the first block, for which there is room earlier.
                fetch_own(q_desc, None, shared.q, None, done, element, start, Q, Q, numbers, tiling)
                done += 1
            full = room(shared.v, count, tiling.stages, v_bytes)
            fetch(v_desc, shared.v.buffers, stage, full, element, at * tiling.block, V, numbers, tiling)
            count += 1


@gluon.jit
def _values(weights, sums, values, count, tiling: gl.constexpr):
    """Start adding the product of the weights with a block of values."""
    there(values, count, tiling.stages)
    return adding(weights, tiles_of(values.buffers, count % tiling.stages, V, tiling), sums, 1, tiling)


@gluon.jit
def _weights(products, extra, i, at, partly, most, total, numbers, tiling: gl.constexpr):
    """Weights of a block, by how much all sums before it fade, and the rows' new maxima and totals."""
    bias, mask = extra
    scores, scale, _ = scored(products, bias, numbers, tiling)
    scores = hidden(scores, mask, float("-inf"), tiling)
    if partly > 0:
        j = at * tiling.block + gl.arange(0, tiling.block, layout=gl.SliceLayout(0, scores.type.layout))
        scores = without(scores, i[:, None], j[None, :], float("-inf"), partly, numbers, tiling)
    new = gl.maximum(most, highest(scores, bias, tiling) * scale)
    # But for a row that has seen nothing yet.
    reference = gl.where(new == float("-inf"), 0.0, new)
    weights = powers(scores, scale, reference[:, None], bias, tiling)
    fade = gl.exp2(most - reference)
    return weights, fade, new, total * fade + gl.sum(weights, 1)


@gluon.jit
def _extra(shared, count, element, i, at, group: gl.constexpr, numbers, zeros, tiling: gl.constexpr):
    """Bias and mask of a block of keys."""
    layout: gl.constexpr = zeros.type.layout
    j = at * tiling.block + gl.arange(0, tiling.block, layout=gl.SliceLayout(0, layout))
    stage = count % tiling.stages
    return added_of(shared.added, stage, group, element, i[:, None], j[None, :], layout, numbers, tiling)


@gluon.jit
def _step(
    queries, shared, state, element, i, at, partly, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr,
):  # fmt: skip
    """One block of keys, and the values of the block before."""
    count = state.count
    my_turn(shared.turns, count, group, tiling)
    started = begun(queries, shared.k, count, zeros, K, tiling)
    sums = _values(state.weights, state.sums, shared.v, count - 1, tiling)
    next_turn(shared.turns, group, tiling)
    extra = _extra(shared, count, element, i, at, group, numbers, zeros, tiling)
    products = warpgroup_mma_wait(parts(tiling, 1), deps=[started])
    released(shared.k, count, tiling.stages)
    weights, fade, most, total = _weights(products, extra, i, at, partly, state.most, state.total, numbers, tiling)
    sums = added(sums, 0, 1, tiling)
    released(shared.v, count - 1, tiling.stages)
    return _State(weights.to(state.weights.dtype), scaled(sums, fade, 1, tiling), most, total, count + 1)


@gluon.jit
def _passed(shared, count, blocks, tiling: gl.constexpr, group: gl.constexpr):
    """Let blocks go by of which the warp group's queries see nothing, and count them."""
    for at in range(count, count + blocks):
        my_turn(shared.turns, at, group, tiling)
        next_turn(shared.turns, group, tiling)
    return passed_both(shared.k, shared.v, count, blocks, tiling.stages, tiling.stages)


@gluon.jit
def _attend(out_desc, lse, shared, numbers, dtype: gl.constexpr, tiling: gl.constexpr, group: gl.constexpr):
    """Compute the queries that one warp group owns, of every tile."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, tiling.block, 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, of_scores)
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
        count = _passed(shared, count, after, tiling, group)
        i = start + 64 * group + gl.arange(0, 64, layout=of_rows)
        most = gl.full([64], float("-inf"), gl.float32, layout=of_rows)
        total = gl.full([64], 0.0, gl.float32, layout=of_rows)
        sums = no_sums(1, tiling)
        if first < end:
            there(shared.q, done, tiling.own)
            queries = tiles_of(shared.q.buffers, done % tiling.own * tiling.groups + group, Q, tiling)
            my_turn(shared.turns, count, group, tiling)
            started = begun(queries, shared.k, count, zeros, K, tiling)
            next_turn(shared.turns, group, tiling)
            extra = _extra(shared, count, element, i, end - 1, group, numbers, zeros, tiling)
            products = warpgroup_mma_wait(0, deps=[started])
            released(shared.k, count, tiling.stages)
            partly = sides(end - 1, whole, whole_end)
            weights, _fade, most, total = _weights(products, extra, i, end - 1, partly, most, total, numbers, tiling)
            state = _State(weights.to(dtype), sums, most, total, count + 1)
            for at in range(end - 2, first - 1, -1):
                partly = sides(at, whole, whole_end)
                state = _step(queries, shared, state, element, i, at, partly, numbers, zeros, tiling, group)
            if not tiling.reused:
                released(shared.q, done, tiling.own)
                done += 1
            count = state.count
            most = state.most
            total = state.total
            sums = added(_values(state.weights, state.sums, shared.v, count - 1, tiling), 0, 1, tiling)
            released(shared.v, count - 1, tiling.stages)
        elif fetched and not tiling.reused:
            # They came for the other groups.
            passed(shared.q, done, 1, tiling.own)
            done += 1
        count = _passed(shared, count, before, tiling, group)
        divisor = gl.where(total == 0.0, 1.0, total)
        sums = scaled(sums, 1.0 / divisor, 1, tiling)
        row = start + 64 * group
        if tiling.reused:
            there(shared.q, done, tiling.own)
            mine = done % tiling.own * tiling.groups + group
            leave(out_desc, shared.q.buffers, mine, sums, 1.0, element, row, dtype, OUT, numbers, tiling)
            tma.store_wait(0)
            released(shared.q, done, tiling.own)
            done += 1
        else:
            # What was handed over for the tile before has to be read before it's overwritten.
            tma.store_wait(0)
            barrier()
            leave(out_desc, shared.out, group, sums, 1.0, element, row, dtype, OUT, numbers, tiling)
        # Not before the fence, which would wait for it.
        logs = gl.where(total == 0.0, float("-inf"), (most + gl.log2(divisor)) * 0.6931471805599453)
        gl.store(lse + element.to(gl.int64) * numbers.q_len + i, logs, mask=i < numbers.q_len)
    tma.store_wait(0)


@gluon.jit
def hopper_kernel(q_desc, k_desc, v_desc, out_desc, bias, mask, bounds, lse, numbers, tiling: gl.constexpr):
    """Write the result, and the logarithms of its rows' sums without gaps.

    Descriptors have three batch axes, of size 1 where an operand lacks one, positions, and features or keys. Bias and
    mask are addresses if they have no tiles, and ``None`` if there are none; as ``bounds`` are, see
    :func:`~.positions.within_bounds`.
    """
    dtype: gl.constexpr = q_desc.dtype
    q = pipe(q_desc, tiling.groups * tiling.own * boxes(tiling, Q), tiling.own, tiling.groups)
    k = pipe(k_desc, tiling.stages * boxes(tiling, K), tiling.stages, tiling.groups)
    v = pipe(v_desc, tiling.stages * boxes(tiling, V), tiling.stages, tiling.groups)
    out = q.buffers
    if not tiling.reused:
        of_out: gl.constexpr = tiling.groups * boxes(tiling, OUT)
        out = gl.allocate_shared_memory(dtype, [of_out] + out_desc.block_type.shape, out_desc.layout)
    added = Added(bias, mask)
    shared = _Shared(q, k, v, out, added_tiles(added, tiling), turns_of(tiling), notes(tiling.groups))
    in_groups(
        _attend, (out_desc, lse, shared, numbers, dtype, tiling),
        _copy, (q_desc, k_desc, v_desc, added, bounds, shared, numbers), tiling,
    )  # fmt: skip
