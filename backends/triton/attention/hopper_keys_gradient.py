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

from einops_fast.backends.triton.attention.hopper_backward import Operands, Rows, delta_of, logs_of, weights_of
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


class _Sums(NamedTuple):
    """Gradients of a tile of keys, and blocks of all tiles so far."""

    dk: Any
    dv: Any
    count: Any


@gluon.jit
def _copy(arrays, shared, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own_bytes: gl.constexpr = (arrays.k.block_type.nbytes + arrays.v.block_type.nbytes) * groups
    block_bytes: gl.constexpr = stage_bytes(tiling)
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, _, _, end = queries_of(tile, numbers, tiling)
        reader = element * numbers.share
        # Even where no query sees them: the memory has to be waited for, since gradients leave from there.
        full = room(shared.k, done, 1, own_bytes)
        for group in gl.static_range(groups):
            row = start + 64 * group
            fetch(arrays.k, shared.k.buffers, group, full, reader, row, K, numbers, tiling)
            fetch(arrays.v, shared.v.buffers, group, full, reader, row, V, numbers, tiling)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling
        for reader in range(element * numbers.share, (element + 1) * numbers.share):
            for at in range(first, end):
                stage = count % stages
                full = room(shared.q, count, stages, block_bytes)
                fetch(arrays.q, shared.q.buffers, stage, full, reader, at * block, Q, numbers, tiling)
                fetch(arrays.d_out, shared.d_out.buffers, stage, full, reader, at * block, OUT, numbers, tiling)
                fetch_added(arrays.added, shared.added, stage, full, reader, at * block, start, numbers, tiling)
                count += 1


@gluon.jit
def _keys_step(
    keys, values, shared, rows, reader, state, at, j, partly, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """One block of queries: what it adds to the gradients of the keys and values."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    layout: gl.constexpr = zeros.type.layout
    count = state.count
    stage = count % stages
    i = at * block + gl.arange(0, block, layout=gl.SliceLayout(0, layout))
    offset = reader.to(gl.int64) * numbers.q_len
    logs = logs_of(rows, offset, i, numbers)
    delta = delta_of(rows, offset, i, numbers)
    there(shared.q, count, stages)
    queries = flat(shared.q.buffers, stage)
    d_out = flat(shared.d_out.buffers, stage)
    started = warpgroup_mma(keys, queries.permute((1, 0)), zeros, use_acc=False, is_async=True)
    more = warpgroup_mma(values, d_out.permute((1, 0)), zeros, use_acc=False, is_async=True)
    extra = added_of(shared.added, stage, group, reader, i[None, :], j[:, None], layout, numbers, tiling)
    weights, slope = weights_of(warpgroup_mma_wait(1, deps=[started]), extra, logs[None, :], numbers, tiling)
    if field(tiling, "left") or field(tiling, "right"):  # noqa: SIM102, known while compiling
        # A branch, and not a loop of its own as elsewhere: there are no registers for two.
        if partly:
            weights = without(weights, i[None, :], j[:, None], 0.0, numbers, tiling)
    rounded = weights.to(dtype)
    given = gl.convert_layout(rounded, gl.DotOperandLayout(0, state.dv.type.layout, 2))
    if field(tiling, "head") + field(tiling, "v_head") > 128:
        # They take half the registers like this; their product is rounded as much.
        weights = rounded.to(gl.float32)
    adding = warpgroup_mma(given, d_out, state.dv, is_async=True)
    d_scores = weights * (warpgroup_mma_wait(1, deps=[more]) - delta[None, :]) * slope
    d_scores = gl.convert_layout(d_scores.to(dtype), gl.DotOperandLayout(0, state.dk.type.layout, 2))
    added = warpgroup_mma(d_scores, queries, state.dk, is_async=True)
    dv, dk = warpgroup_mma_wait(0, deps=[adding, added])
    released(shared.q, count, stages)
    return _Sums(dk, dv, count + 1)


@gluon.jit
def _own_keys(
    dk_desc, dv_desc, rows, shared, scale, numbers, tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr
):
    """What a warp group does."""
    block: gl.constexpr = field(tiling, "block")
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    of_dk: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "head"), 16])
    of_dv: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "v_head"), 16])
    keys = flat(shared.k.buffers, group)
    values = flat(shared.v.buffers, group)
    zeros = gl.zeros([64, block], gl.float32, layout=of_scores)
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = queries_of(tile, numbers, tiling)
        reader = element * numbers.share
        dk = gl.zeros([64, field(tiling, "head")], gl.float32, layout=of_dk)
        dv = gl.zeros([64, field(tiling, "v_head")], gl.float32, layout=of_dv)
        j = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        there(shared.k, done, 1)
        if first < end:
            state = _Sums(dk, dv, count)
            at = first
            for _ in range(numbers.share * (end - first)):
                partly = (at < whole) | (at >= whole_end)
                state = _keys_step(
                    keys, values, shared, rows, reader, state, at, j, partly, numbers, zeros, tiling, group, dtype
                )
                at += 1
                if field(tiling, "grouped"):  # noqa: SIM102, known while compiling
                    if at == end:
                        # On to the next element that shares these keys.
                        at = first
                        reader += 1
            dk = state.dk
            dv = state.dv
            count = state.count
        # The gradients leave from where the keys and values were.
        keys.store((dk * scale).to(dtype))
        values.store(dv.to(dtype))
        fence_async_shared()
        place = coordinates(element * numbers.share, start + 64 * group, 0, K, numbers, tiling)
        tma.async_copy_shared_to_global(dk_desc, place, shared.k.buffers.index(group))
        place = coordinates(element * numbers.share, start + 64 * group, 0, V, numbers, tiling)
        tma.async_copy_shared_to_global(dv_desc, place, shared.v.buffers.index(group))
        tma.store_wait(0)
        released(shared.k, done, 1)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_keys_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, bias, mask, lse, delta, scale, numbers, tiling: gl.constexpr
):
    """Write the gradients of k and v; see :func:`hopper_kernel`. Tiles are of keys, blocks of queries."""
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    k = pipe(k_desc, groups, 1, groups)
    v = beside(k, v_desc, groups)
    q = pipe(q_desc, stages, stages, groups)
    d_out = beside(q, d_out_desc, stages)
    added = added_arrays(bias, mask, lse, tiling)
    shared = Operands(q, k, v, d_out, added_tiles(added, tiling))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, added)
    fence_async_shared()
    barrier()
    rows = Rows(lse, delta)
    gl.warp_specialize(
        [
            (_own_keys, (dk_desc, dv_desc, rows, shared, scale, numbers, tiling, 0, dtype)),
            (_own_keys, (dk_desc, dv_desc, rows, shared, scale, numbers, tiling, 1, dtype)),
            (_copy, (arrays, shared, numbers, tiling)),
        ],
        [4, 1],
        [240, 24],
    )
