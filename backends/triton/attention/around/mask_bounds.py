"""How far a mask shows something: for each 64 positions of one kind the first and the last one of the other.

That is looked for from both ends, once for all heads that share the mask; the kernels of attention then leave out the
blocks before and after. A mask for padding shows the first keys of each sequence, one for causality those up to the
query. Of a mask that hides keys here and there, hardly more than the ends is read.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from math import prod

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.hopper.call import of_batch
from einops_fast.backends.triton.attention.hopper.tiles import GROUP_ROWS, HopperTiling, Places
from einops_fast.backends.triton.attention.launches import Launch, Room, launch
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.backends.triton.device.offsets import counted
from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.planning.layout import contiguous_strides

_WORTH = 1 << 33
"""Products that a kernel has to make, hidden or not, for a launch that may spare it some to be worth while."""

_ELEMENTS, _WARPS = 16384, 8
"""Of a mask, that a program looks at at a time; and its warps. There are few programs, which wait for these."""


@triton.jit
def _shown(row_place, rows_exist, column, columns, stride):
    """Which columns any of the rows shows."""
    exists = rows_exist[:, None] & ((column >= 0) & (column < columns))[None, :]
    values = tl.load(row_place[:, None] + (column.to(tl.int64) * stride)[None, :], mask=exists, other=0)
    return tl.max((values != 0).to(tl.int32), 0) > 0


@triton.jit(do_not_specialize=["reach"])
def mask_bounds_kernel(
    mask, bounds, sizes, strides, rows, columns, reach, together: tl.constexpr, step: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """Write two numbers for each tile of ``step`` rows of one batch element: ``bounds`` are ``(elements, tiles, 2)``.

    A mask of one column stands for ``reach`` equal positions. The rows of a tile are loaded ``together`` at a time.
    """
    element = tl.program_id(0)
    tile = tl.program_id(1)
    mask += counted(element, sizes, strides, 0, 3)
    row = tile * step + tl.arange(0, together)
    row_place = mask + row.to(tl.int64) * strides[3]
    low = reach
    start = tl.full((), 0, tl.int32)
    while (start < columns) & (low == reach):
        column = start + tl.arange(0, block)
        low = tl.min(tl.where(_shown(row_place, row < rows, column, columns, strides[4]), column, reach), 0)
        start += block
    high = tl.full((), 0, tl.int32)
    end = tl.where(low < reach, columns, 0)
    while (end > 0) & (high == 0):
        end -= block
        column = end + tl.arange(0, block)
        shown = _shown(row_place, row < rows, column, columns, strides[4])
        high = tl.max(tl.where(shown, column + 1 + (reach - columns), 0), 0)
    bounds += (element * tl.num_programs(1) + tile) * 2
    tl.store(bounds, low)
    tl.store(bounds + 1, high)


def is_bounded(problem: Problem, tiling: HopperTiling) -> bool:
    """Return whether a kernel should leave out what a mask hides.

    Elements that share a tile of keys may have masks of their own, and all has a gradient of the bias.
    """
    spec, shared = problem.spec, tiling.turned and tiling.grouped
    work = problem.elements * spec.q_len * spec.kv_len * (spec.head_dim + spec.v_head_dim)
    return tiling.mask is not None and not tiling.d_bias and not shared and work >= _WORTH


def mask_bounds(problem: Problem, tiling: HopperTiling) -> tuple[Launch, Places]:
    """Return the launch that finds the bounds of a mask for the tiles of one kernel, and where they are."""
    spec, strides = problem.spec, problem.strides.mask
    assert strides is not None
    assert tiling.mask is not None
    *batch, of_queries, of_keys = strides
    along = of_batch(batch, 0)
    own = tuple(size if stride else 1 for size, stride in zip(of_batch(problem.sizes, 1), along, strict=True))
    lengths, varies, last = (spec.q_len, spec.kv_len), tiling.mask, (of_queries, of_keys)
    if tiling.turned:
        lengths, varies, last = lengths[::-1], varies[::-1], last[::-1]
    rows, columns = (length if each else 1 for length, each in zip(lengths, varies, strict=True))
    tiles = -(-rows // tiling.rows) * tiling.groups if varies[0] else 1
    places = contiguous_strides((*own, tiles, 2))
    axes = [place if size > 1 else 0 for size, place in zip(own, places, strict=False)]
    together = min(GROUP_ROWS, power_of_two(rows))
    found = launch(
        mask_bounds_kernel,
        (prod(own), tiles),
        (own, (*along, *last), rows, columns, lengths[1]),
        {"together": together, "step": GROUP_ROWS, "block": min(_ELEMENTS // together, power_of_two(columns))},
        _WARPS,
    )
    rooms = (Room("bounds", 2 * prod(own) * tiles, "int32"),)
    return found._replace(rooms=rooms), Places._make((*axes, 2 if varies[0] else 0))
