"""The contraction kernel for Hopper: boxes of the operands are copied by the hardware (TMA), wherever strides let it.

Some programs, one per multiprocessor, go through all tiles. One warp of a program copies boxes of the operands
to shared memory, some steps ahead; warp groups multiply them and hand their part of the result to the hardware,
which writes it while they multiply on. So what a tile begins and ends with is hidden behind the next one.

TMA and the products of warp groups are described in NVIDIA's PTX manual; the division of labour is that of
CUTLASS's warp-specialised persistent kernels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from einops_fast.backends.triton.indexing import field

__all__ = ["BoxTiling", "Dim", "View", "barrier", "box_kernel"]

BATCH, ROWS, COLUMNS, CONTRACTED = range(4)

# Newer versions of Triton call it otherwise.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@dataclass(frozen=True)
class Dim:
    """One axis of an array as TMA sees it.

    Attributes:
        size, stride: of the axis, in elements.
        role: which tile number it belongs to.
        divisor, count: the position along the axis is ``tile // divisor % count`` …
        step: … times this.
        box: how many neighbours are copied at once.
        shift: from the rows of one warp group to those of the next.
    """

    size: int
    stride: int
    role: int
    divisor: int
    count: int
    step: int
    box: int
    shift: int = 0


@dataclass(frozen=True)
class View:
    """An array as TMA sees it: up to five axes, the contiguous one last.

    ``turned`` if the axis that a product has first is the contiguous one.
    """

    dims: tuple[Dim, ...]
    turned: bool

    @property
    def block(self) -> list[int]:
        return [dim.box for dim in self.dims]

    @property
    def rank(self) -> int:
        return len(self.dims)


@dataclass(frozen=True)
class BoxTiling:
    """Everything that the kernel is specialised for.

    Attributes:
        left, right, out: how the arrays are seen; a box of the left operand and of the result has 64 rows.
        tiles: how many tiles there are of batch, rows and columns, and how many steps in each.
        groups: warp groups, each with 64 rows of a tile.
        width: columns of a tile.
        depth: contracted extent of a step.
        stages: steps that shared memory holds.
        swath: tiles of rows that are worked on together, for the L2 cache.
        rest: columns of a tile's second part, where their number is no power of two.
        right_rest, out_rest: how the arrays are seen for that part.
    """

    left: View
    right: View
    out: View
    tiles: tuple[int, int, int, int]
    groups: int
    width: int
    depth: int
    stages: int
    swath: int = 8
    rest: int = 0
    right_rest: View | None = None
    out_rest: View | None = None

    split = 1

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        apart = any(dim.shift == 1 for dim in self.left.dims)
        rows = f"{self.groups}·64" if apart else f"{64 * self.groups}"
        return f"contraction of boxes {rows}×{self.width + self.rest}×{self.depth}, {self.stages} stages"

    @property
    def total(self) -> int:
        return prod(self.tiles[:3])


@gluon.constexpr_function
def _dim(view, at):
    return view.dims[at]


@gluon.constexpr_function
def _tiles(tiling, role):
    return tiling.tiles[role]


@gluon.jit
def _position(dim: gl.constexpr, batch, row, column, step, group: gl.constexpr, columns_on: gl.constexpr):
    """Where a box begins along one axis."""
    if field(dim, "role") == 0:
        index = batch
    elif field(dim, "role") == 1:
        index = row
    elif field(dim, "role") == 2:
        index = column
    else:
        index = step
    position = index // field(dim, "divisor") % field(dim, "count") * field(dim, "step")
    position += group * field(dim, "shift")
    if field(dim, "role") == 2 and field(dim, "box") > 1:
        position += columns_on
    return position


@gluon.jit
def _place(view: gl.constexpr, batch, row, column, step, group: gl.constexpr, columns_on: gl.constexpr):
    """Where a warp group's box begins, so many columns into the tile."""
    place = ()
    for at in gl.static_range(field(view, "rank")):
        place = place + (_position(_dim(view, at), batch, row, column, step, group, columns_on),)
    return place


@gluon.jit
def _tile(number, tiling: gl.constexpr):
    """Batch, row tile and column tile of a tile's number: in swaths of rows."""
    rows: gl.constexpr = _tiles(tiling, 1)
    columns: gl.constexpr = _tiles(tiling, 2)
    swath: gl.constexpr = field(tiling, "swath")
    batch = number // (rows * columns)
    number = number % (rows * columns)
    first = number // (swath * columns) * swath
    height = gl.minimum(rows - first, swath)
    return batch, first + number % (swath * columns) % height, number % (swath * columns) // height


@gluon.jit
def _flat(buffer, rows: gl.constexpr, columns: gl.constexpr, turned: gl.constexpr):
    """A box as a matrix, whichever of its axes is contiguous."""
    if turned:
        return buffer.reshape([columns, rows]).permute((1, 0))
    else:
        return buffer.reshape([rows, columns])


@gluon.jit
def _load(left, right, right_rest, operands, barriers, tiling: gl.constexpr):
    """What the copying warp does."""
    a, b, b_rest = operands
    full, empty = barriers
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    rest: gl.constexpr = field(tiling, "rest")
    step_bytes: gl.constexpr = left.block_type.nbytes * groups + right.block_type.nbytes
    rest_bytes: gl.constexpr = right_rest.block_type.nbytes if rest > 0 else 0
    count = 0
    for number in range(gl.program_id(0), field(tiling, "total"), gl.num_programs(0)):
        batch, row, column = _tile(number, tiling)
        for step in range(_tiles(tiling, 3)):
            stage = count % stages
            ready = full.index(stage)
            mbarrier.wait(empty.index(stage), count // stages & 1 ^ 1)
            mbarrier.expect(ready, step_bytes + rest_bytes)
            for group in gl.static_range(groups):
                place = _place(field(tiling, "left"), batch, row, column, step, group, 0)
                tma.async_copy_global_to_shared(left, place, ready, a.index(stage * groups + group))
            place = _place(field(tiling, "right"), batch, row, column, step, 0, 0)
            tma.async_copy_global_to_shared(right, place, ready, b.index(stage))
            if rest > 0:
                place = _place(field(tiling, "right_rest"), batch, row, column, step, 0, field(tiling, "width"))
                tma.async_copy_global_to_shared(right_rest, place, ready, b_rest.index(stage))
            count += 1


@gluon.jit
def _multiply(
    out, out_rest, operands, results, barriers, tiling: gl.constexpr, group: gl.constexpr, dtype: gl.constexpr
):
    """What a warp group does: its rows of every tile."""
    a, b, b_rest = operands
    c, c_rest = results
    full, empty = barriers
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    width: gl.constexpr = field(tiling, "width")
    depth: gl.constexpr = field(tiling, "depth")
    rest: gl.constexpr = field(tiling, "rest")
    left_turned: gl.constexpr = field(field(tiling, "left"), "turned")
    right_turned: gl.constexpr = field(field(tiling, "right"), "turned")
    out_turned: gl.constexpr = field(field(tiling, "out"), "turned")
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rest if rest > 0 else 16, 16])
    count = 0
    for number in range(gl.program_id(0), field(tiling, "total"), gl.num_programs(0)):
        batch, row, column = _tile(number, tiling)
        product = gl.zeros([64, width], gl.float32, layout=layout)
        further = gl.zeros([64, rest if rest > 0 else 16], gl.float32, layout=rest_layout)
        for step in range(_tiles(tiling, 3)):
            stage = count % stages
            mbarrier.wait(full.index(stage), count // stages & 1)
            left = _flat(a.index(stage * groups + group), 64, depth, left_turned)
            product = warpgroup_mma(left, _flat(b.index(stage), depth, width, right_turned), product, is_async=True)
            if rest > 0:
                right = _flat(b_rest.index(stage), depth, rest, right_turned)
                further = warpgroup_mma(left, right, further, is_async=True)
                # One step stays in flight; the boxes of the one before aren't needed any more.
                product, further = warpgroup_mma_wait(2, deps=[product, further])
            else:
                product = warpgroup_mma_wait(1, deps=[product])
            mbarrier.arrive(empty.index((count + stages - 1) % stages), pred=step > 0)
            count += 1
        if rest > 0:
            product, further = warpgroup_mma_wait(0, deps=[product, further])
        else:
            product = warpgroup_mma_wait(0, deps=[product])
        mbarrier.arrive(empty.index((count + stages - 1) % stages))
        # What was handed over for the tile before has to be read before it's overwritten.
        tma.store_wait(0)
        barrier()
        _flat(c.index(group), 64, width, out_turned).store(product.to(dtype))
        if rest > 0:
            _flat(c_rest.index(group), 64, rest, out_turned).store(further.to(dtype))
        fence_async_shared()
        place = _place(field(tiling, "out"), batch, row, column, 0, group, 0)
        tma.async_copy_shared_to_global(out, place, c.index(group))
        if rest > 0:
            place = _place(field(tiling, "out_rest"), batch, row, column, 0, group, width)
            tma.async_copy_shared_to_global(out_rest, place, c_rest.index(group))
    tma.store_wait(0)


@gluon.jit
def box_kernel(left, right, out, right_rest, out_rest, tiling: gl.constexpr):
    """Write all tiles of the result. Without a second part, its descriptors are those of the first."""
    dtype: gl.constexpr = left.dtype
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    rest: gl.constexpr = field(tiling, "rest")
    a = gl.allocate_shared_memory(dtype, [stages * groups] + left.block_type.shape, left.layout)
    b = gl.allocate_shared_memory(dtype, [stages] + right.block_type.shape, right.layout)
    c = gl.allocate_shared_memory(dtype, [groups] + out.block_type.shape, out.layout)
    if rest > 0:
        b_rest = gl.allocate_shared_memory(dtype, [stages] + right_rest.block_type.shape, right_rest.layout)
        c_rest = gl.allocate_shared_memory(dtype, [groups] + out_rest.block_type.shape, out_rest.layout)
    else:
        b_rest = b
        c_rest = c
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(stages):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=groups)
    fence_async_shared()
    barrier()
    operands = (a, b, b_rest)
    results = (c, c_rest)
    barriers = (full, empty)
    if groups == 1:
        gl.warp_specialize(
            [
                (_multiply, (out, out_rest, operands, results, barriers, tiling, 0, dtype)),
                (_load, (left, right, right_rest, operands, barriers, tiling)),
            ],
            [1],
            [24],
        )
    else:
        gl.warp_specialize(
            [
                (_multiply, (out, out_rest, operands, results, barriers, tiling, 0, dtype)),
                (_multiply, (out, out_rest, operands, results, barriers, tiling, 1, dtype)),
                (_load, (left, right, right_rest, operands, barriers, tiling)),
            ],
            [4, 1],
            [240, 24],
        )
