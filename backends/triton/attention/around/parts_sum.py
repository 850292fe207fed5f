"""The sum of parts that lie one after the other: the end of a gradient that is summed up in parts."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Iterable
from math import prod

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.launches import Launch, Room, launch, renamed
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.backends.triton.device.tiling import power_of_two
from einops_fast.backends.triton.launching.launch import accumulator

_TILE = 2048
"""Elements that a program has on their way at a time."""

_ROWS = 64
"""Parts that it has, at most."""


@triton.jit(do_not_specialize=["count"])
def parts_kernel(parts, found, count, elements, rows: tl.constexpr, block: tl.constexpr):
    """Write the sums of ``count`` parts with so many ``elements``."""
    column = (tl.program_id(0) * block + tl.arange(0, block))[None, :]
    total = tl.zeros((rows, block), parts.dtype.element_ty)
    zero = tl.full((), 0, tl.int64)
    for start in range(0, count, rows):
        row = start + tl.arange(0, rows)[:, None]
        place = parts + (row + zero) * elements + column
        total += tl.load(place, mask=(row < count) & (column < elements), other=0)
    tl.store(found + column, tl.sum(total, 0)[None, :].to(found.dtype.element_ty), mask=column < elements)


def in_parts(launches: Iterable[Launch], problem: Problem, parts: int) -> tuple[Launch, ...]:
    """Return launches that sum up the gradient of a bias in so many parts, and then the sum of these, if several."""
    if parts <= 1:
        return tuple(launches)
    elements, rows = prod(problem.spec.bias or ()), min(_ROWS, power_of_two(parts))
    block = _TILE // rows
    names = {"parts": "d_bias parts", "found": "d_bias"}
    constants = {"rows": rows, "block": block}
    sum_up = launch(parts_kernel, (-(-elements // block), 1), (parts, elements), constants, instead=names)
    room = Room("d_bias parts", parts * elements, accumulator(problem.spec.dtype))
    first, *others = renamed(launches, {"d_bias": "d_bias parts"})
    return first._replace(rooms=(*first.rooms, room)), *others, sum_up
