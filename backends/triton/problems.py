"""From a fused step to the loops of a kernel, and the orders in which its result may lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from einops_fast.backends.triton.contraction import LEFT, RIGHT
from einops_fast.backends.triton.contraction_tilings import Contraction, contraction
from einops_fast.backends.triton.reduction_tilings import Reduction, reduction
from einops_fast.backends.triton.tiling import Axis
from einops_fast.layout import contiguous_strides
from einops_fast.steps import Fused, Loop

__all__ = ["layouts", "problem", "with_copies", "with_more_rows"]


def layouts(step: Fused) -> list[tuple[int, ...]]:
    """Strides that the result may have: C order, then orders in which the kernel's loads and stores agree."""
    kept = [loop for loop in step.loops if loop.kept]
    found = [contiguous_strides(step.shape)]
    if not step.any_order or len(kept) < 2:
        return found
    if _multiplies_matrices(step):
        batch = [loop for loop in kept if _role(loop) == "batch"]
        rows = _slowest_first((loop for loop in kept if _role(loop) == "rows"), LEFT)
        columns = _slowest_first((loop for loop in kept if _role(loop) == "columns"), RIGHT)
        orders = [batch + rows + columns, batch + columns + rows]
    else:
        largest = max(range(len(step.reads)), key=lambda at: prod(loop.size for loop in kept if loop.strides[at]))
        orders = [_slowest_first(kept, largest)]
    for order in orders:
        strides = dict(zip((loop.label for loop in order), contiguous_strides([o.size for o in order]), strict=True))
        found.append(tuple(strides[label] for label in step.labels))
    return list(dict.fromkeys(found))


def with_more_rows(step: Fused) -> tuple[Fused, bool]:
    """The step with no fewer rows than columns, and whether its two operands change places for that.

    A tile's columns can be fitted to an odd extent, its rows can't.
    """
    if not _multiplies_matrices(step) or len(step.reads) > 2:
        return step, False
    rows, columns = (prod(loop.size for loop in step.loops if _role(loop) == role) for role in ("rows", "columns"))
    if rows >= columns:
        return step, False
    return replace(step, loops=tuple(replace(loop, strides=loop.strides[::-1]) for loop in step.loops)), True


def with_copies(step: Fused, tensor_cores: bool) -> list[tuple[dict[int, Fused], Fused]]:
    """Ways round operands that lie badly for a kernel: to copy one, or both, into another order.

    With tensor cores, operands that are contiguous along two different contracted axes are the trouble: the
    smaller one is copied. Without, it is contracted axes that are contiguous at all, since threads then wait for
    the same bank of shared memory.

    Returns:
        For each way, the copies as steps of one operand, by position, and the step that reads these instead.
    """
    if not _multiplies_matrices(step) or len(step.reads) > 2:
        return []
    along = [
        next((loop for loop in step.loops if not loop.kept and loop.strides[at] == 1 and loop.size > 1), None)
        for at in (0, 1)
    ]
    sizes = [prod(loop.size for loop in step.loops if loop.strides[at]) for at in (0, 1)]
    smaller = int(sizes[1] <= sizes[0])
    if tensor_cores:
        different = along[0] is not None and along[1] is not None and along[0] != along[1]
        return [_copying(step, [smaller], contracted_last=True)] if different else []
    bad = [at for at in (smaller, 1 - smaller) if along[at] is not None]
    return [_copying(step, bad[:count], contracted_last=False) for count in range(1, len(bad) + 1)]


def _copying(step: Fused, copied: Sequence[int], contracted_last: bool) -> tuple[dict[int, Fused], Fused]:
    copies = {}
    for at in copied:
        own = [loop for loop in step.loops if loop.strides[at]]
        contracted = _slowest_first((loop for loop in own if not loop.kept), 1 - at)
        batch = [loop for loop in own if loop.kept and loop.strides[1 - at]]
        free = _slowest_first((loop for loop in own if loop.kept and not loop.strides[1 - at]), at)
        order = [*batch, *free, *contracted] if contracted_last else [*batch, *contracted, *free]
        shape = tuple(loop.size for loop in order)
        labels = "".join(loop.label for loop in order)
        source = tuple(Loop(loop.label, loop.size, (loop.strides[at],), True) for loop in order)
        copies[at] = Fused((0,), labels, shape, source, False, ())
        strides = dict(zip(labels, contiguous_strides(shape), strict=True))
        relaid = [
            tuple(strides.get(loop.label, 0) if side == at else loop.strides[side] for side in (0, 1))
            for loop in step.loops
        ]
        step = replace(step, loops=tuple(map(_with_strides, step.loops, relaid)))
    return copies, step


def _with_strides(loop: Loop, strides: tuple[int, ...]) -> Loop:
    return replace(loop, strides=strides)


def problem(step: Fused, strides: Sequence[int]) -> Contraction | Reduction:
    """The step as loops by role, for a result with these strides."""
    of_result = dict(zip(step.labels, strides, strict=True))
    if _multiplies_matrices(step):
        roles: dict[str, list[Axis]] = {"batch": [], "rows": [], "columns": [], "contracted": []}
        for loop in step.loops:
            left, right, *factor = loop.strides
            roles[_role(loop)].append(Axis(loop.size, (left, right, of_result.get(loop.label, 0), *factor)))
        return contraction(**roles)
    axes = [(loop, Axis(loop.size, (*loop.strides, of_result.get(loop.label, 0)))) for loop in step.loops]
    free = [axis for loop, axis in axes if loop.kept]
    return reduction(len(step.reads), free, [axis for loop, axis in axes if not loop.kept])


def _role(loop: Loop) -> str:
    if not loop.kept:
        return "contracted"
    right = loop.strides[RIGHT]
    left = any(stride for at, stride in enumerate(loop.strides) if at != RIGHT)
    return "rows" if left and not right else "columns" if right and not left else "batch"


def _multiplies_matrices(step: Fused) -> bool:
    """Whether elements of both operands are used more than once: there are rows, columns and a sum.

    Of three operands, the first and the last are multiplied element by element to be the left one.
    """
    if len(step.reads) not in (2, 3):
        return False
    roles = {_role(loop) for loop in step.loops if loop.size > 1}
    return roles >= {"rows", "columns", "contracted"}


def _slowest_first(loops: Iterable[Loop], array: int) -> list[Loop]:
    return sorted(loops, key=lambda loop: -abs(loop.strides[array]))
