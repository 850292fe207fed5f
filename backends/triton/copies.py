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
        if loaded_bytes(loops.batch, loops.inner, at, item) < (_VECTOR if sizes[at] <= _SMALL * sum(sizes) else _POOR)
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
        strides = _padded_strides(shape, item)
        copies[at] = Copy(Fused((0,), labels, shape, source, False, ()), strides)
        step = replace(step, loops=_read_through(step.loops, at, dict(zip(labels, strides, strict=True))))
    return copies, step


def _padded_strides(shape: Sequence[int], item: int) -> tuple[int, ...]:
    """C order, but with rows that begin where a thread can load at once."""
    whole = _VECTOR // item
    return contiguous_strides([*shape[:-1], -(-shape[-1] // whole) * whole])


def _read_through(loops: Sequence[Loop], at: int, strides: dict[str, int]) -> tuple[Loop, ...]:
    """The loops with other strides of one operand."""
    changed = []
    for loop in loops:
        own = list(loop.strides)
        own[at] = strides.get(loop.label, 0)
        changed.append(replace(loop, strides=tuple(own)))
    return tuple(changed)
