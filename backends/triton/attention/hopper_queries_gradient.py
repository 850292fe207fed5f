"""The gradient of q on Hopper, and that of a bias that lacks no axis: a program owns tiles of queries."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

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
    D_BIAS,
    OUT,
    K,
    Q,
    V,
    beside,
    coordinates,
    fetch,
    flat,
    keys_of,
    pipe,
    released,
    room,
    stage_bytes,
    there,
    without,
)
from einops_fast.backends.triton.barriers import barrier
from einops_fast.backends.triton.indexing import field

__all__ = ["hopper_queries_kernel"]


@gluon.jit
def _copy(arrays, shared, numbers, tiling: gl.constexpr):
    """What the copying warp does."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own_bytes: gl.constexpr = (arrays.q.block_type.nbytes + arrays.d_out.block_type.nbytes) * groups
    block_bytes: gl.constexpr = stage_bytes(tiling)
    count = 0
    done = 0
    for tile in range(gl.program_id(0), numbers.elements * numbers.tiles, gl.num_programs(0)):
        element, start, first, _, _, end = keys_of(tile, numbers, tiling)
        if first < end:
            full = room(shared.q, done, 1, own_bytes)
            for group in gl.static_range(groups):
                row = start + 64 * group
                fetch(arrays.q, shared.q.buffers, group, full, element, row, Q, numbers, tiling)
                fetch(arrays.d_out, shared.d_out.buffers, group, full, element, row, OUT, numbers, tiling)
            done += 1
            for at in range(end - 1, first - 1, -1):
                stage = count % stages
                full = room(shared.k, count, stages, block_bytes)
                fetch(arrays.k, shared.k.buffers, stage, full, element, at * block, K, numbers, tiling)
                fetch(arrays.v, shared.v.buffers, stage, full, element, at * block, V, numbers, tiling)
                fetch_added(arrays.added, shared.added, stage, full, element, start, at * block, numbers, tiling)
                count += 1


@gluon.jit
def _queries_step(
    queries, d_out, shared, d_bias, sums, count, element, start, at, i, logs, delta, numbers, zeros,
    tiling: gl.constexpr, group: gl.constexpr, masked: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """One block of keys: what it adds to the gradient of the queries."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    layout: gl.constexpr = zeros.type.layout
    stage = count % stages
    j = at * block + gl.arange(0, block, layout=gl.SliceLayout(0, layout))
    there(shared.k, count, stages)
    keys = flat(shared.k.buffers, stage)
    values = flat(shared.v.buffers, stage)
    started = warpgroup_mma(queries, keys.permute((1, 0)), zeros, use_acc=False, is_async=True)
    more = warpgroup_mma(d_out, values.permute((1, 0)), zeros, use_acc=False, is_async=True)
    extra = added_of(shared.added, stage, group, element, i[:, None], j[None, :], layout, numbers, tiling)
    weights, slope = weights_of(warpgroup_mma_wait(1, deps=[started]), extra, logs[:, None], numbers, tiling)
    if masked:
        # Keys that don't exist have no features either, but their weights may be infinite.
        weights = gl.where((j < numbers.kv_len)[None, :], weights, 0.0)
        weights = without(weights, i[:, None], j[None, :], 0.0, numbers, tiling)
    d_scores = weights * (warpgroup_mma_wait(0, deps=[more]) - delta[:, None])
    if field(tiling, "d_bias"):
        # They leave from where the bias was.
        own = shared.added.bias.index(stage * groups + group)
        flat(shared.added.bias, stage * groups + group).store(d_scores.to(d_bias.dtype))
        fence_async_shared()
        place = coordinates(element, start + 64 * group, at * block, D_BIAS, numbers, tiling)
        tma.async_copy_shared_to_global(d_bias, place, own)
    d_scores = gl.convert_layout((d_scores * slope).to(dtype), gl.DotOperandLayout(0, sums.type.layout, 2))
    sums = warpgroup_mma_wait(0, deps=[warpgroup_mma(d_scores, keys, sums, is_async=True)])
    if field(tiling, "d_bias"):
        tma.store_wait(0)
    released(shared.k, count, stages)
    return sums, count + 1


@gluon.jit
def _own_queries(
    dq_desc, d_bias, rows, shared, out, scale, numbers,
    tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr,
):  # fmt: skip
    """What a warp group does."""
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
            logs = logs_of(rows, offset, i, numbers)
            delta = delta_of(rows, offset, i, numbers)
            there(shared.q, done, 1)
            for at in range(end - 1, gl.maximum(whole_end, first) - 1, -1):
                sums, count = _queries_step(
                    queries, d_out, shared, d_bias, sums, count, element, start, at, i, logs, delta, numbers, zeros,
                    tiling, group, True, dtype,
                )  # fmt: skip
            for at in range(gl.minimum(whole_end, end) - 1, gl.maximum(whole, first) - 1, -1):
                sums, count = _queries_step(
                    queries, d_out, shared, d_bias, sums, count, element, start, at, i, logs, delta, numbers, zeros,
                    tiling, group, False, dtype,
                )  # fmt: skip
            if field(tiling, "left"):
                for at in range(gl.minimum(gl.minimum(whole, whole_end), end) - 1, first - 1, -1):
                    sums, count = _queries_step(
                        queries, d_out, shared, d_bias, sums, count, element, start, at, i, logs, delta, numbers, zeros,
                        tiling, group, True, dtype,
                    )  # fmt: skip
            released(shared.q, done, 1)
            done += 1
        # What was handed over for the tile before has to be read before it's overwritten.
        tma.store_wait(0)
        barrier()
        flat(out, group).store((sums * scale).to(dtype))
        fence_async_shared()
        place = coordinates(element, start + 64 * group, 0, Q, numbers, tiling)
        tma.async_copy_shared_to_global(dq_desc, place, out.index(group))
    tma.store_wait(0)


@gluon.jit
def hopper_queries_kernel(
    q_desc, k_desc, v_desc, d_out_desc, dq_desc, bias, mask, d_bias, lse, delta, scale, numbers, tiling: gl.constexpr
):
    """Write the gradient of q; see :func:`hopper_kernel`. ``delta`` lies as ``lse`` does.

    If ``tiling.d_bias``, that of the bias, too, which then lacks no axis; but for blocks that aren't seen.
    """
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    q = pipe(q_desc, groups, 1, groups)
    d_out = beside(q, d_out_desc, groups)
    k = pipe(k_desc, stages, stages, groups)
    v = beside(k, v_desc, stages)
    out = gl.allocate_shared_memory(dtype, [groups] + dq_desc.block_type.shape, dq_desc.layout)
    added = added_arrays(bias, mask, lse, tiling)
    shared = Operands(q, k, v, d_out, added_tiles(added, tiling))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, added)
    fence_async_shared()
    barrier()
    into = lse
    if field(tiling, "d_bias"):
        into = d_bias
    rows = Rows(lse, delta)
    gl.warp_specialize(
        [
            (_own_queries, (dq_desc, into, rows, shared, out, scale, numbers, tiling, 0, dtype)),
            (_own_queries, (dq_desc, into, rows, shared, out, scale, numbers, tiling, 1, dtype)),
            (_copy, (arrays, shared, numbers, tiling)),
        ],
        [4, 1],
        [240, 24],
    )
