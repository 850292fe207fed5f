"""The gradient of v of wide heads on Hopper, where there are no registers for that of k beside it.

A program owns tiles of keys, and reads the queries that see them, as :mod:`keys_gradient` does. A warp
group has the products of the next block begun before it adds this one up, and works out the next weights meanwhile.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    tma,
    warpgroup_mma_wait,
)

from einops_fast.backends.triton.attention.hopper.backward import weights_of
from einops_fast.backends.triton.attention.hopper.pipes import (
    beside,
    fetch,
    passed_both,
    pipe,
    released,
    room,
    there,
)
from einops_fast.backends.triton.attention.hopper.positions import own_blocks, sides, tile_of
from einops_fast.backends.triton.attention.hopper.products import (
    added,
    adding,
    begun,
    leave,
    no_sums,
    parts,
    tiles_of,
)
from einops_fast.backends.triton.attention.hopper.tiles import DV, OUT, K, Q, V, boxes
from einops_fast.backends.triton.attention.hopper.turns import in_groups, note, noted, notes
from einops_fast.backends.triton.device.indexing import field


class _Arrays(NamedTuple):
    """Descriptors, or what is in shared memory: tiles of keys, blocks of the others and of the rows' logarithms."""

    k: Any
    q: Any
    d_out: Any
    rows: Any
    notes: Any = None


@gluon.jit
def _copy(arrays, shared, numbers, tiling: gl.constexpr):
    """Copy into shared memory, by one warp, what the other warps read."""
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    own_bytes: gl.constexpr = arrays.k.block_type.nbytes * boxes(tiling, K) * groups
    q_bytes: gl.constexpr = arrays.q.block_type.nbytes * boxes(tiling, Q) + arrays.rows.block_type.nbytes
    d_out_bytes: gl.constexpr = arrays.d_out.block_type.nbytes * boxes(tiling, OUT)
    count = 0
    done = 0
    for turn in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = tile_of(turn, numbers, tiling)
        note(shared.notes, done, element, start, first, whole, whole_end, end)
        # Even where no query sees them: the memory has to be waited for, since the gradient leaves from there.
        full = room(shared.k, done, 1, own_bytes)
        for group in gl.static_range(groups):
            row = start + 64 * group
            fetch(arrays.k, shared.k.buffers, group, full, element * numbers.share, row, K, numbers, tiling)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling
        for reader in range(element * numbers.share, (element + 1) * numbers.share):
            for at in range(first, end):
                stage = count % stages
                full = room(shared.q, count, stages, q_bytes)
                fetch(arrays.q, shared.q.buffers, stage, full, reader, at * block, Q, numbers, tiling)
                into = shared.rows.buffers.index(stage)
                tma.async_copy_global_to_shared(arrays.rows, (2 * reader, at * block), full, into)
                full = room(shared.d_out, count, stages, d_out_bytes)
                fetch(arrays.d_out, shared.d_out.buffers, stage, full, reader, at * block, OUT, numbers, tiling)
                count += 1


@gluon.jit
def _weighed(
    started, pending: gl.constexpr, shared, count, at, j, partly, numbers, zeros,
    dtype: gl.constexpr, tiling: gl.constexpr,
):  # fmt: skip
    """Return the weights of a block of queries, once at most so many later products are under way."""
    block: gl.constexpr = field(tiling, "block")
    stages: gl.constexpr = field(tiling, "stages")
    of_queries: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    i = at * block + gl.arange(0, block, layout=of_queries)
    logs = shared.rows.buffers.index(count % stages).reshape([block]).load(of_queries)
    products = warpgroup_mma_wait(pending, deps=[started])
    released(shared.q, count, stages)
    weights, _ = weights_of(products, (0.0, 0), i, j, logs, partly, False, numbers, tiling)
    return weights.to(dtype)


@gluon.jit
def _adding(weights, shared, count, sums, tiling: gl.constexpr):
    """Start adding the product of a block's weights with the gradients of the result."""
    stages: gl.constexpr = field(tiling, "stages")
    there(shared.d_out, count, stages)
    return adding(weights, tiles_of(shared.d_out.buffers, count % stages, OUT, tiling), sums, 1, tiling)


@gluon.jit
def _own_values(dv_desc, shared, out, numbers, dtype: gl.constexpr, tiling: gl.constexpr, group: gl.constexpr):
    """Compute what one warp group owns, of every tile."""
    stages: gl.constexpr = field(tiling, "stages")
    block: gl.constexpr = field(tiling, "block")
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    zeros = gl.zeros([64, block], gl.float32, layout=of_scores)
    count = 0
    done = 0
    keys = tiles_of(shared.k.buffers, group, K, tiling)
    for _ in range(gl.program_id(0), numbers.turns, gl.num_programs(0)):
        element, start, first, whole, whole_end, end = noted(shared.notes, done)
        first, whole, whole_end, end, before, after = own_blocks(
            start, first, whole, whole_end, end, numbers, tiling, group
        )
        count = passed_both(shared.q, shared.d_out, count, before, stages, stages)
        sums = no_sums(1, tiling)
        j = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        there(shared.k, done, 1)
        if first < end:
            started = begun(keys, shared.q, count, zeros, Q, tiling)
            at = first
            partly = sides(at, whole, whole_end)
            weights = _weighed(started, 0, shared, count, at, j, partly, numbers, zeros, dtype, tiling)
            for _ in range(numbers.share * (end - first) - 1):
                at += 1
                if field(tiling, "grouped"):  # noqa: SIM102, known while compiling
                    if at == end:
                        # On to the next element that shares these keys.
                        at = first
                partly = sides(at, whole, whole_end)
                started = begun(keys, shared.q, count + 1, zeros, Q, tiling)
                sums = _adding(weights, shared, count, sums, tiling)
                pending: gl.constexpr = parts(tiling, 1)
                weights = _weighed(started, pending, shared, count + 1, at, j, partly, numbers, zeros, dtype, tiling)
                sums = added(sums, 0, 1, tiling)
                released(shared.d_out, count, stages)
                count += 1
            sums = added(_adding(weights, shared, count, sums, tiling), 0, 1, tiling)
            released(shared.d_out, count, stages)
            count += 1
        count = passed_both(shared.q, shared.d_out, count, after, stages, stages)
        of = element * numbers.share
        leave(dv_desc, out, group, sums, 1.0, of, start + 64 * group, dtype, DV, numbers, tiling)
        tma.store_wait(0)
        released(shared.k, done, 1)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_values_kernel(q_desc, k_desc, d_out_desc, dv_desc, rows, numbers, tiling: gl.constexpr):
    """Write the gradient of v; see :func:`hopper_keys_kernel`. There is no bias and no mask."""
    dtype: gl.constexpr = q_desc.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    k = pipe(k_desc, groups * boxes(tiling, K), 1, groups)
    q = pipe(q_desc, stages * boxes(tiling, Q), stages, groups)
    d_out = pipe(d_out_desc, stages * boxes(tiling, OUT), stages, groups)
    shared = _Arrays(k, q, d_out, beside(q, rows, stages), notes(groups))
    out = k.buffers
    if not field(tiling, "alike"):
        out = gl.allocate_shared_memory(dtype, [groups * boxes(tiling, V)] + dv_desc.block_type.shape, dv_desc.layout)
    arrays = _Arrays(k_desc, q_desc, d_out_desc, rows)
    in_groups(
        _own_values, (dv_desc, shared, out, numbers, dtype, tiling), _copy, (arrays, shared, numbers), tiling
    )  # fmt: skip
