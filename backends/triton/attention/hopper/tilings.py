"""Which tiles Hopper's kernels of attention have, by what was measured on H100s and H200s and what memory holds.

A long tile is worked on by two or three warp groups of one program, which share each block that is copied. Where keys
are few, what a tile begins and ends with takes as long as the rest: then programs of one group each share a
multiprocessor, as many as there are registers for, and one works while another begins or ends. Shorter tiles and
blocks also have less in them that doesn't exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from einops_fast.backends.triton.attention.general.tilings import power
from einops_fast.backends.triton.attention.hopper.call import BATCH_AXES
from einops_fast.backends.triton.attention.hopper.tiles import (
    GROUP_ROWS,
    ITEM,
    OPERANDS,
    HopperTiling,
)
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.planning.cost import ITEM_SIZES

_LONG = 2048
"""Queries, and keys that a query sees, from which on a tile of three warp groups pays."""

_FEW = 448
"""Keys up to which blocks of 64 take the forward kernel less time than those of 128."""

_SPARED = 832
"""The same, of any of the kernels, where half of the last block of 128 would be empty."""

_NARROW = 32
"""Features for which four groups' sums and scores find room on a multiprocessor."""

_MOST_KEYS = 1024
"""That a query sees, up to which copies for one group only don't take longer than its work."""

_SOFTCAPPED = 512
"""Keys up to which that was measured with a softcap."""

_ALONE = {2: 1.1, 3: 1.2}
"""By warp groups, how many times their time programs of one group take for as many rows and more keys, at the most."""

_EVEN = 32
"""Features, rows of a multiple of which begin and end with what memory is read in.

Copies of others take twice as long: with 40 features and 4096 keys, a group alone took 612 µs, three together 299.
"""

_MULTIPROCESSOR_BYTES = 228 << 10
"""Shared memory that programs have to share."""

_RESERVED = 1 << 10
"""Bytes of it that each program loses to the driver."""

_BARRIERS = 1 << 10
"""Bytes of a program that aren't for tiles, amply."""


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


WIDE_SHAPES = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 64, 2, 1, 1), Shape(2, 32, 2)]
"""Of the kernels for the gradients of k and of q of wide heads."""


def forward_shapes(problem: Problem) -> list[Shape]:
    """Return shapes of the forward kernel, the best one first."""
    together = _forward_together(problem)
    return [*_forward_alone(problem, together[0]), *together]


def _forward_together(problem: Problem) -> list[Shape]:
    """Return shapes of several warp groups.

    Where exponentials take as long as products, turns have one group's products made during another's exponentials. A
    bias, a mask, or a tile with few blocks has groups wait for each other too long; but for a bias beside a softcap.
    With a softcap, which is more arithmetic, two groups take 0.73 to 0.88 of the time of three.
    """
    features = problem.features
    if is_wide(problem):
        return [Shape(2, 64, 3), Shape(2, 64, 2)]
    spec, seen = problem.spec, problem.spec.kv_len
    if features.left and features.right:
        seen = min(seen, int(problem.numbers.left) + int(problem.numbers.right) + 1)
    turns = features.mask is None and seen >= _LONG
    if not is_small(problem):
        few = problem.width <= 96
        return [Shape(2, 128, 2, turns=turns and few), Shape(2, 64, 3), Shape(2, 64, 2)]
    if features.bias is not None and features.softcap:
        return [Shape(2, 64, stages, 2, turns=turns) for stages in (4, 3, 2)]
    narrow = problem.width <= _NARROW
    # With causality, most queries see fewer keys.
    long = _LONG * 3 // 2 if features.right and not features.left and not narrow else _LONG
    if min(spec.q_len, seen) < long or features.softcap or has_added(problem):
        return [*(Shape(2, 128, stages, 2) for stages in (4, 3, 2)), Shape(2, 128, 2), Shape(2, 64, 2)]
    return [Shape(3, 128, 6 if narrow else 3, 2 if features.right or narrow else 1, turns=turns)]


def _forward_alone(problem: Problem, together: Shape) -> list[Shape]:
    """Return shapes of one warp group for each program, where that takes less time than ``together``; else none.

    A copied block is for one group only. So there are these where keys are few, or where tiles of several groups would
    leave many multiprocessors without one in the last round.
    """
    features, keys, added = problem.features, problem.spec.kv_len, has_added(problem)
    few = _are_few(keys, _FEW)
    if is_wide(problem) or (added and (features.left or features.softcap)):
        return []
    if not is_small(problem):
        plain = not (features.left or features.softcap or added)
        return [Shape(1, 64, 2, programs=2)] if few and plain else []
    if not _is_even(problem):
        return []
    both = features.bias is not None and features.mask is not None
    programs = 4 if problem.width <= _NARROW and not both else 3
    shapes = [Shape(1, 64, 3, 2, programs=programs), Shape(1, 64, 2, programs=programs)]
    if features.left:
        return shapes if features.right and problem.numbers.left + problem.numbers.right <= _MOST_KEYS else []
    if features.softcap:
        return shapes if keys <= _SOFTCAPPED else []
    if not few and problem.width > _NARROW:
        shapes = [Shape(1, 128, 2, 2, programs=2), Shape(1, 128, 2, programs=2)]
    if keys <= _MOST_KEYS:
        return shapes
    alone, several = (_rows_in_turn(problem, shape) for shape in (shapes[0], together))
    return shapes if not features.right and alone * _ALONE[together.groups] < several else []


def _rows_in_turn(problem: Problem, shape: Shape) -> int:
    """Return how many rows a multiprocessor has in all tiles that it works on, side by side and one after the other."""
    rows = GROUP_ROWS * shape.groups
    tiles = problem.elements * -(-problem.spec.q_len // rows)
    return -(-tiles // (problem.units * shape.programs)) * rows * shape.programs


def keys_shapes(problem: Problem) -> list[Shape]:
    """Return shapes of the kernel for k and v of heads that aren't wide: tiles have keys, blocks queries."""
    if not is_small(problem):
        return [Shape(2, 64, 2, 2), Shape(2, 64, 2), Shape(2, 32, 2)]
    shapes = [*(Shape(2, 64, stages, 2) for stages in (4, 3, 2)), Shape(2, 64, 2), Shape(2, 32, 2)]
    features, queries = problem.features, problem.spec.q_len
    narrow = problem.width <= _NARROW
    if not _is_even(problem) or features.left or features.softcap or queries >= _LONG:
        return shapes
    if has_added(problem) and not narrow:
        return shapes
    if narrow and queries <= 224:
        return [Shape(1, 32, 4, 2, programs=3), *shapes]
    return [Shape(1, 64, 4, 2, programs=2), *shapes]


def queries_shapes(problem: Problem) -> list[Shape]:
    """Return shapes of the kernel for the gradient of q, and of a bias with all axes."""
    if is_wide(problem):
        return WIDE_SHAPES
    shapes = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 32, 2)]
    if not is_small(problem):
        return shapes
    features, keys = problem.features, problem.spec.kv_len
    added = has_added(problem)
    shapes = [Shape(2, 64, 4), *shapes] if added else [Shape(2, 128, 3, 2)]
    if not _is_even(problem) or features.left or features.softcap or keys >= _LONG:
        return shapes
    if problem.width <= _NARROW:
        suits, programs = features.right or added or keys < 512, 3
    else:
        suits, programs = features.right or added or _are_few(keys, 256), 2
    return [Shape(1, 64, 3, 2, programs=programs), *shapes] if suits else shapes


def _are_few(keys: int, most: int) -> bool:
    """Return whether there are so many at most, or somewhat more and half of the last block of 128 would be empty."""
    return keys <= most or (keys <= _SPARED and -(-keys // 64) % 2 == 1)


def _is_even(problem: Problem) -> bool:
    return problem.spec.head_dim % _EVEN == 0 and problem.spec.v_head_dim % _EVEN == 0


def has_added(problem: Problem) -> bool:
    """Return whether there is a bias or a mask, which takes registers."""
    return problem.features.bias is not None or problem.features.mask is not None


def _in_three_quarters(features: int, tile: int) -> bool:
    """Return whether so much of a tile is enough for the features."""
    return tile >= 128 and features <= tile * 3 // 4


def fitting(
    problem: Problem, shapes: Sequence[Shape], length: int, size: Callable[[HopperTiling], int], **others: bool
) -> HopperTiling:
    """Return the first tiling, of ``shapes`` with the best one first, for which there is shared memory.

    No block is longer than is needed for ``length`` positions. ``size`` gives the bytes that a tiling takes.
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
    """Return the bytes for tiles of each of so many programs that share a multiprocessor."""
    return _MULTIPROCESSOR_BYTES // programs - _RESERVED - _BARRIERS


def shared_bytes(tiling: HopperTiling) -> int:
    """Return the bytes of two arrays' tiles, of all blocks, and of rows' numbers where blocks have queries."""
    rows = 2 * tiling.block * ITEM_SIZES["float32"] if tiling.turned else 0
    fewer = tiling.stages - tiling.second if tiling.second else 0
    blocks = tiling.stages * (tiling.stage_bytes + rows) - fewer * tiling.block * tiling.kept(1) * ITEM
    return tiling.own_bytes + blocks


def bytes_of_one(tiling: HopperTiling) -> int:
    """Return the same where a program has tiles of one array; another one leaves, from the same memory if as wide."""
    leaving = not (tiling.wide and tiling.alike)
    return shared_bytes(tiling) - tiling.rows * tiling.kept(1) * ITEM * (tiling.own - leaving)


def is_wide(problem: Problem) -> bool:
    """Return whether heads are so wide that a program has room for one sum of its rows only."""
    return problem.width > 128


def is_small(problem: Problem) -> bool:
    """Return whether heads are so narrow that a program has room for several tiles."""
    return problem.width <= 64


def parts_of_sums(tiles: int, sharers: int, units: int) -> int:
    """Return in how many parts to sum up the gradient of a bias with so many tiles, each shared by so many elements.

    By time, in that of a step from one element to the next: a tile's beginning and end take about as long as four, and
    adding parts together about as long as eight and a fiftieth for each tile.
    """

    def steps(parts: int) -> float:
        found = -(-tiles * parts // units) * (-(-sharers // parts) + 4)
        return found if parts == 1 else found + 8 + tiles * parts / 50

    return min(range(1, min(sharers, max(1, 2 * units // tiles)) + 1), key=steps)
