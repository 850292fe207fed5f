"""Operands that lie badly for a contraction kernel, and the copies that are worth a try: a step with a price."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from einops_fast.backends.triton.contraction_tilings import Contraction
from einops_fast.backends.triton.matrix_tiles import loaded_bytes
from einops_fast.backends.triton.problems import multiplies_matrices, problem, slowest_first
from einops_fast.layout import contiguous_strides
from einops_fast.steps import Fused, Loop

__all__ = ["Copy", "with_copies"]

_VECTOR = 16
"""Bytes that a thread loads at once where strides allow it."""

_POOR = 8
"""Below so many bytes, loads are slow enough for a copy to be worth a try."""

_SMALL = 0.2
"""An operand that is at most such a part of both is copied already where it could be loaded faster at all."""

_MOST_EMPTY = 1.5
"""How many times as long as a row its place may be."""


@dataclass(frozen=True)
class Copy:
    """A copy of one operand: a step of its own, and the strides that the copy gets, which may leave gaps."""

    step: Fused
    strides: tuple[int, ...]


def with_copies(step: Fused, item: int, tensor_cores: bool) -> list[tuple[dict[int, Copy], Fused]]:
    """Ways round operands that lie badly for a kernel: to copy one, or both, into another order.

    With tensor cores, that is where the operands are contiguous along two different contracted axes (the smaller
    one is copied), and where one can't be loaded but by small pieces, or a small one not as fast as can be: its rows
    begin at odd places, or it is contiguous along no row, column or contracted axis. Without, it is where an operand is
    contiguous along a contracted axis at all, since threads then wait for the same bank of shared memory.

    Args:
        step: a step of two operands.
        item: bytes of an element.
        tensor_cores: whether the products are made there.

    Returns:
        For each way, the copies by position of the operand, and the step that reads these instead.
    """
    if not multiplies_matrices(step) or len(step.reads) > 2:
        return []
    along = [
        next((loop for loop in step.loops if not loop.kept and loop.strides[at] == 1 and loop.size > 1), None)
        for at in (0, 1)
    ]
    sizes = [prod(loop.size for loop in step.loops if loop.strides[at]) for at in (0, 1)]
    smaller_first = (1, 0) if sizes[1] <= sizes[0] else (0, 1)
    if not tensor_cores:
        bad = [at for at in smaller_first if along[at] is not None]
        return [_copying(step, dict.fromkeys(bad[:count], False), item) for count in range(1, len(bad) + 1)]
    ways = []
    if along[0] is not None and along[1] is not None and along[0] != along[1]:
        ways.append({smaller_first[0]: True})
    loops = problem(step, contiguous_strides(step.shape))
    assert isinstance(loops, Contraction)
    # Rows (or columns) stay last where the operand is contiguous along them.
    poor = {
        at: not _along_free(step, at)
        for at in smaller_first
        if loaded_bytes(loops.batch, loops.roles, at, item) < (_VECTOR if sizes[at] <= _SMALL * sum(sizes) else _POOR)
    }
    ways += [dict(list(poor.items())[:count]) for count in range(1, len(poor) + 1)]
    return [_copying(step, way, item) for way in ways]


def _along_free(step: Fused, at: int) -> bool:
    """Whether an operand is contiguous along an axis that the other one lacks."""
    return any(loop.strides[at] == 1 and loop.size > 1 and not loop.strides[1 - at] for loop in step.loops)


def _copying(step: Fused, copied: dict[int, bool], item: int) -> tuple[dict[int, Copy], Fused]:
    """The copies of some operands, with the contracted axes last or first, and the step that reads them."""
    copies = {}
    for at, contracted_last in copied.items():
        own = [loop for loop in step.loops if loop.strides[at]]
        contracted = slowest_first((loop for loop in own if not loop.kept), 1 - at)
        batch = [loop for loop in own if loop.kept and loop.strides[1 - at]]
        free = slowest_first((loop for loop in own if loop.kept and not loop.strides[1 - at]), at)
        order = [*batch, *free, *contracted] if contracted_last else [*batch, *contracted, *free]
        shape = tuple(loop.size for loop in order)
        labels = "".join(loop.label for loop in order)
        source = tuple(Loop(loop.label, loop.size, (loop.strides[at],), True) for loop in order)
        strides = _padded_strides(shape, _joined(step, order, 1 - at), item)
        copies[at] = Copy(Fused((0,), labels, shape, source, False, ()), strides)
        step = replace(step, loops=_read_through(step.loops, at, dict(zip(labels, strides, strict=True))))
    return copies, step


def _joined(step: Fused, order: Sequence[Loop], other: int) -> int:
    """How many of the last loops another array, which has them, too, steps through as through one.

    That is the other operand where they are contracted, else the result.
    """
    of_result = dict(zip(step.labels, contiguous_strides(step.shape), strict=True))
    strides = [of_result[loop.label] if loop.kept else loop.strides[other] for loop in order]
    count = 1
    for at in range(len(order) - 2, -1, -1):
        if order[at].kept != order[-1].kept or strides[at] != strides[at + 1] * order[at + 1].size:
            break
        count += 1
    return count


def _padded_strides(shape: Sequence[int], joined: int, item: int) -> tuple[int, ...]:
    """C order, but rows begin where a thread can load at once, unless that makes the copy much larger.

    A row is ``joined`` of the last axes.
    """
    whole = _VECTOR // item
    row = prod(shape[-joined:])
    padded = -(-row // whole) * whole
    outer = contiguous_strides([*shape[:-joined], padded if padded <= _MOST_EMPTY * row else row])[:-1]
    return *outer, *contiguous_strides(shape[-joined:])


def _read_through(loops: Sequence[Loop], at: int, strides: dict[str, int]) -> tuple[Loop, ...]:
    """The loops with other strides of one operand."""
    changed = []
    for loop in loops:
        own = list(loop.strides)
        own[at] = strides.get(loop.label, 0)
        changed.append(replace(loop, strides=tuple(own)))
    return tuple(changed)
