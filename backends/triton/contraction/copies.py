"""Operands that lie badly for a contraction kernel, and the copies that are worth a try: a step with a price."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from einops_fast.backends.triton.contraction.problems import (
    Contraction,
    multiplies_matrices,
    problem,
    slowest_first,
)
from einops_fast.backends.triton.contraction.tiling import RIGHT
from einops_fast.backends.triton.device.tiling import by_stride
from einops_fast.planning.layout import VECTOR, contiguous_strides, padded_strides
from einops_fast.planning.steps import Fused, Loop


def with_copies(step: Fused, item: int, tensor_cores: bool) -> list[tuple[dict[int, Fused], Fused]]:
    """Return ways round operands that lie badly: steps that copy some, by position, and one that reads these instead.

    With tensor cores, that is where the operands are contiguous along two different contracted axes (the smaller
    one is copied), and where one can't be loaded as fast as can be: its rows begin at odd places, or it is contiguous
    along no row, column or contracted axis. Where there is much to multiply, copies are worth it that make matrices of
    operands. Without tensor cores, it is where an operand is contiguous along a contracted axis at all, since threads
    then wait for the same bank of shared memory.

    Of a left operand that is a product itself, the factors and the right operand stay in order, and rows are padded.
    """
    if not multiplies_matrices(step):
        return []
    if len(step.reads) > 2:
        padded = _padding(step, item) if tensor_cores else None
        return [padded] if padded else []
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
    contracted_last = {at: not _along_free(step, at) for at in smaller_first}
    poor = [at for at in smaller_first if loops.loaded_bytes(at, item) < VECTOR]
    ways += [{at: contracted_last[at] for at in poor[:count]} for count in range(1, len(poor) + 1)]
    ways.append({at: contracted_last[at] for at in smaller_first if not _is_matrix(loops, at)})
    return [_copying(step, way, item) for at, way in enumerate(ways) if way and way not in ways[:at]]


def _is_matrix(loops: Contraction, at: int) -> bool:
    """Whether an operand steps through its rows (or columns) as through one axis, and through the contracted axes."""
    free = loops.columns if at else loops.rows
    return all(
        len(own[0].joined(own[1:], at)) == 1 for role in (free, loops.contracted) if (own := by_stride(role, at))
    )


def _along_free(step: Fused, at: int) -> bool:
    """Whether an operand is contiguous along an axis that the other one lacks."""
    return any(loop.strides[at] == 1 and loop.size > 1 and not loop.strides[1 - at] for loop in step.loops)


def _copying(step: Fused, copied: dict[int, bool], item: int) -> tuple[dict[int, Fused], Fused]:
    """The copies of some operands, with the contracted axes last or first, and the step that reads them.

    They come last, too, where rows (or columns) are too few to lie aligned.
    """
    copies = {}
    for at, contracted_last in copied.items():
        other = None if 1 - at in copied and 1 - at not in copies else 1 - at
        lasts = (True,) if contracted_last else (False, True)
        found = [_laid_out(step, _in_order(step, at, last), other, item) for last in lasts]
        order, strides, _ = next((each for each in found if each[-1]), found[0])
        copies[at], step = _copied(step, at, order, strides)
    return copies, step


def _laid_out(step: Fused, order: list[Loop], other: int | None, item: int) -> tuple[list[Loop], tuple[int, ...], bool]:
    """An operand's axes in this order, the strides of its copy, and whether rows begin where a thread loads at once."""
    joined = _joined(step, order, other)
    strides = padded_strides([loop.size for loop in order], joined, item)
    return order, strides, _aligned(strides[:-joined], item)


def _aligned(strides: Sequence[int], item: int) -> bool:
    """Whether a thread can load as much as can be at once, in rows with these steps between them."""
    return all(stride * item % VECTOR == 0 for stride in strides)


def _padding(step: Fused, item: int) -> tuple[dict[int, Fused], Fused] | None:
    """Padded rows of what is contiguous along the same contracted axis as the right operand, where they aren't so yet.

    Of the other factor, one element serves a whole row.
    """
    copies = {}
    for at in range(len(step.reads)):
        own = slowest_first((loop for loop in step.loops if loop.strides[at]), at)
        if not own:  # a number
            continue
        last = own[-1]
        if last.kept or last.strides[at] != 1 or last.strides[RIGHT] != 1:
            continue
        strides = padded_strides([loop.size for loop in own], 1, item)
        if _aligned([loop.strides[at] for loop in own[:-1]], item):
            continue
        if not _aligned(strides[:-1], item):
            return None
        copies[at], step = _copied(step, at, own, strides)
    return (copies, step) if copies else None


def _copied(step: Fused, at: int, order: Sequence[Loop], strides: tuple[int, ...]) -> tuple[Fused, Fused]:
    """The copy of an operand, with its axes in this order and these strides, and the step that reads it."""
    labels, shape = "".join(loop.label for loop in order), tuple(loop.size for loop in order)
    source = tuple(Loop(loop.label, loop.size, (loop.strides[at],), True) for loop in order)
    copy = Fused((0,), labels, shape, source, False, (), strides=strides)
    of_copy = dict(zip(labels, strides, strict=True))
    loops = []
    for loop in step.loops:
        own = list(loop.strides)
        own[at] = of_copy.get(loop.label, 0)
        loops.append(loop.replace(strides=tuple(own)))
    return copy, step.replace(loops=tuple(loops))


def _in_order(step: Fused, at: int, contracted_last: bool) -> list[Loop]:
    """An operand's axes as a copy has them."""
    own = [loop for loop in step.loops if loop.strides[at]]
    contracted = slowest_first((loop for loop in own if not loop.kept), 1 - at)
    batch = [loop for loop in own if loop.kept and loop.strides[1 - at]]
    free = [loop for loop in own if loop.kept and not loop.strides[1 - at]]
    if contracted_last:
        # Their order makes no difference to how the copy is read; as in the result, they may be one axis to both.
        return [*batch, *sorted(free, key=lambda loop: step.labels.index(loop.label)), *contracted]
    return [*batch, *contracted, *slowest_first(free, at)]


def _joined(step: Fused, order: Sequence[Loop], other: int | None) -> int:
    """How many of the last loops another array, which has them, too, steps through as through one.

    That is the other operand where they are contracted, which will if it isn't copied yet (``None``), else the result,
    which will in one of its orders if any will do.
    """
    of_result = dict(zip(step.labels, contiguous_strides(step.shape), strict=True))
    count = 1
    for outer, inner in zip(order[-2::-1], order[::-1], strict=False):
        if outer.kept != inner.kept:
            break
        if inner.kept:
            even = step.any_order or of_result[outer.label] == of_result[inner.label] * inner.size
        else:
            even = other is None or outer.strides[other] == inner.strides[other] * inner.size
        if not even:
            break
        count += 1
    return count
