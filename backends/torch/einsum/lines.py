"""Sums of products of two tensors of which one lies transposed, on a CPU: a matrix product for each few cache lines.

Multiplying ``a[i, j]`` and ``b[j, i]`` element by element reads one of them across its rows, and so does a copy of it.
Here ``i`` is cut into pieces of a few cache lines. For each piece, the diagonal of the small matrix
``a[piece, :] @ b[:, piece]`` holds the sums over ``j``; the rest of that matrix is thrown away. BLAS reads both
operands line by line, and makes its 16 or 24 times as many multiplications in less time than memory takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

import torch

_WIDTHS = {torch.float32: 16, torch.float64: 24}
"""Extent of a piece: whole lines of 64 bytes, and as many elements as kernels of products make at a time.

Where rows are longer than a page, the next one of ``b`` is looked for in the tables of pages; with one line of float64
at a time, that takes three times as long as reading it.
"""

_LEAST = {torch.float32: (1 << 17, 1 << 14), torch.float64: (1 << 21, 1 << 18)}
"""Elements of an operand from which on a stack of matrix products takes less time than to turn it over in the cache.

By one thread, and by several.
"""

_SHORT = 16
"""Elements of a contracted axis below which matrix products take longer than products of elements."""

Strides = tuple[int, ...]


def sum_by_lines(a: Any, b: Any, summed: int) -> Any | None:
    """Return the product of two tensors, summed over its last ``summed`` axes.

    ``None`` unless both have all axes, in float32 or float64, and lie along different axes, of which at least one is
    summed, in large enough pieces.
    """
    shape, width = tuple(a.shape), _WIDTHS.get(a.dtype)
    if width is None or shape != tuple(b.shape):
        return None
    least = _LEAST[a.dtype][torch.get_num_threads() > 1]
    pieces = _pieces(shape, a.stride(), b.stride(), len(shape) - summed, width, least)
    if pieces is None:
        return None
    diagonals = []
    for stack in pieces.stacks:
        left, right = (
            each.as_strided(sizes, strides, each.storage_offset() + offset)
            for each, (sizes, strides, offset) in zip((a, b), stack, strict=True)
        )
        diagonals.append(torch.bmm(left, right).diagonal(0, 1, 2))
    return pieces.gathered(diagonals)


_Stack = tuple[tuple[Strides, Strides, int], tuple[Strides, Strides, int]]
"""The layout of either operand of a batched product: shape, strides, offset."""


@dataclass(frozen=True)
class _Axis:
    """Neighbouring axes that are one axis in both tensors; ``first`` is the first of them."""

    first: int
    size: int
    strides: tuple[int, int]
    kept: bool


@dataclass(frozen=True)
class _Pieces:
    """The batched products of a sum, and how their diagonals become the result."""

    stacks: tuple[_Stack, ...]  # the products
    axes: tuple[_Axis, ...]  # those of all diagonals together, the last of which was cut into pieces
    # each stack has the same piece of all other axes; else all whole pieces, or the rest, for one place along
    # these
    by_line: bool
    shape: tuple[int, ...]  # of the result

    def gathered(self, diagonals: list[Any]) -> Any:
        """Return the result, of the diagonals of all products."""
        sizes = [axis.size for axis in self.axes]
        sums = torch.cat(diagonals if self.by_line else [each.reshape(-1) for each in diagonals], -1)
        if not self.shape:
            return sums.sum()
        sums = sums.reshape(sizes)
        left_over = [at for at, axis in enumerate(self.axes) if not axis.kept]
        if left_over:
            sums = sums.sum(left_over)
        kept = [axis.first for axis in self.axes if axis.kept]
        return sums.permute([kept.index(first) for first in sorted(kept)]).reshape(self.shape)


@lru_cache(maxsize=1024)
def _pieces(shape: Strides, left: Strides, right: Strides, kept: int, width: int, least: int) -> _Pieces | None:
    axes = _merged(shape, left, right, kept)
    lines, along = (next((axis for axis in axes if axis.strides[at] == 1), None) for at in (1, 0))
    if lines is None or along is None or lines is along or (lines.kept and along.kept):
        return None
    if along.kept or (not lines.kept and lines.size > along.size):
        lines, along = along, lines
    others = [axis for axis in axes if axis is not lines and axis is not along]
    stack, pieces = prod([axis.size for axis in others]), -(-lines.size // width)
    by_line = len(others) == 1 and stack > pieces
    each = (stack * min(width, lines.size) if by_line else lines.size) * along.size
    if each < least or along.size < _SHORT:
        return None
    stacks = _by_line(lines, along, others[0], width) if by_line else _by_place(lines, along, others, width)
    return _Pieces(tuple(stacks), (*others, lines), by_line, shape[:kept])


def _by_line(lines: _Axis, along: _Axis, other: _Axis, width: int) -> Iterator[_Stack]:
    for start in range(0, lines.size, width):
        rows = min(width, lines.size - start)
        offsets = start * lines.strides[0], start * lines.strides[1]
        yield _stack(other.size, rows, other.strides, lines, along, offsets)


def _by_place(lines: _Axis, along: _Axis, others: Sequence[_Axis], width: int) -> Iterator[_Stack]:
    whole, rest = divmod(lines.size, width)
    by = width * lines.strides[0], width * lines.strides[1]
    for place in product(*[range(axis.size) for axis in others]):
        at = [sum(index * axis.strides[which] for index, axis in zip(place, others, strict=True)) for which in (0, 1)]
        if whole:
            yield _stack(whole, width, by, lines, along, (at[0], at[1]))
        if rest:
            yield _stack(1, rest, by, lines, along, (at[0] + whole * by[0], at[1] + whole * by[1]))


def _stack(count: int, rows: int, by: tuple[int, int], lines: _Axis, along: _Axis, offsets: tuple[int, int]) -> _Stack:
    left = (count, rows, along.size), (by[0], lines.strides[0], along.strides[0]), offsets[0]
    right = (count, along.size, rows), (by[1], along.strides[1], lines.strides[1]), offsets[1]
    return left, right


def _merged(shape: Strides, left: Strides, right: Strides, kept: int) -> list[_Axis]:
    """Return the axes of two tensors of one shape, merged where both allow it; the result has the first ``kept``."""
    strides = list(zip(left, right, strict=True))
    order = [*range(kept), *sorted(range(kept, len(shape)), key=lambda axis: strides[axis], reverse=True)]
    axes: list[_Axis] = []
    for axis in order:
        size, by, is_kept = shape[axis], strides[axis], axis < kept
        last = axes[-1] if axes else None
        if size == 1:
            continue
        if last is not None and last.kept is is_kept and last.strides == (by[0] * size, by[1] * size):
            axes[-1] = _Axis(last.first, last.size * size, by, is_kept)
        else:
            axes.append(_Axis(axis, size, by, is_kept))
    return axes
