"""Tiles of Hopper's kernels of attention, and whether shared memory holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from einops_fast.backends.triton.attention.general.tilings import power
from einops_fast.backends.triton.attention.hopper.call import BATCH_AXES
from einops_fast.backends.triton.attention.hopper.tiles import ITEM, OPERANDS, HopperTiling, own_bytes, stage_bytes
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.planning.cost import ITEM_SIZES

__all__ = [
    "Shape",
    "bytes_of_one",
    "fitting",
    "has_added",
    "is_small",
    "is_wide",
    "parts_of_sums",
    "shared_bytes",
]

_MULTIPROCESSOR_BYTES = 228 << 10
"""Shared memory that programs have to share."""

_RESERVED = 1 << 10
"""Bytes of it that each program loses to the driver."""

_BARRIERS = 1 << 10
"""Bytes of a program that aren't for tiles, amply."""


def has_added(problem: Problem) -> bool:
    """Whether there is a bias or a mask, which takes registers."""
    return problem.features.bias is not None or problem.features.mask is not None


class Shape(NamedTuple):
    """Warp groups, block and stages; tiles of a program's own; stages of a block's second array, if there are fewer.

    With ``turns``, warp groups take turns at beginning their products. As many ``programs`` share a multiprocessor.
    """

    groups: int
    block: int
    stages: int
    own: int = 1
    second: int = 0
    turns: bool = False
    programs: int = 1


def _in_three_quarters(features: int, tile: int) -> bool:
    """Whether so much of a tile is enough for the features."""
    return tile >= 128 and features <= tile * 3 // 4


def fitting(
    problem: Problem, shapes: Sequence[Shape], length: int, size: Callable[[HopperTiling], int], **others: bool
) -> HopperTiling:
    """Return the first tiling for which there is shared memory.

    Args:
        problem: what is computed.
        shapes: of tilings, the best one first.
        length: that blocks divide among them; no block is longer than it asks for.
        size: bytes of shared memory that a tiling takes.
        others: fields of the tiling.
    """
    features, strides = problem.features, problem.strides
    missing = BATCH_AXES - features.axes

    def axes(name: str) -> tuple[bool, ...]:
        tail = strides.q if name == "out" or getattr(strides, name) is None else getattr(strides, name)
        return (*(False,) * missing, *(name == "out" or stride != 0 for stride in tail[:-2]))

    present = features.head_dim, features.v_head_dim
    heads = power(present[0]), power(present[1])
    found = [
        HopperTiling(
            **shape._replace(block=min(shape.block, power(length)))._asdict(),
            head=heads[0],
            v_head=heads[1],
            has=tuple(axes(name) for name in OPERANDS),
            left=features.left,
            right=features.right,
            softcap=features.softcap,
            grouped=problem.share > 1,
            bias=features.bias,
            mask=features.mask,
            bias_item=ITEM_SIZES.get(problem.dtype("bias"), 0),
            three_quarters=(_in_three_quarters(present[0], heads[0]), _in_three_quarters(present[1], heads[1])),
            **others,
        )
        for shape in shapes
    ]
    return next(tiling for tiling in found if tiling is found[-1] or size(tiling) <= _room(tiling.programs))


def _room(programs: int) -> int:
    """Bytes for tiles of each of so many programs that share a multiprocessor."""
    return _MULTIPROCESSOR_BYTES // programs - _RESERVED - _BARRIERS


def shared_bytes(tiling: HopperTiling) -> int:
    """Of two arrays' tiles, of all blocks, and of rows' numbers where blocks have queries."""
    rows = 2 * tiling.block * ITEM_SIZES["float32"] if tiling.turned else 0
    fewer = tiling.stages - tiling.second if tiling.second else 0
    blocks = tiling.stages * (stage_bytes(tiling) + rows) - fewer * tiling.block * tiling.kept(1) * ITEM
    return int(own_bytes(tiling) + blocks)


def bytes_of_one(tiling: HopperTiling) -> int:
    """The same where a program has tiles of one array, and one of another leaves: from the same memory if as wide."""
    leaving = not (tiling.wide and tiling.alike)
    return shared_bytes(tiling) - tiling.rows * tiling.kept(1) * ITEM * (tiling.own - leaving)


def is_wide(problem: Problem) -> bool:
    """Whether heads are so wide that a program has room for one sum of its rows only."""
    return max(problem.spec.head_dim, problem.spec.v_head_dim) > 128


def is_small(problem: Problem) -> bool:
    """Whether heads are so narrow that a program has room for several tiles."""
    return max(problem.spec.head_dim, problem.spec.v_head_dim) <= 64


def parts_of_sums(tiles: int, sharers: int, units: int) -> int:
    """In how many parts to sum up the gradient of a bias with so many tiles, each of which so many elements share.

    By time, in that of a step from one element to the next: a tile's beginning and end take about as long as four, and
    adding parts together about as long as eight and a fiftieth for each tile.

    Args:
        units: multiprocessors of the device.
    """

    def steps(parts: int) -> float:
        found = -(-tiles * parts // units) * (-(-sharers // parts) + 4)
        return found if parts == 1 else found + 8 + tiles * parts / 50

    return min(range(1, min(sharers, max(1, 2 * units // tiles)) + 1), key=steps)
