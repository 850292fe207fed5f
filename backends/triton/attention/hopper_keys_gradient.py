"""The gradients of k and v on Hopper: a program owns tiles of keys and goes through the queries that see them."""

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

from einops_fast.backends.triton.attention.hopper_backward import Operands, both_products, weights_of
from einops_fast.backends.triton.attention.hopper_scores import added_arrays, added_of, added_tiles, fetch_added
from einops_fast.backends.triton.attention.hopper_tiles import (
    OUT,
    K,
    Q,
    V,
    beside,
    coordinates,
    fetch,
    flat,
    pipe,
    queries_of,
    released,
    room,
    stage_bytes,
    there,
    without,
)
from einops_fast.backends.triton.barriers import barrier
from einops_fast.backends.triton.indexing import field

__all__ = ["hopper_keys_kernel"]


class _Shared(NamedTuple):
    """What is in shared memory; ``rows`` has the numbers of a block's queries."""

    q: Any
    k: Any
    v: Any
    d_out: Any
    rows: Any
    added: Any


class _State(NamedTuple):
    """What a warp group knows of its keys.

    Attributes:
        dk, dv: gradients, of the blocks before.
        weights: of a block of queries.
        slope: derivative of its scores by scaled products.
        d_weights: gradients of the weights.
        count: blocks of all tiles before.
    """

    dk: Any
    dv: Any
    weights: Any
    slope: Any
    d_weights: Any
    count: Any


@gluon.constexpr_function
def _early(tiling):
    """Whether the next block's products are begun before this one's are added up: there are registers for both."""
    return tiling.head + tiling.v_head <= 192


@gluon.constexpr_function
def _held(tiling):
    """Whether there are also registers for the keys and values."""
    return tiling.head + tiling.v_head <= 128


@gluon.jit
def _copy(arrays, rows, shared, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own: gl.constexpr = field(tiling, "own")
    own_bytes: gl.constexpr = (arrays.k.block_type.nbytes + arrays.v.block_type.nbytes) * groups
    block_bytes: gl.constexpr = stage_bytes(tiling) + 2 * rows.block_type.nbytes
    count = 0
    done = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, _, _, end = queries_of(turn, numbers, tiling)
        reader = element * numbers.share
        # Even where no query sees them: the memory has to be waited for, since gradients leave from there.
        full = room(shared.k, done, own, own_bytes)
        for group in gl.static_range(groups):
            row = start + 64 * group
            at = done % own * groups + group
            fetch(arrays.k, shared.k.buffers, at, full, reader, row, K, numbers, tiling)
            fetch(arrays.v, shared.v.buffers, at, full, reader, row, V, numbers, tiling)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling
        for reader in range(element * numbers.share, (element + 1) * numbers.share):
            for at in range(first, end):
                stage = count % stages
                full = room(shared.q, count, stages, block_bytes)
                fetch(arrays.q, shared.q.buffers, stage, full, reader, at * block, Q, numbers, tiling)
                fetch(arrays.d_out, shared.d_out.buffers, stage, full, reader, at * block, OUT, numbers, tiling)
                for which in gl.static_range(2):
                    into = shared.rows.buffers.index(2 * stage + which)
                    tma.async_copy_global_to_shared(rows, (2 * reader + which, at * block), full, into)
                fetch_added(arrays.added, shared.added, stage, full, reader, at * block, start, numbers, tiling)
                count += 1


@gluon.jit
def _weighed(products, shared, count, reader, at, j, partly, numbers, tiling: gl.constexpr, group: gl.constexpr):
    """The weights of a block of queries, and their slope."""
    block: gl.constexpr = field(tiling, "block")
    layout: gl.constexpr = products.type.layout
    of_queries: gl.constexpr = gl.SliceLayout(0, layout)
    stage = count % field(tiling, "stages")
    i = at * block + gl.arange(0, block, layout=of_queries)
    extra = added_of(shared.added, stage, group, reader, i[None, :], j[:, None], layout, numbers, tiling)
    logs = shared.rows.buffers.index(2 * stage).reshape([block]).load(of_queries)
    weights, slope = weights_of(products, extra, logs[None, :], numbers, tiling)
    if field(tiling, "left") or field(tiling, "right"):  # noqa: SIM102, known while compiling
        # A branch, and not a loop of its own: there are no registers for two.
        if partly:
            weights = without(weights, i[None, :], j[:, None], 0.0, numbers, tiling)
    return weights, slope


@gluon.jit
def _keys_step(
    keys, values, shared, reader, state, at, j, partly, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr, last: gl.constexpr,
):  # fmt: skip
    """Add a block of queries to the gradients. Unless it's the last, have the next one's weights worked out meanwhile.

    ``reader``, ``at`` and ``partly`` are about the next one.
    """
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    count = state.count
    stage = count % stages
    queries = flat(shared.q.buffers, stage)
    d_out = flat(shared.d_out.buffers, stage)
    given = gl.convert_layout(state.weights.to(dtype), gl.DotOperandLayout(0, state.dv.type.layout, 2))
    adding = warpgroup_mma(given, d_out, state.dv, is_async=True)
    delta = shared.rows.buffers.index(2 * stage + 1).reshape([block])
    delta = delta.load(gl.SliceLayout(0, zeros.type.layout))
    d_scores = state.weights * (state.d_weights - delta[None, :]) * state.slope
    d_scores = gl.convert_layout(d_scores.to(dtype), gl.DotOperandLayout(0, state.dk.type.layout, 2))
    added = warpgroup_mma(d_scores, queries, state.dk, is_async=True)
    if last or not _early(tiling):
        dv, dk = warpgroup_mma_wait(0, deps=[adding, added])
        released(shared.q, count, stages)
    if last:
        state = _State(dk, dv, state.weights, state.slope, state.d_weights, count + 1)
    else:
        started, more = both_products(keys, values, shared.q, shared.d_out, count + 1, zeros, stages)
        if _early(tiling):
            products, dv, dk = warpgroup_mma_wait(1, deps=[started, adding, added])
            released(shared.q, count, stages)
        else:
            products = warpgroup_mma_wait(1, deps=[started])
        weights, slope = _weighed(products, shared, count + 1, reader, at, j, partly, numbers, tiling, group)
        state = _State(dk, dv, weights, slope, warpgroup_mma_wait(0, deps=[more]), count + 1)
    return state


@gluon.jit
def _own_keys(dk_desc, dv_desc, shared, scale, numbers, tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr):
    """What a warp group does."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own: gl.constexpr = field(tiling, "own")
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    of_dk: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "head"), 16])
    of_dv: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "v_head"), 16])
    of_left: gl.constexpr = gl.DotOperandLayout(0, of_scores, 2)
    zeros = gl.zeros([64, block], gl.float32, layout=of_scores)
    count = 0
    done = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = queries_of(turn, numbers, tiling)
        reader = element * numbers.share
        dk = gl.zeros([64, field(tiling, "head")], gl.float32, layout=of_dk)
        dv = gl.zeros([64, field(tiling, "v_head")], gl.float32, layout=of_dv)
        j = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        mine = done % own * groups + group
        keys = flat(shared.k.buffers, mine)
        values = flat(shared.v.buffers, mine)
        there(shared.k, done, own)
        if first < end:
            left = keys
            right = values
            if _held(tiling):
                left = keys.load(of_left)
                right = values.load(of_left)
            started, more = both_products(left, right, shared.q, shared.d_out, count, zeros, stages)
            products = warpgroup_mma_wait(1, deps=[started])
            at = first
            partly = (at < whole) | (at >= whole_end)
            weights, slope = _weighed(products, shared, count, reader, at, j, partly, numbers, tiling, group)
            state = _State(dk, dv, weights, slope, warpgroup_mma_wait(0, deps=[more]), count)
            for _ in range(numbers.share * (end - first) - 1):
                at += 1
                if field(tiling, "grouped"):  # noqa: SIM102, known while compiling
                    if at == end:
                        # On to the next element that shares these keys.
                        at = first
                        reader += 1
                partly = (at < whole) | (at >= whole_end)
                state = _keys_step(
                    left, right, shared, reader, state, at, j, partly, numbers, zeros, tiling, group, dtype, False
                )
            state = _keys_step(
                left, right, shared, reader, state, at, j, partly, numbers, zeros, tiling, group, dtype, True
            )
            dk = state.dk
            dv = state.dv
            count = state.count
        # The gradients leave from where the keys and values were.
        keys.store((dk * scale).to(dtype))
        values.store(dv.to(dtype))
        fence_async_shared()
        place = coordinates(element * numbers.share, start + 64 * group, 0, K, numbers, tiling)
        tma.async_copy_shared_to_global(dk_desc, place, shared.k.buffers.index(mine))
        place = coordinates(element * numbers.share, start + 64 * group, 0, V, numbers, tiling)
        tma.async_copy_shared_to_global(dv_desc, place, shared.v.buffers.index(mine))
        tma.store_wait(0)
        released(shared.k, done, own)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_keys_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, bias, mask, rows, scale, numbers, tiling: gl.constexpr
):
    """Write the gradients of k and v; see :func:`hopper_kernel`. Tiles are of keys, blocks of queries.

    ``rows`` has the logarithms and delta of each batch element by turns.
    """
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    own: gl.constexpr = field(tiling, "own")
    k = pipe(k_desc, groups * own, own, groups)
    v = beside(k, v_desc, groups * own)
    q = pipe(q_desc, stages, stages, groups)
    d_out = beside(q, d_out_desc, stages)
    added = added_arrays(bias, mask, k_desc, tiling)
    shared = _Shared(q, k, v, d_out, beside(q, rows, 2 * stages), added_tiles(added, tiling))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, added)
    fence_async_shared()
    barrier()
    gl.warp_specialize(
        [
            (_own_keys, (dk_desc, dv_desc, shared, scale, numbers, tiling, 0, dtype)),
            (_own_keys, (dk_desc, dv_desc, shared, scale, numbers, tiling, 1, dtype)),
            (_copy, (arrays, rows, shared, numbers, tiling)),
        ],
        [4, 1],
        [240, 24],
    )
