"""Which tiles Hopper's kernels of attention have, the best ones first, by what was measured on H100s and H200s.

A long tile is worked on by two or three warp groups of one program, which share each block that is copied. Where keys
are few, what a tile begins and ends with takes as long as the rest: then programs of one group each share a
multiprocessor, as many as there are registers for, and one works while another begins or ends. Shorter tiles and
blocks also have less in them that doesn't exist.
"""

from __future__ import annotations

from einops_fast.backends.triton.attention.hopper.shapes import Shape, has_added, is_small, is_wide
from einops_fast.backends.triton.attention.hopper.tiles import GROUP_ROWS
from einops_fast.backends.triton.attention.problem import Problem

__all__ = ["WIDE_SHAPES", "forward_shapes", "keys_shapes", "queries_shapes"]

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

WIDE_SHAPES = [Shape(2, 64, 3), Shape(2, 64, 2), Shape(2, 64, 2, 1, 1), Shape(2, 32, 2)]
"""Of the kernels for the gradients of k and of q of wide heads."""


def forward_shapes(problem: Problem) -> list[Shape]:
    """Return those of the forward kernel."""
    together = _forward_together(problem)
    return [*_forward_alone(problem, together[0]), *together]


def _forward_together(problem: Problem) -> list[Shape]:
    """Of several warp groups.

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
        few = _width(problem) <= 96
        return [Shape(2, 128, 2, turns=turns and few), Shape(2, 64, 3), Shape(2, 64, 2)]
    if features.bias is not None and features.softcap:
        return [Shape(2, 64, stages, 2, turns=turns) for stages in (4, 3, 2)]
    narrow = _width(problem) <= _NARROW
    # With causality, most queries see fewer keys.
    long = _LONG * 3 // 2 if features.right and not features.left and not narrow else _LONG
    if min(spec.q_len, seen) < long or features.softcap or has_added(problem):
        return [*(Shape(2, 128, stages, 2) for stages in (4, 3, 2)), Shape(2, 128, 2), Shape(2, 64, 2)]
    return [Shape(3, 128, 6 if narrow else 3, 2 if features.right or narrow else 1, turns=turns)]


def _forward_alone(problem: Problem, together: Shape) -> list[Shape]:
    """Of one warp group for each program, where that takes less time than ``together``; else none.

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
    programs = 4 if _width(problem) <= _NARROW and not both else 3
    shapes = [Shape(1, 64, 3, 2, programs=programs), Shape(1, 64, 2, programs=programs)]
    if features.left:
        return shapes if features.right and problem.numbers.left + problem.numbers.right <= _MOST_KEYS else []
    if features.softcap:
        return shapes if keys <= _SOFTCAPPED else []
    if not few and _width(problem) > _NARROW:
        shapes = [Shape(1, 128, 2, 2, programs=2), Shape(1, 128, 2, programs=2)]
    if keys <= _MOST_KEYS:
        return shapes
    alone, several = (_rows_in_turn(problem, shape) for shape in (shapes[0], together))
    return shapes if not features.right and alone * _ALONE[together.groups] < several else []


def _rows_in_turn(problem: Problem, shape: Shape) -> int:
    """How many rows a multiprocessor has, of all the tiles that it works on side by side and one after the other."""
    rows = GROUP_ROWS * shape.groups
    tiles = problem.elements * -(-problem.spec.q_len // rows)
    return -(-tiles // (problem.units * shape.programs)) * rows * shape.programs


def keys_shapes(problem: Problem) -> list[Shape]:
    """Of the kernel for the gradients of k and v of heads that aren't wide: tiles have keys, blocks queries."""
    if not is_small(problem):
        return [Shape(2, 64, 2, 2), Shape(2, 64, 2), Shape(2, 32, 2)]
    shapes = [*(Shape(2, 64, stages, 2) for stages in (4, 3, 2)), Shape(2, 64, 2), Shape(2, 32, 2)]
    features, queries = problem.features, problem.spec.q_len
    narrow = _width(problem) <= _NARROW
    if not _is_even(problem) or features.left or features.softcap or queries >= _LONG:
        return shapes
    if has_added(problem) and not narrow:
        return shapes
    if narrow and queries <= 224:
        return [Shape(1, 32, 4, 2, programs=3), *shapes]
    return [Shape(1, 64, 4, 2, programs=2), *shapes]


def queries_shapes(problem: Problem) -> list[Shape]:
    """Of the kernel for the gradient of q, and of a bias with all axes."""
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
    if _width(problem) <= _NARROW:
        suits, programs = features.right or added or keys < 512, 3
    else:
        suits, programs = features.right or added or _are_few(keys, 256), 2
    return [Shape(1, 64, 3, 2, programs=programs), *shapes] if suits else shapes


def _are_few(keys: int, most: int) -> bool:
    """Whether there are so many at most, or somewhat more and half of the last block of 128 would be empty."""
    return keys <= most or (keys <= _SPARED and -(-keys // 64) % 2 == 1)


def _is_even(problem: Problem) -> bool:
    return problem.spec.head_dim % _EVEN == 0 and problem.spec.v_head_dim % _EVEN == 0


def _width(problem: Problem) -> int:
    return max(problem.spec.head_dim, problem.spec.v_head_dim)
