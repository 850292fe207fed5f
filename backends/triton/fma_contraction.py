"""The contraction kernel for float32 without tensor cores, whichever axes the operands are contiguous along.

A thread multiplies a few rows with a few columns, one contracted position after the other: it wants neighbouring rows,
and neighbouring columns, next to each other in shared memory. So a tile is loaded along the axis that it is contiguous
along, and turned while it is stored to shared memory; the next one is on its way meanwhile. The kernel of
``contraction.py`` leaves an operand in shared memory as it came: where that is along contracted axes, it takes more
than twice as long.

The division of labour is that of Volkov and Demmel (2008, https://doi.org/10.1109/SC.2008.5214359).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.contraction import ContractionTiling
from einops_fast.backends.triton.indexing import counted, field, in_swaths, inside_at, offsets_at
from einops_fast.backends.triton.matrix_tiles import LEFT, OUT, RIGHT
from einops_fast.backends.triton.tiling import Group, Role

__all__ = ["FmaTiling", "fma_kernel"]

_LANES = 32
_RUN = 4
"""Elements that a thread loads, stores or multiplies next to each other."""


@dataclass(frozen=True)
class FmaTiling(ContractionTiling):
    """What the kernel is specialised for: as the other contraction kernel, without a second part of the columns.

    ``factored`` and ``turned`` are false: where both operands are contiguous along contracted axes, but not along the
    same, the threads that load the right one are ordered otherwise.
    """

    @property
    def name(self) -> str:
        tile = "×".join(str(role.block) for role in (self.rows, self.columns, self.contracted))
        return f"contraction by threads {tile}, {self.warps} warps, split {self.split}"

    @property
    def options(self) -> dict[str, int]:
        """For the compiler. With so many registers two programs of eight warps run side by side."""
        return {"maxnreg": 128} if self.warps == 8 else {}

    @property
    def as_loaded(self) -> bool:
        return False

    @property
    def product_layout(self) -> Any:
        """Of the sums of products: each thread has 4 × 4 of them, at several places."""
        first = 1 << ((self.warps.bit_length() - 1) // 2)
        warps = [first, self.warps // first] if self.columns.block >= self.rows.block else [self.warps // first, first]
        if _bits(self, OUT)[0][0] == 0:
            return gl.BlockedLayout([_RUN, _RUN], [8, 4], warps, [0, 1])
        return gl.BlockedLayout([_RUN, _RUN], [4, 8], warps, [1, 0])

    @property
    def left_layout(self) -> Any:
        """Of the left operand's tile when it is loaded, rows × contracted."""
        return _loading(self, LEFT, (self.rows.block, self.contracted.block))

    @property
    def right_layout(self) -> Any:
        """Of the right operand's tile when it is loaded, contracted × columns."""
        return _loading(self, RIGHT, (self.contracted.block, self.columns.block))

    @property
    def out_layout(self) -> Any:
        """Of the result's tile when it is stored."""
        return _loading(self, OUT, (self.rows.block, self.columns.block))

    @property
    def regrouped(self) -> bool:
        """Whether neighbours in the result's memory aren't neighbours in a tile."""
        return [value for _, value in _bits(self, OUT)[:2]] != [1, 2]

    @property
    def left_shared(self) -> Any:
        """Of the left operand's tile in shared memory: rows lie next to each other."""
        return _shared(self, LEFT, self.rows, [0, 1])

    @property
    def right_shared(self) -> Any:
        """Of the right operand's tile in shared memory: columns lie next to each other."""
        return _shared(self, RIGHT, self.columns, [1, 0])


def _dims(tiling: FmaTiling, array: int) -> tuple[Role, Role]:
    """The roles that an array's tile extends along."""
    if array == LEFT:
        return tiling.rows, tiling.contracted
    if array == RIGHT:
        return tiling.contracted, tiling.columns
    return tiling.rows, tiling.columns


def _bits(tiling: FmaTiling, array: int) -> list[tuple[int, int]]:
    """The bits of a position in an array's tile, as dimension and value, those of neighbours in memory first."""
    found: list[tuple[int, int, int]] = []
    for dim, role in enumerate(_dims(tiling, array)):
        slow, fast = role.groups
        for group, unit in ((fast, 1), (slow, fast.block)):
            found += [(_stride(group, array), dim, unit << at) for at in range(group.block.bit_length() - 1)]
    return [(dim, value) for _, dim, value in sorted(found, key=lambda bit: bit[0])]


def _stride(group: Group, array: int) -> int:
    """From one position of a group to the next; where an array has none of its axes, more than any."""
    stride = abs(group.axes[-1].strides[array]) if group.axes else 0
    return stride or 1 << 62


def _loading(tiling: FmaTiling, array: int, shape: tuple[int, int]) -> Any:
    """Which thread has what of a tile: some neighbours each, then neighbouring threads neighbouring elements."""
    bits = [[value if at == dim else 0 for at in range(2)] for dim, value in _bits(tiling, array)]
    run = _RUN.bit_length() - 1
    lanes = run + _LANES.bit_length() - 1
    warps = lanes + tiling.warps.bit_length() - 1

    def some(first: int, last: int) -> list[list[int]]:
        # Where there are fewer elements than threads, several have the same ones.
        return bits[first:last] + [[0, 0]] * (last - max(first, min(last, len(bits))))

    return gl.DistributedLinearLayout(bits[:run] + bits[warps:], some(run, lanes), some(lanes, warps), [], list(shape))


def _shared(tiling: FmaTiling, array: int, free: Role, order: list[int]) -> Any:
    """Shared memory, in which threads that turn an operand around while they store it use all banks at once."""
    dim, _ = _bits(tiling, array)[0]
    if _dims(tiling, array)[dim] is free:
        return gl.SwizzledSharedLayout(_RUN, 1, 1, order)
    lanes = tiling.contracted.block // _RUN
    return gl.SwizzledSharedLayout(min(_LANES // lanes, free.block // lanes), _RUN, lanes, order)


@gluon.jit
def _left_tile(left, row_tile, step, tiling: gl.constexpr):
    rows: gl.constexpr = field(tiling, "rows")
    contracted: gl.constexpr = field(tiling, "contracted")
    return _tile(left, row_tile, step, rows, contracted, 0, field(tiling, "left_layout"))


@gluon.jit
def _right_tile(right, step, column_tile, tiling: gl.constexpr):
    columns: gl.constexpr = field(tiling, "columns")
    contracted: gl.constexpr = field(tiling, "contracted")
    return _tile(right, step, column_tile, contracted, columns, 1, field(tiling, "right_layout"))


@gluon.jit
def _places(tile, role: gl.constexpr, array: gl.constexpr, layout: gl.constexpr):
    """Offsets of a tile along one of its dimensions, and which positions exist."""
    run = gl.arange(0, field(role, "block"), layout=layout)
    every = gl.full([field(role, "block")], True, gl.int1, layout=layout)
    offsets = offsets_at(run, tile, role, array, False, False) + gl.zeros_like(run)
    return offsets, inside_at(run, every, tile, role, False)


@gluon.jit
def _tile(
    array, first, second, first_role: gl.constexpr, second_role: gl.constexpr, at: gl.constexpr, layout: gl.constexpr
):
    down, down_inside = _places(first, first_role, at, gl.SliceLayout(1, layout))
    across, across_inside = _places(second, second_role, at, gl.SliceLayout(0, layout))
    return gl.load(
        array + down[:, None] + across[None, :], mask=down_inside[:, None] & across_inside[None, :], other=0.0
    )


@gluon.jit
def _store(out, product, row_tile, column_tile, tiling: gl.constexpr, layout: gl.constexpr):
    down, down_inside = _places(row_tile, field(tiling, "rows"), 2, gl.SliceLayout(1, layout))
    across, across_inside = _places(column_tile, field(tiling, "columns"), 2, gl.SliceLayout(0, layout))
    gl.store(out + down[:, None] + across[None, :], product, mask=down_inside[:, None] & across_inside[None, :])


@gluon.jit
def fma_kernel(
    left, right, third, out, before, tiling: gl.constexpr, acc_type: gl.constexpr, upcast: gl.constexpr
):  # fmt: skip
    """Write the tiles of the result, or of ``split`` partial results; the arguments are those of ``contract_kernel``.

    ``third``, ``before`` and ``upcast`` aren't used.
    """
    rows: gl.constexpr = field(tiling, "rows")
    columns: gl.constexpr = field(tiling, "columns")
    contracted: gl.constexpr = field(tiling, "contracted")
    split: gl.constexpr = field(tiling, "split")
    row_tiles: gl.constexpr = field(rows, "tiles")
    column_tiles: gl.constexpr = field(columns, "tiles")
    depth: gl.constexpr = field(contracted, "block")
    product_layout: gl.constexpr = field(tiling, "product_layout")
    program = gl.program_id(0)
    part = gl.program_id(1)
    batch = program // (row_tiles * column_tiles)
    row_tile, column_tile = in_swaths(
        program % (row_tiles * column_tiles), row_tiles, column_tiles, field(tiling, "swath")
    )
    # Batch offsets are 64 bits wide: they are scalars, which cost nothing.
    left += counted(batch.to(gl.int64), field(tiling, "batch"), 0, False)
    right += counted(batch.to(gl.int64), field(tiling, "batch"), 1, False)
    out += counted(batch.to(gl.int64), field(tiling, "batch"), 2, False)

    a = gl.allocate_shared_memory(gl.float32, [2, field(rows, "block"), depth], field(tiling, "left_shared"))
    b = gl.allocate_shared_memory(gl.float32, [2, depth, field(columns, "block")], field(tiling, "right_shared"))
    steps: gl.constexpr = (field(contracted, "tiles") + split - 1) // split
    begin = part * steps
    end = gl.minimum(begin + steps, field(contracted, "tiles"))
    product = gl.zeros([field(rows, "block"), field(columns, "block")], gl.float32, layout=product_layout)
    a.index(0).store(_left_tile(left, row_tile, begin, tiling))
    b.index(0).store(_right_tile(right, begin, column_tile, tiling))
    for step in range(begin, end):
        here = (step - begin) % 2
        # The last step loads its own tile once more.
        following = gl.minimum(step + 1, end - 1)
        next_left = _left_tile(left, row_tile, following, tiling)
        next_right = _right_tile(right, following, column_tile, tiling)
        x = a.index(here).load(gl.DotOperandLayout(0, product_layout, 0))
        y = b.index(here).load(gl.DotOperandLayout(1, product_layout, 0))
        product = gl.dot_fma(x, y, product)
        a.index(1 - here).store(next_left)
        b.index(1 - here).store(next_right)

    if split > 1:
        out += part.to(gl.int64) * field(tiling, "elements")
    if field(tiling, "regrouped"):
        out_layout: gl.constexpr = field(tiling, "out_layout")
        product = gl.convert_layout(product, out_layout)
        _store(out, product, row_tile, column_tile, tiling, out_layout)
    else:
        _store(out, product, row_tile, column_tile, tiling, product_layout)
