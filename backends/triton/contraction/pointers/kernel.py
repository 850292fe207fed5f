"""The contraction kernel: a batched matrix product whose operands and result have any strides and axis order.

One program computes one tile of the result. Permutations are part of the address arithmetic: a tile of an
operand is gathered along whichever axis is contiguous, and the tile of the result is regrouped before it is
stored if the result is contiguous along another axis than the operands are.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import triton
import triton.language as tl

from einops_fast.backends.triton.contraction.matrix_product import activated, has_bias, matrix_product
from einops_fast.backends.triton.contraction.tiling import OUT, MatrixTiling
from einops_fast.backends.triton.device.indexing import (
    counted,
    field,
    inside,
    load_tile,
    may_exceed,
    run_inside,
    run_offsets,
    store_tile,
    take_turn,
    tile_offsets,
    told,
)
from einops_fast.backends.triton.device.offsets import in_swaths
from einops_fast.backends.triton.device.tiling import Role, reach

_LONG, _EVEN = 384, 32
"""From how many products on their sum in float32 is made of those of chunks, since errors grow with the number that is
added up one after the other. Of k products there are about the root of k / 32 chunks, as the end of each takes time."""


@dataclass(frozen=True)
class ContractionTiling(MatrixTiling):
    """Everything that the kernel is specialised for.

    A tile's columns have a second part, ``rest``, where their number is no power of two. A left operand that is
    ``factored`` is the product of two arrays, multiplied when they are loaded.
    """

    contracted: Role
    rest: Role | None = None
    factored: bool = False

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        tile = "×".join(str(role.width) for role in (self.rows, self.columns, self.contracted))
        return f"contraction {tile}, {self.warps} warps, {self.stages} stages, split {self.split}"

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.batches * self.rows.tiles * self.columns.tiles, self.split, 1

    @property
    def in_two(self) -> bool:
        """Whether a tile's columns have a second part."""
        return self.rest is not None

    @property
    def chunk(self) -> int:
        """After how many steps a program adds its sums to totals, and begins new ones; 0 if never.

        With chunks of c products, the variance of the error of a sum of k is c / k + 1 / c times that of one long sum.
        That is for float32 without tensor cores.
        """
        steps = -(-self.contracted.tiles // self.split)
        products = steps * self.contracted.block
        return -(-steps // isqrt(products // _EVEN)) if products >= _LONG else 0

    @property
    def reach(self) -> int:
        """How many places in memory the result takes, the gaps between its rows included."""
        return reach((*self.batch, *self.rows.axes, *self.columns.axes), OUT)


@triton.jit
def contract_kernel(
    left, right, third, out, before, numbers, tiling: tl.constexpr, acc_type: tl.constexpr, upcast: tl.constexpr
):  # fmt: skip
    """Write the tiles of the result, or of ``split`` partial results one after the other.

    ``third`` is the factor where the left operand is a product, the bias where an epilogue has one, and else any array.
    ``before`` is for the sums as they are before the activation where an epilogue keeps them, and else any array.
    ``upcast`` multiplies in float32: Triton's interpreter is wrong about products of bfloat16.
    """
    rows: tl.constexpr = tiling.rows
    columns: tl.constexpr = tiling.columns
    contracted: tl.constexpr = tiling.contracted
    split = told(numbers, field(tiling, "split"))

    row_tiles = told(numbers, field(rows, "tiles"))
    column_tiles = told(numbers, field(columns, "tiles"))
    take_turn(tiling)
    program = tl.program_id(0)
    part = tl.program_id(1)
    if tiling.wide:
        # Positions that are counted from these may need 64 bits, too.
        program = program.to(tl.int64)
        part = part.to(tl.int64)
    batch = program // (row_tiles * column_tiles)
    program = program % (row_tiles * column_tiles)
    row_tile, column_tile = in_swaths(program, row_tiles, column_tiles, tiling.swath)

    # Batch offsets are always 64 bits wide: they are scalars, which cost nothing.
    left += counted(batch, field(tiling, "batch"), 0, True, numbers)
    right += counted(batch, field(tiling, "batch"), 1, True, numbers)
    placed = counted(batch, field(tiling, "batch"), 2, True, numbers)
    out += placed
    if tiling.factored or has_bias(tiling):
        third += counted(batch, field(tiling, "batch"), 3, True, numbers)
    left_rows = tile_offsets(row_tile, rows, 0, tiling.wide, numbers)[:, None]
    row_inside = inside(row_tile, rows, numbers)[:, None]

    product = _beginning(third, row_tile, column_tile, tiling, columns, numbers, acc_type)
    if tiling.in_two:
        further = _beginning(third, row_tile, column_tile, tiling, field(tiling, "rest"), numbers, acc_type)
    chunk: tl.constexpr = _chunk(tiling, left.dtype.element_ty)
    in_chunks: tl.constexpr = may_exceed(chunk, 0)
    if in_chunks:
        total = tl.zeros_like(product)
        if tiling.in_two:
            further_total = tl.zeros_like(further)
    all_steps = told(numbers, field(contracted, "tiles"))
    steps = (all_steps + split - 1) // split
    begin = part * steps
    for step in range(begin, min(begin + steps, all_steps)):
        a = tl.load(
            left + left_rows + tile_offsets(step, contracted, 0, tiling.wide, numbers)[None, :],
            mask=row_inside & inside(step, contracted, numbers)[None, :],
            other=0,
        )
        if tiling.factored:
            # Where it lacks the axes of the tile, one element serves the whole run.
            other = tl.load(
                third
                + tile_offsets(row_tile, rows, 3, tiling.wide, numbers)[:, None]
                + run_offsets(step, contracted, 3, tiling.wide, numbers)[None, :],
                mask=row_inside & run_inside(step, contracted, 3, numbers)[None, :],
                other=0,
            )
            multiplied = a.to(acc_type) * other.to(acc_type)
            a = tl.where(inside(step, contracted, numbers)[None, :], multiplied, 0).to(a.dtype)
        b = load_tile(right, step, contracted, column_tile, columns, 1, tiling.wide, numbers)
        product = _with_product(product, a, b, tiling, acc_type, upcast)
        if tiling.in_two:
            b = load_tile(right, step, contracted, column_tile, field(tiling, "rest"), 1, tiling.wide, numbers)
            further = _with_product(further, a, b, tiling, acc_type, upcast)
        if in_chunks and (step - begin) % told(numbers, chunk) == told(numbers, chunk) - 1:
            total += product
            product = tl.zeros_like(product)
            if tiling.in_two:
                further_total += further
                further = tl.zeros_like(further)

    if in_chunks:
        product += total
        if tiling.in_two:
            further += further_total
    if may_exceed(tiling.split, 1):
        out += part.to(tl.int64) * told(numbers, field(tiling, "reach"))
    _finish(out, before + placed, product, row_tile, column_tile, tiling, columns, numbers)
    if tiling.in_two:
        _finish(out, before + placed, further, row_tile, column_tile, tiling, field(tiling, "rest"), numbers)


@triton.constexpr_function
def _chunk(tiling, dtype):
    """Steps of a chunk; 0 where tensor cores, or wider types, leave nothing to gain by totals."""
    return tiling.chunk if dtype.is_fp32() and tiling.precision == "ieee" else 0


@triton.jit
def _beginning(
    bias, row_tile, column_tile, tiling: tl.constexpr, columns: tl.constexpr, numbers, acc_type: tl.constexpr
):
    """What the products are added to: the bias, if there is one."""
    rows: tl.constexpr = tiling.rows
    found = tl.zeros((field(rows, "block"), field(columns, "block")), acc_type)
    if has_bias(tiling):
        place = (
            run_offsets(row_tile, rows, 3, tiling.wide, numbers)[:, None]
            + run_offsets(column_tile, columns, 3, tiling.wide, numbers)[None, :]
        )
        exists = run_inside(row_tile, rows, 3, numbers)[:, None] & run_inside(column_tile, columns, 3, numbers)[None, :]
        found += tl.load(bias + place, mask=exists, other=0).to(acc_type)
    return found


@triton.jit
def _finish(out, before, product, row_tile, column_tile, tiling: tl.constexpr, columns: tl.constexpr, numbers):
    """Store a tile as its epilogue says."""
    epilogue: tl.constexpr = tiling.epilogue
    if epilogue is not None:
        if epilogue.keeps:
            store_tile(before, product, row_tile, column_tile, tiling, columns, numbers)
        product = activated(product, epilogue, out.dtype.element_ty)
    store_tile(out, product, row_tile, column_tile, tiling, columns, numbers)


@triton.jit
def _with_product(total, a, b, tiling: tl.constexpr, acc_type: tl.constexpr, upcast: tl.constexpr):
    """The sum of ``total`` and a matrix product. That of integers, which may wrap around, is made one by one."""
    if acc_type.is_int():
        # The contracted axis is the slowest, so that each thread adds up products of its own.
        total += tl.sum(tl.trans(a.to(acc_type))[:, :, None] * b.to(acc_type)[:, None, :], 0)
    else:
        total = matrix_product(a, b, total, field(tiling, "precision"), acc_type, upcast)
    return total
