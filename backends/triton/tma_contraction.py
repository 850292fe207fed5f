"""The contraction kernel for Hopper: boxes of the operands are copied by the hardware (TMA), wherever strides let it.

Some programs, one per multiprocessor, go through all tiles. One warp of a program copies boxes of the operands
to shared memory, some steps ahead; warp groups multiply them and hand their part of the result to the hardware,
which writes it while they multiply on. So what a tile begins and ends with is hidden behind the next one.

TMA and the products of warp groups are described in NVIDIA's PTX manual; the division of labour is that of
CUTLASS's warp-specialised persistent kernels.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass, replace
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

from einops_fast.backends.triton.epilogue import activated, has_bias
from einops_fast.backends.triton.indexing import field
from einops_fast.steps import Epilogue

__all__ = ["BoxTiling", "Dim", "View", "barrier", "box_kernel"]

BATCH, ROWS, COLUMNS, CONTRACTED = range(4)

_SHORT = ("none", "relu", "leaky_relu", "squared_relu", "star_relu")
"""Activations of a few instructions, for which no warps are set apart."""

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
        epilogue: what is done to the sums before they are stored.
        bias: its strides along the axes of ``out``; it has at most one of the two that boxes extend along.
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
    epilogue: Epilogue | None = None
    bias: tuple[int, ...] = ()

    @property
    def right_rest(self) -> View:
        """How the right operand is seen for the second part."""
        return _narrowed(self.right, self.rest or self.width)

    @property
    def out_rest(self) -> View:
        """How the result is seen for it."""
        return _narrowed(self.out, self.rest or self.width)

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        apart = any(dim.shift == 1 for dim in self.left.dims)
        rows = f"{self.groups}·64" if apart else f"{64 * self.groups}"
        return f"contraction of boxes {rows}×{self.width + self.rest}×{self.depth}, {self.stages} stages"

    @property
    def apart(self) -> bool:
        """Whether the activation has warps of its own, which work on the rounded sums while others multiply on.

        So it is where it takes time, or where there are two results.
        """
        return self.epilogue is not None and (self.epilogue.keeps or self.epilogue.activation not in _SHORT)

    @property
    def worker_warps(self) -> tuple[int, ...]:
        """Of the parts of a program beside the first warp group: another one, the activation, the copies."""
        return (4,) * (self.groups - 1) + (2,) * self.apart + (1,)

    @property
    def worker_registers(self) -> tuple[int, ...]:
        """Of each of their threads; the last warps are one group to the hardware, which has as many in each."""
        if self.apart:
            return (208,) * (self.groups - 1) + (88, 88)
        return (240,) * (self.groups - 1) + (24,)

    @property
    def registers(self) -> int | None:
        """Of each thread before they are shared out; the first warp group is left as many as the second one has."""
        if self.groups > 1:
            return 168
        return 160 if self.apart else None

    @property
    def total(self) -> int:
        return prod(self.tiles[:3])


def _narrowed(view: View, columns: int) -> View:
    """The same with boxes of so many columns."""
    extends = [dim.role == COLUMNS and dim.box > 1 for dim in view.dims]
    dims = [replace(dim, box=columns) if wide else dim for dim, wide in zip(view.dims, extends, strict=True)]
    return replace(view, dims=tuple(dims))


@gluon.constexpr_function
def _dim(view, at):
    return view.dims[at]


@gluon.constexpr_function
def _bias_stride(tiling, at):
    return tiling.bias[at]


@gluon.constexpr_function
def _run(tiling, role):
    """Along which axis of the result a box extends, of those of a role."""
    return next(at for at, dim in enumerate(tiling.out.dims) if dim.role == role and dim.box > 1)


@gluon.constexpr_function
def _bias_has_rows(tiling):
    """Whether the bias differs along the rows of a box; else along the columns, if at all."""
    return tiling.bias[_run(tiling, ROWS)] != 0


@gluon.constexpr_function
def _tiles(tiling, role):
    return tiling.tiles[role]


@gluon.jit
def _position(dim: gl.constexpr, batch, row, column, step, group, columns_on: gl.constexpr):
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
def _place(view: gl.constexpr, batch, row, column, step, group, columns_on: gl.constexpr):
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
def _load(copying, tiling: gl.constexpr):
    """What the copying warp does."""
    left, right, right_rest, operands, barriers = copying
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
def _bias(bias, place, tiling: gl.constexpr, run: gl.constexpr, count: gl.constexpr, layout: gl.constexpr):
    """So many elements of the bias along axis ``run`` of the result, from a place in it on."""
    for at in gl.static_range(field(field(tiling, "out"), "rank")):
        if _bias_stride(tiling, at) != 0:
            bias += place[at] * _bias_stride(tiling, at)
    along = gl.arange(0, count, layout=layout)
    exists = place[run] + along < field(_dim(field(tiling, "out"), run), "size")
    return gl.load(bias + along * _bias_stride(tiling, run), mask=exists, other=0).to(gl.float32)


@gluon.jit
def _beginning(bias, place, tiling: gl.constexpr, width: gl.constexpr, layout: gl.constexpr):
    """What the products of a warp group's rows are added to: the bias, if there is one."""
    found = gl.zeros([64, width], gl.float32, layout=layout)
    if has_bias(tiling):
        if _bias_has_rows(tiling):
            found += _bias(bias, place, tiling, _run(tiling, 1), 64, gl.SliceLayout(1, layout))[:, None]
        else:
            found += _bias(bias, place, tiling, _run(tiling, 2), width, gl.SliceLayout(0, layout))[None, :]
    return found


@gluon.jit
def _put(product, further, results, group: gl.constexpr, tiling: gl.constexpr):
    """Leave a warp group's rows of a tile in shared memory, both parts, rounded."""
    c, c_rest = results
    width: gl.constexpr = field(tiling, "width")
    rest: gl.constexpr = field(tiling, "rest")
    turned: gl.constexpr = field(field(tiling, "out"), "turned")
    _flat(c.index(group), 64, width, turned).store(product.to(c.dtype))
    if rest > 0:
        _flat(c_rest.index(group), 64, rest, turned).store(further.to(c.dtype))
    fence_async_shared()


@gluon.jit
def _hand_over(arrays, results, batch, row, column, group, tiling: gl.constexpr):
    """Have the hardware write these to memory."""
    out, out_rest = arrays
    c, c_rest = results
    place = _place(field(tiling, "out"), batch, row, column, 0, group, 0)
    tma.async_copy_shared_to_global(out, place, c.index(group))
    if field(tiling, "rest") > 0:
        place = _place(field(tiling, "out_rest"), batch, row, column, 0, group, field(tiling, "width"))
        tma.async_copy_shared_to_global(out_rest, place, c_rest.index(group))


@gluon.jit
def _activate_box(boxes, group, columns: gl.constexpr, tiling: gl.constexpr):
    """Put the activation of a warp group's box in its place: 32 elements of a thread at a time, as they come."""
    at_once: gl.constexpr = 64 * 32
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [2], [0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    count: gl.constexpr = columns * 64 // at_once
    flat = boxes._reinterpret(boxes.dtype, [field(tiling, "groups") * count, at_once], plain)
    for at in range(count):
        piece = flat.index(group * count + at)
        found = activated(piece.load(layout).to(gl.float32), field(tiling, "epilogue"), boxes.dtype)
        piece.store(found.to(boxes.dtype))


@gluon.jit
def _activate(arrays, results, handing, tiling: gl.constexpr):
    """What the warps do that apply the activation, while others multiply the next tile.

    That the others help with the last tile, when they have nothing left to multiply, was measured not to be faster.
    """
    out, before, out_rest, before_rest = arrays
    c, c_rest = results
    given, taken = handing
    rest: gl.constexpr = field(tiling, "rest")
    for number in range(gl.program_id(0), field(tiling, "total"), gl.num_programs(0)):
        batch, row, column = _tile(number, tiling)
        for group in range(field(tiling, "groups")):
            mbarrier.wait(given.index(group), number // gl.num_programs(0) & 1)
            if field(field(tiling, "epilogue"), "keeps"):
                _hand_over((before, before_rest), results, batch, row, column, group, tiling)
                tma.store_wait(0)
                barrier()
            _activate_box(c, group, field(tiling, "width"), tiling)
            if rest > 0:
                _activate_box(c_rest, group, rest, tiling)
            fence_async_shared()
            barrier()
            _hand_over((out, out_rest), results, batch, row, column, group, tiling)
            tma.store_wait(0)
            barrier()
            mbarrier.arrive(taken.index(group))


@gluon.jit
def _multiply(shared, tiling: gl.constexpr, group: gl.constexpr):
    """What a warp group does: its rows of every tile."""
    arrays, bias, operands, results, barriers, handing = shared
    out, _, out_rest, _ = arrays
    a, b, b_rest = operands
    full, empty = barriers
    given, taken = handing
    epilogue: gl.constexpr = field(tiling, "epilogue")
    groups: gl.constexpr = field(tiling, "groups")
    stages: gl.constexpr = field(tiling, "stages")
    width: gl.constexpr = field(tiling, "width")
    depth: gl.constexpr = field(tiling, "depth")
    rest: gl.constexpr = field(tiling, "rest")
    left_turned: gl.constexpr = field(field(tiling, "left"), "turned")
    right_turned: gl.constexpr = field(field(tiling, "right"), "turned")
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 16])
    rest_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rest if rest > 0 else 16, 16])
    count = 0
    for number in range(gl.program_id(0), field(tiling, "total"), gl.num_programs(0)):
        batch, row, column = _tile(number, tiling)
        place = _place(field(tiling, "out"), batch, row, column, 0, group, 0)
        product = _beginning(bias, place, tiling, width, layout)
        if rest > 0:
            place = _place(field(tiling, "out_rest"), batch, row, column, 0, group, width)
            further = _beginning(bias, place, tiling, rest, rest_layout)
        else:
            further = gl.zeros([64, 16], gl.float32, layout=rest_layout)
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
        if field(tiling, "apart"):
            mbarrier.wait(taken.index(group), number // gl.num_programs(0) & 1 ^ 1)
            _put(product, further, results, group, tiling)
            barrier()
            mbarrier.arrive(given.index(group))
        else:
            if epilogue is not None:
                product = activated(product, epilogue, out.dtype)
                if rest > 0:
                    further = activated(further, epilogue, out.dtype)
            tma.store_wait(0)
            barrier()
            _put(product, further, results, group, tiling)
            _hand_over((out, out_rest), results, batch, row, column, group, tiling)
    tma.store_wait(0)


@gluon.jit
def box_kernel(
    left, right, out, before, right_rest, out_rest, before_rest, bias, tiling: gl.constexpr
):  # fmt: skip
    """Write all tiles of the result.

    Without a second part, its descriptors are those of the first. ``before`` is for the sums as they are before the
    activation, where an epilogue keeps them, and else the result; ``bias`` is any address where there is none.
    """
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
    operands = (a, b, b_rest)
    arrays = (out, before, out_rest, before_rest)
    results = (c, c_rest)
    barriers = (full, empty)
    handing = barriers
    if field(tiling, "apart"):
        given = gl.allocate_shared_memory(gl.int64, [groups, 1], mbarrier.MBarrierLayout())
        taken = gl.allocate_shared_memory(gl.int64, [groups, 1], mbarrier.MBarrierLayout())
        for group in gl.static_range(groups):
            mbarrier.init(given.index(group), count=1)
            mbarrier.init(taken.index(group), count=1)
        handing = (given, taken)
    fence_async_shared()
    barrier()
    shared = (arrays, bias, operands, results, barriers, handing)
    copying = (left, right, right_rest, operands, barriers)
    warps: gl.constexpr = field(tiling, "worker_warps")
    registers: gl.constexpr = field(tiling, "worker_registers")
    if groups > 1 and field(tiling, "apart"):
        gl.warp_specialize(
            [
                (_multiply, (shared, tiling, 0)),
                (_multiply, (shared, tiling, 1)),
                (_activate, (arrays, results, handing, tiling)),
                (_load, (copying, tiling)),
            ],
            warps,
            registers,
        )
    elif groups > 1:
        gl.warp_specialize(
            [(_multiply, (shared, tiling, 0)), (_multiply, (shared, tiling, 1)), (_load, (copying, tiling))],
            warps,
            registers,
        )
    elif field(tiling, "apart"):
        gl.warp_specialize(
            [
                (_multiply, (shared, tiling, 0)),
                (_activate, (arrays, results, handing, tiling)),
                (_load, (copying, tiling)),
            ],
            warps,
            registers,
        )
    else:
        gl.warp_specialize([(_multiply, (shared, tiling, 0)), (_load, (copying, tiling))], warps, registers)
