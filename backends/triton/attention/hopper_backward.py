"""The backward kernels for Hopper, built like the forward one: one that owns queries, and one that owns keys.

Each recomputes the weights from the logarithms of the rows' sums. That is two products more than one kernel would need
that owned keys and added to the gradient of q from all sides; but nothing is added atomically, so the bits are the same
every time.

The formulas are those of FlashAttention-2 (Dao, 2023, https://arxiv.org/abs/2307.08691), algorithm 2.
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

from einops_fast.backends.triton.attention.hopper_tiles import (
    beside,
    coordinates,
    flat,
    keys_of,
    pipe,
    queries_of,
    released,
    room,
    squashed,
    there,
    without,
)
from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.tma_contraction import barrier

__all__ = ["hopper_keys_kernel", "hopper_queries_kernel"]


class _Operands(NamedTuple):
    """Descriptors of the operands, or their tiles in shared memory."""

    q: Any
    k: Any
    v: Any
    d_out: Any


class _Rows(NamedTuple):
    """For each query, logarithms of the sums and what is taken off the weights' gradients."""

    lse: Any
    delta: Any


class _Sums(NamedTuple):
    """Gradients of a tile of keys, and blocks of all tiles so far."""

    dk: Any
    dv: Any
    count: Any


@gluon.jit
def _logs(rows, offset, i, numbers):
    """In units of ``1 / log2(e)``; infinite where there is no query, or none of its keys, so that weights are zero."""
    logs = gl.load(rows.lse + offset + i, mask=i < numbers.q_len, other=float("inf"))
    return gl.where(logs == float("-inf"), float("inf"), logs * 1.4426950408889634)


@gluon.jit
def _delta(rows, offset, i, numbers):
    return gl.load(rows.delta + offset + i, mask=i < numbers.q_len, other=0.0)


@gluon.jit
def _weights(scores, logs, numbers, tiling: gl.constexpr):
    """The weights, and by what their scores' gradients are multiplied for the softcap."""
    scale = numbers.scale
    slope = 1.0
    if field(tiling, "softcap"):
        scores = squashed(scores, numbers)
        slope = 1.0 - scores * scores
        scale = numbers.cap
    return gl.exp2(gl.fma(scores, gl.zeros_like(scores) + scale, gl.zeros_like(scores) - logs)), slope


@gluon.jit
def _copy_for_queries(arrays, shared, numbers, tiling: gl.constexpr):
    """What the copying warp does for the kernel that owns queries."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own_bytes: gl.constexpr = (arrays.q.block_type.nbytes + arrays.d_out.block_type.nbytes) * groups
    block_bytes: gl.constexpr = arrays.k.block_type.nbytes + arrays.v.block_type.nbytes
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, _, _, end = keys_of(tile, numbers, tiling)
        if first < end:
            full = room(shared.q, done, 1, own_bytes)
            for group in gl.static_range(groups):
                place = coordinates(element, start + 64 * group, 0, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.q, place, full, shared.q.buffers.index(group))
                place = coordinates(element, start + 64 * group, 3, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.d_out, place, full, shared.d_out.buffers.index(group))
            done += 1
            for at in range(end - 1, first - 1, -1):
                full = room(shared.k, count, stages, block_bytes)
                place = coordinates(element, at * block, 1, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.k, place, full, shared.k.buffers.index(count % stages))
                place = coordinates(element, at * block, 2, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.v, place, full, shared.v.buffers.index(count % stages))
                count += 1


@gluon.jit
def _queries_step(
    queries, d_out, shared, sums, count, at, i, logs, delta, numbers, zeros,
    tiling: gl.constexpr, masked: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """One block of keys: what it adds to the gradient of the queries."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    there(shared.k, count, stages)
    keys = flat(shared.k.buffers, count % stages)
    values = flat(shared.v.buffers, count % stages)
    started = warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)
    more = warpgroup_mma(d_out, values.permute((1, 0)), zeros, use_acc=False, is_async=True)
    weights, slope = _weights(warpgroup_mma_wait(1, deps=[started]), logs[:, None], numbers, tiling)
    if masked:
        j = at * block + gl.arange(0, block, layout=gl.SliceLayout(0, zeros.type.layout))
        # Keys that don't exist have no features either, but their weights may be infinite.
        weights = gl.where((j < numbers.kv_len)[None, :], weights, 0.0)
        weights = without(weights, i[:, None], j[None, :], 0.0, numbers, tiling)
    d_scores = weights * (warpgroup_mma_wait(0, deps=[more]) - delta[:, None]) * slope
    d_scores = gl.convert_layout(d_scores.to(dtype), gl.DotOperandLayout(0, sums.type.layout, 2))
    sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(d_scores, keys, sums, is_async=True)])
    released(shared.k, count, stages)
    return sums, count + 1


@gluon.jit
def _own_queries(
    dq_desc, rows, shared, out, scale, numbers, tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr
):
    """What a warp group does for the kernel that owns queries."""
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "block"), 16])
    of_sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, field(tiling, "head"), 16])
    of_rows: gl.constexpr = gl.SliceLayout(1, of_scores)
    queries = flat(shared.q.buffers, group)
    d_out = flat(shared.d_out.buffers, group)
    zeros = gl.zeros([64, field(tiling, "block")], gl.float32, layout=of_scores)
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = keys_of(tile, numbers, tiling)
        sums = gl.zeros([64, field(tiling, "head")], gl.float32, layout=of_sums)
        if first < end:
            i = start + 64 * group + gl.arange(0, 64, layout=of_rows)
            offset = element.to(gl.int64) * numbers.q_len
            logs = _logs(rows, offset, i, numbers)
            delta = _delta(rows, offset, i, numbers)
            there(shared.q, done, 1)
            for at in range(end - 1, gl.maximum(whole_end, first) - 1, -1):
                sums, count = _queries_step(
                    queries, d_out, shared, sums, count, at, i, logs, delta, numbers, zeros, tiling, True, dtype
                )
            for at in range(gl.minimum(whole_end, end) - 1, gl.maximum(whole, first) - 1, -1):
                sums, count = _queries_step(
                    queries, d_out, shared, sums, count, at, i, logs, delta, numbers, zeros, tiling, False, dtype
                )
            if field(tiling, "left"):
                for at in range(gl.minimum(gl.minimum(whole, whole_end), end) - 1, first - 1, -1):
                    sums, count = _queries_step(
                        queries, d_out, shared, sums, count, at, i, logs, delta, numbers, zeros, tiling, True, dtype
                    )
            released(shared.q, done, 1)
            done += 1
        # What was handed over for the tile before has to be read before it's overwritten.
        tma.store_wait(0)
        barrier()
        flat(out, group).store((sums * scale).to(dtype))
        fence_async_shared()
        place = coordinates(element, start + 64 * group, 0, numbers, tiling)
        tma.async_copy_shared_to_global(dq_desc, place, out.index(group))
    tma.store_wait(0)


@gluon.jit
def hopper_queries_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dq_desc, lse, delta, scale, numbers, tiling: gl.constexpr
):
    """Write the gradient of q; see :func:`hopper_kernel`. ``delta`` lies as ``lse`` does."""
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    q = pipe(q_desc, groups, 1, groups)
    d_out = beside(q, d_out_desc, groups)
    k = pipe(k_desc, stages, stages, groups)
    v = beside(k, v_desc, stages)
    out = gl.allocate_shared_memory(dtype, [groups] + dq_desc.block_type.shape, dq_desc.layout)
    fence_async_shared()
    barrier()
    shared = _Operands(q, k, v, d_out)
    arrays = _Operands(q_desc, k_desc, v_desc, d_out_desc)
    rows = _Rows(lse, delta)
    gl.warp_specialize(
        [
            (_own_queries, (dq_desc, rows, shared, out, scale, numbers, tiling, 0, dtype)),
            (_own_queries, (dq_desc, rows, shared, out, scale, numbers, tiling, 1, dtype)),
            (_copy_for_queries, (arrays, shared, numbers, tiling)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def _copy_for_keys(arrays, shared, numbers, tiling: gl.constexpr):
    """What the copying warp does for the kernel that owns keys."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own_bytes: gl.constexpr = (arrays.k.block_type.nbytes + arrays.v.block_type.nbytes) * groups
    block_bytes: gl.constexpr = arrays.q.block_type.nbytes + arrays.d_out.block_type.nbytes
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, _, _, end = queries_of(tile, numbers, tiling)
        if first < end:
            reader = element * numbers.share
            full = room(shared.k, done, 1, own_bytes)
            for group in gl.static_range(groups):
                place = coordinates(reader, start + 64 * group, 1, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.k, place, full, shared.k.buffers.index(group))
                place = coordinates(reader, start + 64 * group, 2, numbers, tiling)
                tma.async_copy_global_to_shared(arrays.v, place, full, shared.v.buffers.index(group))
            done += 1
            for reader in range(element * numbers.share, (element + 1) * numbers.share):
                for at in range(first, end):
                    full = room(shared.q, count, stages, block_bytes)
                    place = coordinates(reader, at * block, 0, numbers, tiling)
                    tma.async_copy_global_to_shared(arrays.q, place, full, shared.q.buffers.index(count % stages))
                    place = coordinates(reader, at * block, 3, numbers, tiling)
                    tma.async_copy_global_to_shared(
                        arrays.d_out, place, full, shared.d_out.buffers.index(count % stages)
                    )
                    count += 1


@gluon.jit
def _keys_step(
    keys, values, shared, rows, offset, state, at, j, partly, numbers, zeros, tiling: gl.constexpr, dtype: gl.constexpr
):
    """One block of queries: what it adds to the gradients of the keys and values."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    of_columns: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    count = state.count
    i = at * block + gl.arange(0, block, layout=of_columns)
    logs = _logs(rows, offset, i, numbers)
    delta = _delta(rows, offset, i, numbers)
    there(shared.q, count, stages)
    queries = flat(shared.q.buffers, count % stages)
    d_out = flat(shared.d_out.buffers, count % stages)
    started = warpgroup_mma(keys, queries.permute((1, 0)), zeros, use_acc=False, is_async=True)
    more = warpgroup_mma(values, d_out.permute((1, 0)), zeros, use_acc=False, is_async=True)
    weights, slope = _weights(warpgroup_mma_wait(1, deps=[started]), logs[None, :], numbers, tiling)
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
    """What a warp group does for the kernel that owns keys."""
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
        if first < end:
            there(shared.k, done, 1)
            state = _Sums(dk, dv, count)
            offset = reader.to(gl.int64) * numbers.q_len
            at = first
            for _ in range(numbers.share * (end - first)):
                partly = (at < whole) | (at >= whole_end)
                state = _keys_step(
                    keys, values, shared, rows, offset, state, at, j, partly, numbers, zeros, tiling, dtype
                )
                at += 1
                if field(tiling, "grouped"):  # noqa: SIM102, known while compiling
                    if at == end:
                        # On to the next element that shares these keys.
                        at = first
                        offset += numbers.q_len
            dk = state.dk
            dv = state.dv
            count = state.count
        # The gradients leave from where the keys and values were.
        keys.store((dk * scale).to(dtype))
        values.store(dv.to(dtype))
        fence_async_shared()
        place = coordinates(reader, start + 64 * group, 1, numbers, tiling)
        tma.async_copy_shared_to_global(dk_desc, place, shared.k.buffers.index(group))
        place = coordinates(reader, start + 64 * group, 2, numbers, tiling)
        tma.async_copy_shared_to_global(dv_desc, place, shared.v.buffers.index(group))
        tma.store_wait(0)
        if first < end:
            released(shared.k, done, 1)
            done += 1
        else:
            barrier()


@gluon.jit
def hopper_keys_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dk_desc, dv_desc, lse, delta, scale, numbers, tiling: gl.constexpr
):
    """Write the gradients of k and v; see :func:`hopper_kernel`. Tiles are of keys, blocks of queries."""
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    k = pipe(k_desc, groups, 1, groups)
    v = beside(k, v_desc, groups)
    q = pipe(q_desc, stages, stages, groups)
    d_out = beside(q, d_out_desc, stages)
    fence_async_shared()
    barrier()
    shared = _Operands(q, k, v, d_out)
    arrays = _Operands(q_desc, k_desc, v_desc, d_out_desc)
    rows = _Rows(lse, delta)
    gl.warp_specialize(
        [
            (_own_keys, (dk_desc, dv_desc, rows, shared, scale, numbers, tiling, 0, dtype)),
            (_own_keys, (dk_desc, dv_desc, rows, shared, scale, numbers, tiling, 1, dtype)),
            (_copy_for_keys, (arrays, shared, numbers, tiling)),
        ],
        [4, 1],
        [240, 24],
    )
