"""Device functions from a tile's number to memory offsets, and what a kernel of such tiles begins and ends with.

Extents and strides are known while compiling, or the kernel is told some when it runs: ``numbers`` are these, see
:mod:`~einops_fast.backends.triton.device.generic`.

A role always has two groups here (see :mod:`~einops_fast.backends.triton.device.tiling`); one without axes and with
block 1 stands for a group that isn't needed.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# The functions run on the GPU: Triton's types aren't Python's.

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from einops_fast.backends.triton.device.generic import Nest, Number


@triton.constexpr_function
def _steps(axes, array):
    """Sizes and strides of the loops in one array, as few as can be.

    Where the array steps through two as through one, others needn't; and what is a neighbour of what can't be seen by
    the compiler once a position is taken apart.
    """
    if isinstance(axes, Nest):
        return axes.steps[array] if axes.steps else ()
    joined = axes[0].joined(axes[1:], array) if axes else ()
    return tuple((axis.size, axis.strides[array]) for axis in joined)


@triton.constexpr_function
def _length(steps):
    return len(steps)


@triton.constexpr_function
def _size(steps, at):
    return steps[at][0]


@triton.constexpr_function
def _stride(steps, at):
    return steps[at][1]


@triton.constexpr_function
def field(record, name):
    """A field of a tiling or of a role as a constant, for ranges and arguments; elsewhere it is ``record.name``.

    Triton 3.6 takes only numbers as arguments that aren't constants.
    """
    return getattr(record, name)


@triton.constexpr_function
def group_field(role, at, name):
    """A field of group ``at`` of a role."""
    return getattr(role.groups[at], name)


@triton.constexpr_function
def lacks(role, at, array):
    """Whether the array has no axis of this group, so that one element of it serves the whole run."""
    return role.groups[at].missing(array)


@triton.constexpr_function
def _told_late(value):
    return isinstance(value, Number)


@triton.constexpr_function
def may_exceed(value, least):
    """Whether a number isn't known, or is greater."""
    return isinstance(value, Number) or value > least


@triton.jit
def told(numbers, value: tl.constexpr):
    """A number that is known while compiling, or that the kernel is told."""
    if _told_late(value):
        return numbers[field(value, "at")] * field(value, "unit")
    else:
        return value


@triton.jit
def _divided(index, size: tl.constexpr, numbers, wide: tl.constexpr):
    """Positions divided by a size: the quotient and the remainder."""
    if _told_late(size):
        if wide:
            quotient = index // told(numbers, size)
        else:
            multiplier = numbers[field(size, "at") + 1].to(tl.uint32, bitcast=True)
            quotient = tl.umulhi(index.to(tl.uint32), multiplier) >> numbers[field(size, "at") + 2].to(tl.uint32)
            if field(size, "run") > 1:
                # So many neighbours among the positions of a tile have the same quotient.
                quotient = tl.max_constancy(quotient, field(size, "run"))
            quotient = quotient.to(tl.int32)
        rest = index - quotient * told(numbers, size)
    else:
        rest = index % size
        quotient = index // size
    return quotient, rest


@triton.jit
def counted(index, axes: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None):
    """Offsets, in one array, of positions in the loop nest ``axes``, whose last axis is the fastest."""
    offset = index * 0
    if wide:
        # A number of 64 bits makes what it is added to, or multiplied with, as wide.
        offset = offset + tl.full((), 0, tl.int64)
    steps: tl.constexpr = _steps(axes, array)
    for at in tl.static_range(_length(steps) - 1, -1, -1):
        digit = index
        if at > 0:
            index, digit = _divided(index, _size(steps, at), numbers, wide)
        if _stride(steps, at) != 0:
            if wide:
                offset += digit * tl.cast(told(numbers, _stride(steps, at)), tl.int64)
            else:
                offset += digit * told(numbers, _stride(steps, at))
    return offset


@triton.constexpr_function
def _alone(role, at):
    """Whether tiles are counted along this group only, and by a number that takes long to divide by."""
    return at == 1 and isinstance(role.outer, Nest) and not role.outer.steps and role.groups[0].tiles == 1


@triton.jit
def _first(tile, role: tl.constexpr, at: tl.constexpr, numbers):
    """Position in group ``at`` where tile number ``tile`` begins."""
    if at == 0:
        tile = tile // told(numbers, group_field(role, 1, "tiles"))
    if _alone(role, at):
        return tile * group_field(role, at, "step") + group_field(role, at, "start")
    return (tile % told(numbers, group_field(role, at, "tiles"))) * group_field(role, at, "step") + group_field(
        role, at, "start"
    )


@triton.jit
def _outside(tile, role: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers):
    """Offset of the tile by the outer axes."""
    tiles = told(numbers, group_field(role, 0, "tiles")) * told(numbers, group_field(role, 1, "tiles"))
    return counted(tile // tiles, field(role, "outer"), array, wide, numbers)


@triton.jit
def group_offsets(tile, role: tl.constexpr, at: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None):
    """Offsets of a tile's run along one group; those of the outer axes are in that of group 0."""
    if lacks(role, at, array):
        offset = counted(tl.arange(0, 1), (), array, wide)
    else:
        offset = counted(
            _first(tile, role, at, numbers) + tl.arange(0, group_field(role, at, "block")),
            group_field(role, at, "axes"),
            array,
            wide,
            numbers,
        )
    if at == 0:
        offset += _outside(tile, role, array, wide, numbers)
    return offset


@triton.jit
def group_inside(tile, role: tl.constexpr, at: tl.constexpr, numbers=None):
    """Which positions of a tile's run along one group exist."""
    if group_field(role, at, "even"):
        found = tl.full((group_field(role, at, "block"),), True, tl.int1)
    else:
        found = _first(tile, role, at, numbers) + tl.arange(0, group_field(role, at, "block")) < told(
            numbers, group_field(role, at, "extent")
        )
    return found


@triton.jit
def _digit(run, role: tl.constexpr, at: tl.constexpr):
    """For each position along a tile, the position in group ``at``: group 1 is the fastest."""
    if at == 0:
        # Where the other one has block 1, this changes nothing.
        run = run // group_field(role, 1 - at, "block")
    elif group_field(role, at, "block") < field(role, "block"):
        run = run % group_field(role, at, "block")
    return run


@triton.jit
def offsets_at(run, tile, role: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None):
    """Offsets of some positions along a tile, both groups counted through as one; a single one if all are the same."""
    offset = _outside(tile, role, array, wide, numbers)
    for at in tl.static_range(2):
        if not lacks(role, at, array):
            offset += counted(
                _first(tile, role, at, numbers) + _digit(run, role, at),
                group_field(role, at, "axes"),
                array,
                wide,
                numbers,
            )
    return offset


@triton.jit
def tile_offsets(tile, role: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None):
    """Offsets of all positions along a tile."""
    offset = offsets_at(tl.arange(0, field(role, "block")), tile, role, array, wide, numbers)
    return offset + tl.zeros((field(role, "block"),), offset.dtype)


@triton.jit
def run_offsets(tile, role: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None):
    """The same, but a single offset where the array has none of the groups' axes."""
    if lacks(role, 0, array) and lacks(role, 1, array):
        offset = counted(tl.arange(0, 1), (), array, wide) + _outside(tile, role, array, wide, numbers)
    else:
        offset = tile_offsets(tile, role, array, wide, numbers)
    return offset


@triton.jit
def inside_at(run, found, tile, role: tl.constexpr, numbers=None):
    """Which of some positions along a tile exist, among those where ``found`` is true already."""
    for at in tl.static_range(2):
        if not group_field(role, at, "even"):
            position = _first(tile, role, at, numbers) + _digit(run, role, at)
            found &= position < told(numbers, group_field(role, at, "extent"))
    return found


@triton.jit
def inside(tile, role: tl.constexpr, numbers=None):
    """Which positions along a tile exist."""
    block: tl.constexpr = field(role, "block")
    return inside_at(tl.arange(0, block), tl.full((block,), True, tl.int1), tile, role, numbers)


@triton.jit
def run_inside(tile, role: tl.constexpr, array: tl.constexpr, numbers=None):
    """Which of the positions that :func:`run_offsets` gives exist."""
    if lacks(role, 0, array) and lacks(role, 1, array):
        found = tl.full((1,), True, tl.int1)
    else:
        found = inside(tile, role, numbers)
    return found


@triton.jit
def load_tile(
    array, down_tile, down: tl.constexpr, across_tile, across: tl.constexpr, at: tl.constexpr, wide: tl.constexpr,
    numbers=None,
):  # fmt: skip
    """The elements of array number ``at`` in a tile of two roles; 0 where none exist."""
    return tl.load(
        array
        + tile_offsets(down_tile, down, at, wide, numbers)[:, None]
        + tile_offsets(across_tile, across, at, wide, numbers)[None, :],
        mask=inside(down_tile, down, numbers)[:, None] & inside(across_tile, across, numbers)[None, :],
        other=0,
    )


@triton.jit
def block_offsets(
    one_tile, one: tl.constexpr, other_tile, other: tl.constexpr, array: tl.constexpr, wide: tl.constexpr, numbers=None
):
    """Offsets in a tile of two roles, with a dimension for each of their groups."""
    return (
        group_offsets(one_tile, one, 0, array, wide, numbers)[:, None, None, None]
        + group_offsets(one_tile, one, 1, array, wide, numbers)[None, :, None, None]
        + group_offsets(other_tile, other, 0, array, wide, numbers)[None, None, :, None]
        + group_offsets(other_tile, other, 1, array, wide, numbers)[None, None, None, :]
    )


@triton.jit
def _group_run_inside(tile, role: tl.constexpr, at: tl.constexpr, array: tl.constexpr, numbers):
    """Which positions along a group exist; a single one where the array has no axis of the group."""
    if lacks(role, at, array):
        found = tl.full((1,), True, tl.int1)
    else:
        found = group_inside(tile, role, at, numbers)
    return found


@triton.jit
def block_inside(one_tile, one: tl.constexpr, other_tile, other: tl.constexpr, array: tl.constexpr, numbers=None):
    """Which of the positions that :func:`block_offsets` gives exist."""
    return (
        _group_run_inside(one_tile, one, 0, array, numbers)[:, None, None, None]
        & _group_run_inside(one_tile, one, 1, array, numbers)[None, :, None, None]
        & _group_run_inside(other_tile, other, 0, array, numbers)[None, None, :, None]
        & _group_run_inside(other_tile, other, 1, array, numbers)[None, None, None, :]
    )


@triton.jit
def store_tile(out, product, row_tile, column_tile, tiling: tl.constexpr, columns: tl.constexpr, numbers=None):
    """A tile of the result, in its own dtype and order of axes."""
    rows: tl.constexpr = field(tiling, "rows")
    wide: tl.constexpr = field(tiling, "wide")
    value = product.to(out.dtype.element_ty)
    if field(tiling, "scattered"):
        place = block_offsets(row_tile, rows, column_tile, columns, 2, wide, numbers)
        exists = block_inside(row_tile, rows, column_tile, columns, 2, numbers)
        value = value.reshape(place.shape)
    else:
        place = (
            tile_offsets(row_tile, rows, 2, wide, numbers)[:, None]
            + tile_offsets(column_tile, columns, 2, wide, numbers)[None, :]
        )
        exists = inside(row_tile, rows, numbers)[:, None] & inside(column_tile, columns, numbers)[None, :]
    tl.store(out + place, value, mask=exists)


@triton.jit
def take_turn(tiling: tl.constexpr):
    """What a kernel begins with, before it reads or writes anything: programmatic dependent launch (Hopper).

    One that follows another one begins while that ends, and waits for its results.
    """
    if field(tiling, "leads"):
        gdc_launch_dependents()
    if field(tiling, "follows"):
        gdc_wait()
