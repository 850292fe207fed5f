"""The gradient of a bias that batch elements share, on Hopper: a program owns tiles of it and goes through these.

One warp has tiles copied, warp groups have 64 queries each, as in the other kernels. A tile's sum stays in registers,
and elements come in one order, so the bits are the same every time. Where a bias has fewer tiles than there are
programs, each has the sum over some elements only.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma, warpgroup_mma_wait

from einops_fast.backends.triton.attention.hopper.backward import Operands, delta_of, logs_of, weights_of
from einops_fast.backends.triton.attention.hopper.pipes import (
    beside,
    coordinates,
    fetch,
    flat,
    pipe,
    released,
    room,
    there,
)
from einops_fast.backends.triton.attention.hopper.positions import blocks_met, sides
from einops_fast.backends.triton.attention.hopper.scores import Added, bias_of, mask_of
from einops_fast.backends.triton.attention.hopper.tiles import BIAS, D_BIAS, MASK, OUT, K, Q, V
from einops_fast.backends.triton.attention.hopper.turns import in_groups


class Parts(NamedTuple):
    """In how many parts the gradient is summed up, and strides: of parts, of batch axes, of queries and of keys."""

    number: Any
    part: Any
    first: Any
    second: Any
    third: Any
    row: Any
    column: Any


class _Counts(NamedTuple):
    """Tiles of the bias along the keys, batch elements that share each, and parts of the sums over these."""

    key_tiles: Any
    sharers: Any
    parts: Any


@gluon.jit
def _tasks(counts, numbers):
    """How many tiles of sums there are."""
    return numbers.elements * numbers.tiles * counts.key_tiles * counts.parts.number


@gluon.jit
def _position(task, counts, numbers, tiling: gl.constexpr):
    """Of a tile of sums: which of the batch elements that differ in their bias it is of, its first query, its block of
    keys, the part, and which of the elements that share the bias make it up."""
    at = task % counts.key_tiles
    rest = task // counts.key_tiles
    start = rest % numbers.tiles * tiling.rows
    own = rest // numbers.tiles
    part = 0
    begin = 0
    end = counts.sharers
    if tiling.in_parts:
        # Programs side by side go through the same elements.
        part = own // numbers.elements
        own = own % numbers.elements
        length = (counts.sharers + counts.parts.number - 1) // counts.parts.number
        begin = part * length
        end = min(begin + length, end)
    return own, start, at, part, begin, end


@gluon.jit
def _element(own, sharer, numbers, tiling: gl.constexpr):
    """Number of the batch element that is counted by ``own`` along the axes that the bias has, else by ``sharer``."""
    if tiling.has[D_BIAS][2]:
        c = own % numbers.third
        own = own // numbers.third
    else:
        c = sharer % numbers.third
        sharer = sharer // numbers.third
    if tiling.has[D_BIAS][1]:
        b = own % numbers.second
        own = own // numbers.second
    else:
        b = sharer % numbers.second
        sharer = sharer // numbers.second
    a = own if tiling.has[D_BIAS][0] else sharer
    return (a * numbers.second + b) * numbers.third + c


@gluon.jit
def _copy(arrays, shared, counts, numbers, tiling: gl.constexpr):
    """Copy into shared memory, by one warp, what the other warps read."""
    groups: gl.constexpr = tiling.groups
    bias_bytes: gl.constexpr = arrays.added.bias.block_type.nbytes * groups
    step_bytes: gl.constexpr = tiling.pair_bytes
    count = 0
    done = 0
    for task in range(gl.program_id(0), _tasks(counts, numbers), gl.num_programs(0)):
        own, start, at, _, begin, past = _position(task, counts, numbers, tiling)
        element = _element(own, 0, numbers, tiling)
        # Even of a tile that isn't seen: the memory has to be waited for, since the gradient leaves from there.
        full = room(shared.added.bias, done, 1, bias_bytes)
        for group in gl.static_range(groups):
            fetch(
                arrays.added.bias, shared.added.bias.buffers, group, full, element, start + 64 * group, BIAS,
                numbers, tiling, at * tiling.block,
            )  # fmt: skip
        done += 1  # noqa: SIM113, nothing is enumerated while compiling
        first, _, _, end = blocks_met(start, tiling.rows, numbers, tiling)
        if (at >= first) & (at < end):
            for sharer in range(begin, past):
                element = _element(own, sharer, numbers, tiling)
                stage = count % tiling.stages
                full = room(shared.q, count, tiling.stages, step_bytes)
                for group in gl.static_range(groups):
                    tile_at = stage * groups + group
                    row = start + 64 * group
                    fetch(arrays.q, shared.q.buffers, tile_at, full, element, row, Q, numbers, tiling)
                    fetch(arrays.d_out, shared.d_out.buffers, tile_at, full, element, row, OUT, numbers, tiling)
                    if tiling.mask_tiles:
                        fetch(
                            arrays.added.mask, shared.added.mask, tile_at, full, element, row, MASK,
                            numbers, tiling, at * tiling.block,
                        )  # fmt: skip
                fetch(arrays.k, shared.k.buffers, stage, full, element, at * tiling.block, K, numbers, tiling)
                fetch(arrays.v, shared.v.buffers, stage, full, element, at * tiling.block, V, numbers, tiling)
                count += 1


@gluon.jit
def _step(total, shared, rows, count, element, i, j, partly, numbers, zeros, tiling: gl.constexpr, group: gl.constexpr):
    """``total`` with the gradient of one batch element's scores."""
    layout: gl.constexpr = zeros.type.layout
    stage = count % tiling.stages
    at = stage * tiling.groups + group
    logs = logs_of(rows, element, i, numbers)
    delta = delta_of(rows, element, i, numbers)
    there(shared.q, count, tiling.stages)
    keys = flat(shared.k.buffers, stage)
    values = flat(shared.v.buffers, stage)
    started = warpgroup_mma(flat(shared.q.buffers, at), keys.permute((1, 0)), zeros, use_acc=False, is_async=True)
    more = warpgroup_mma(flat(shared.d_out.buffers, at), values.permute((1, 0)), zeros, use_acc=False, is_async=True)
    bias = bias_of(shared.added.bias.buffers, group, element, i[:, None], j[None, :], layout, numbers, tiling)
    mask = mask_of(shared.added.mask, at, element, i[:, None], j[None, :], layout, numbers, tiling)
    products = warpgroup_mma_wait(1, deps=[started])
    weights, _ = weights_of(products, (bias, mask), i, j, logs, partly, False, numbers, tiling)
    d_weights = warpgroup_mma_wait(0, deps=[more])
    released(shared.q, count, tiling.stages)
    return total + weights * (d_weights - delta[:, None])


@gluon.jit
def _sum_up(d_bias, rows, shared, counts, numbers, tiling: gl.constexpr, group: gl.constexpr):
    """Compute what one warp group owns, of every tile."""
    block: gl.constexpr = tiling.block
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, block, 16])
    zeros = gl.zeros([64, block], gl.float32, layout=of_scores)
    count = 0
    done = 0
    for task in range(gl.program_id(0), _tasks(counts, numbers), gl.num_programs(0)):
        own, start, at, part, begin, past = _position(task, counts, numbers, tiling)
        first, whole, whole_end, end = blocks_met(start, tiling.rows, numbers, tiling)
        i = start + 64 * group + gl.arange(0, 64, layout=gl.SliceLayout(1, of_scores))
        j = at * block + gl.arange(0, block, layout=gl.SliceLayout(0, of_scores))
        total = gl.zeros([64, block], gl.float32, layout=of_scores)
        there(shared.added.bias, done, 1)
        if (at >= first) & (at < end):
            partly = sides(at, whole, whole_end)
            for sharer in range(begin, past):
                element = _element(own, sharer, numbers, tiling)
                total = _step(total, shared, rows, count, element, i, j, partly, numbers, zeros, tiling, group)
                count += 1
        place = coordinates(_element(own, 0, numbers, tiling), start + 64 * group, at * block, D_BIAS, numbers, tiling)
        if tiling.in_parts:
            a, b, c, _, _ = place
            parts = counts.parts
            into = d_bias + part * parts.part + a * parts.first + b * parts.second + c * parts.third
            into += (i * parts.row)[:, None] + (j * parts.column)[None, :]
            gl.store(into, total, mask=(i < numbers.q_len)[:, None] & (j < numbers.kv_len)[None, :])
        else:
            # The sum leaves from where the bias was.
            flat(shared.added.bias.buffers, group).store(total.to(d_bias.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(d_bias, place, shared.added.bias.buffers.index(group))
            tma.store_wait(0)
        released(shared.added.bias, done, 1)
        done += 1  # noqa: SIM113, nothing is enumerated while compiling


@gluon.jit
def hopper_bias_kernel(
    q_desc, k_desc, v_desc, d_out_desc, bias, mask, d_bias, rows, key_tiles, sharers, parts, numbers,
    tiling: gl.constexpr,
):  # fmt: skip
    """Write the gradient of the bias; see :func:`hopper_kernel` and :class:`_Counts`.

    Several parts are float32 at the address ``d_bias``. The elements of ``numbers`` are those whose bias differs.
    """
    q = pipe(q_desc, tiling.stages * tiling.groups, tiling.stages, tiling.groups)
    d_out = beside(q, d_out_desc, tiling.stages * tiling.groups)
    k = beside(q, k_desc, tiling.stages)
    v = beside(q, v_desc, tiling.stages)
    masks = mask
    if tiling.mask_tiles:
        masks = beside(q, mask, tiling.stages * tiling.groups).buffers
    shared = Operands(q, k, v, d_out, None, Added(pipe(bias, tiling.groups, 1, tiling.groups), masks))
    arrays = Operands(q_desc, k_desc, v_desc, d_out_desc, None, Added(bias, mask))
    counts = _Counts(key_tiles, sharers, parts)
    in_groups(
        _sum_up, (d_bias, rows, shared, counts, numbers, tiling), _copy, (arrays, shared, counts, numbers), tiling
    )
