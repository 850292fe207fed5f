"""The contraction kernel for Hopper: boxes of the operands are copied by the hardware (TMA), wherever strides let it.

Some programs, one per multiprocessor, go through all tiles. One warp of a program copies boxes of the operands
to shared memory, some steps ahead; warp groups multiply them and hand their part of the result to the hardware,
which writes it while they multiply on. So what a tile begins and ends with is hidden behind the next one. Warp groups
share tiles, or take turns with them.

TMA and the products of warp groups are described in NVIDIA's PTX manual; the division of labour is that of
CUTLASS's warp-specialised persistent kernels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from einops_fast.backends.triton.contraction.boxes.epilogue import (
    activate_meanwhile,
    beginning,
    bias_of,
    finish_in_pieces,
    hand_over,
    last_meanwhile,
    put,
    write,
)
from einops_fast.backends.triton.contraction.boxes.factor import factor_of, left_layout, multiplied
from einops_fast.backends.triton.contraction.boxes.tiles import flat_box, is_fresh, part_of, place_of, steps_of, tile_of
from einops_fast.backends.triton.contraction.matrix_product import activated
from einops_fast.backends.triton.device.barriers import barrier
from einops_fast.backends.triton.device.indexing import field, take_turn


@gluon.jit
def _load_right(rights, batch, row, column, step, slot, ready, tiling: gl.constexpr):
    """Have the right operand's boxes of a step copied, both parts."""
    right, right_rest, b, b_rest = rights
    place = place_of(field(tiling, "right"), batch, row, column, step, 0, 0)
    tma.async_copy_global_to_shared(right, place, ready, b.index(slot))
    if tiling.rest > 0:
        place = place_of(field(tiling, "right_rest"), batch, row, column, step, 0, tiling.width)
        tma.async_copy_global_to_shared(right_rest, place, ready, b_rest.index(slot))


@gluon.jit
def _load(copying, tiling: gl.constexpr):
    """What the copying warp does."""
    left, right, right_rest, operands, barriers = copying
    a, b, b_rest = operands
    rights = (right, right_rest, b, b_rest)
    full, empty, there, _turn = barriers
    groups: gl.constexpr = tiling.groups
    left_bytes: gl.constexpr = left.block_type.nbytes * groups
    right_bytes: gl.constexpr = right.block_type.nbytes + (right_rest.block_type.nbytes if tiling.rest > 0 else 0)
    count = 0
    for number in range(gl.program_id(0), tiling.total, gl.num_programs(0)):
        batch, row, column = tile_of(number, tiling)
        begin, end = steps_of(number, tiling)
        for step in range(begin, end):
            stage = count % tiling.stages
            ready = full.index(stage)
            fresh = is_fresh(step, begin, tiling)
            mbarrier.wait(empty.index(stage), count // tiling.stages & 1 ^ 1)
            if tiling.resident:
                mbarrier.expect(ready, left_bytes)
                if number < gl.num_programs(0):
                    mbarrier.expect(there.index(step), right_bytes)
                    _load_right(rights, batch, row, column, step, step, there.index(step), tiling)
            else:
                if tiling.repeats > 1:
                    mbarrier.expect(ready, right_bytes, pred=fresh == 0)
                mbarrier.expect(ready, left_bytes + right_bytes, pred=fresh)
                _load_right(rights, batch, row, column, step, stage, ready, tiling)
            for group in gl.static_range(groups):
                place = place_of(field(tiling, "left"), batch, row, column, step, group, 0)
                tma.async_copy_global_to_shared(left, place, ready, a.index(stage * groups + group), pred=fresh)
            count += 1


@gluon.jit
def _multiply(shared, tiling: gl.constexpr, own: gl.constexpr):
    """What warp group ``own`` does: its rows of every tile, or all of every second tile."""
    arrays, third, written, operands, results, barriers = shared
    out, before, out_rest, before_rest = arrays
    a, b, b_rest = operands
    full, empty, there, turn = barriers
    epilogue: gl.constexpr = tiling.epilogue
    width: gl.constexpr = tiling.width
    depth: gl.constexpr = tiling.depth
    rest: gl.constexpr = tiling.rest
    right_turned: gl.constexpr = tiling.right.turned
    # Registers with a left operand are read as long as it is multiplied.
    in_flight: gl.constexpr = 0 if tiling.factored else 1
    if tiling.factored:
        kept = gl.zeros([64, depth], a.dtype, layout=left_layout(width))
    count = 0
    lap = 0
    waiting = -1
    first = gl.program_id(0)
    apart = gl.num_programs(0) * tiling.turns
    if tiling.turns > 1:
        # The steps of the tiles in between are the other one's.
        first += own * gl.num_programs(0)
        count += own * tiling.depths
    earliest = gl.minimum(first, tiling.total - 1)
    added = bias_of(third, earliest, own, 0, width, tiling)
    added_further = bias_of(third, earliest, own, width, rest, tiling)
    for number in range(first, tiling.total, apart):
        batch, row, column = tile_of(number, tiling)
        product = beginning(added, width, tiling)
        further = beginning(added_further, rest, tiling)
        begin, end = steps_of(number, tiling)
        found = factor_of(third, batch, row, begin, own, tiling)
        if tiling.turns > 1:
            # What the other one has waited for tells apart the times that a stage is filled.
            mbarrier.wait(turn.index(own), (lap + 1 - own) & 1)
            lap += 1
        for step in range(begin, end):
            stage = count % tiling.stages
            mbarrier.wait(full.index(stage), count // tiling.stages & 1)
            slot = stage
            if tiling.resident:
                slot = step
                mbarrier.wait(there.index(step), 0)
            left = flat_box(a.index(stage * tiling.groups + part_of(tiling, own)), 64, depth, tiling.left.turned)
            if tiling.factored:
                if is_fresh(step, begin, tiling):
                    kept = left.load(left_layout(width))
                left = multiplied(kept, found, batch, row, step, own, tiling)
                found = factor_of(third, batch, row, gl.minimum(step + 1, end - 1), own, tiling)
            product = warpgroup_mma(left, flat_box(b.index(slot), depth, width, right_turned), product, is_async=True)
            if rest > 0:
                if tiling.factored:
                    left = gl.convert_layout(left, left_layout(rest))
                right = flat_box(b_rest.index(slot), depth, rest, right_turned)
                further = warpgroup_mma(left, right, further, is_async=True)
                # One step stays in flight; the boxes of the one before aren't needed any more.
                product, further = warpgroup_mma_wait(2 * in_flight, deps=[product, further])
            else:
                product = warpgroup_mma_wait(in_flight, deps=[product])
            mbarrier.arrive(empty.index((count + tiling.stages - 1) % tiling.stages), pred=step > begin)
            if tiling.meanwhile:
                activate_meanwhile(gl.where(waiting < 0, -1, step), waiting, arrays, results, own, tiling)
            count += 1
        if tiling.turns > 1:
            mbarrier.arrive(turn.index(1 - own))
        if rest > 0:
            product, further = warpgroup_mma_wait(0, deps=[product, further])
        else:
            product = warpgroup_mma_wait(0, deps=[product])
        mbarrier.arrive(empty.index((count + tiling.stages - 1) % tiling.stages))
        if tiling.turns > 1:
            count += tiling.depths
        # The next tile's bias is on its way while this one ends.
        following = gl.minimum(number + apart, tiling.total - 1)
        added = bias_of(third, following, own, 0, width, tiling)
        added_further = bias_of(third, following, own, width, rest, tiling)
        if epilogue is not None and not tiling.meanwhile and tiling.pieces == 1:
            product = activated(product, epilogue, a.dtype)
            if rest > 0:
                further = activated(further, epilogue, a.dtype)
        if tiling.by_threads:
            write(product, written, number, own, 0, width, tiling)
            if rest > 0:
                write(further, written, number, own, width, rest, tiling)
        elif tiling.pieces > 1:
            finish_in_pieces(product, further, arrays, results[0], batch, row, column, own, tiling)
        else:
            if tiling.meanwhile:
                if waiting >= 0:
                    for step in range(tiling.depths, last_meanwhile(tiling) + 1):
                        activate_meanwhile(step, waiting, arrays, results, own, tiling)
                waiting = number
            # What was handed over for the tile before has to be read before it's overwritten.
            tma.store_wait(0)
            barrier()
            put(product, further, results, own, tiling)
            if not tiling.meanwhile:
                hand_over((out, out_rest), results, batch, row, column, own, tiling)
            elif epilogue.keeps:
                hand_over((before, before_rest), results, batch, row, column, own, tiling)
    if tiling.meanwhile:
        for step in range(last_meanwhile(tiling) + 1):
            activate_meanwhile(step, waiting, arrays, results, own, tiling)
    tma.store_wait(0)


@gluon.jit
def box_kernel(
    left, right, out, before, right_rest, out_rest, before_rest, third, written, tiling: gl.constexpr
):  # fmt: skip
    """Write all tiles of the result.

    Without a second part, its descriptors are those of the first. ``before`` is for the sums as they are before the
    activation, where an epilogue keeps them, and else the result; ``third`` is the bias, the factor where the left
    operand is a product, or any address. What threads write goes to the address ``written``: the result, or sums of all
    parts one after the other. The descriptors of the result are those of the left operand then, and nothing is written
    there.
    """
    take_turn(tiling)
    stages: gl.constexpr = tiling.stages
    a = gl.allocate_shared_memory(left.dtype, [stages * tiling.groups] + left.block_type.shape, left.layout)
    slots: gl.constexpr = tiling.depths if tiling.resident else stages
    b = gl.allocate_shared_memory(left.dtype, [slots] + right.block_type.shape, right.layout)
    b_rest = b
    if tiling.rest > 0:
        b_rest = gl.allocate_shared_memory(left.dtype, [slots] + right_rest.block_type.shape, right_rest.layout)
    c = b
    c_rest = b
    workers: gl.constexpr = tiling.workers
    if not tiling.by_threads:
        boxes: gl.constexpr = workers if tiling.pieces == 1 else 2 * workers
        c = gl.allocate_shared_memory(left.dtype, [boxes] + out.block_type.shape, out.layout)
        if tiling.rest > 0 and tiling.pieces == 1:
            c_rest = gl.allocate_shared_memory(left.dtype, [workers] + out_rest.block_type.shape, out_rest.layout)
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=tiling.groups)
    # Those of the right operand's boxes, where they stay; and of whose turn it is.
    there = full
    if tiling.resident:
        there = gl.allocate_shared_memory(gl.int64, [slots, 1], mbarrier.MBarrierLayout())
        for slot in gl.static_range(slots):
            mbarrier.init(there.index(slot), count=1)
    turn = full
    if tiling.turns > 1:
        turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        mbarrier.init(turn.index(0), count=1)
        mbarrier.init(turn.index(1), count=1)
    operands = (a, b, b_rest)
    arrays = (out, before, out_rest, before_rest)
    results = (c, c_rest)
    barriers = (full, empty, there, turn)
    fence_async_shared()
    barrier()
    shared = (arrays, third, written, operands, results, barriers)
    copying = (left, right, right_rest, operands, barriers)
    warps: gl.constexpr = tiling.worker_warps
    registers: gl.constexpr = tiling.worker_registers
    if workers > 1:
        gl.warp_specialize(
            [(_multiply, (shared, tiling, 0)), (_multiply, (shared, tiling, 1)), (_load, (copying, tiling))],
            warps,
            registers,
        )
    else:
        gl.warp_specialize([(_multiply, (shared, tiling, 0)), (_load, (copying, tiling))], warps, registers)
