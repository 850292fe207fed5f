"""From a fused step to the loops of a kernel, and the orders in which its result may lie in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from einops_fast.backends.triton.contraction.chain.tilings import ChainProblem, chain_problem
from einops_fast.backends.triton.contraction.loops.tilings import Reduction, reduction
from einops_fast.backends.triton.contraction.matrix_tiles import LEFT, RIGHT
from einops_fast.backends.triton.contraction.pointers.tilings import Contraction, contraction
from einops_fast.backends.triton.device.tiling import Axis
from einops_fast.planning.chains import chain_of
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.steps import Fused, Loop

__all__ = ["as_reduction", "layouts", "multiplies_matrices", "problem", "slowest_first", "with_more_rows"]


def layouts(step: Fused) -> list[tuple[int, ...]]:
    """Strides that the result may have: C order, then orders in which the kernel's loads and stores agree."""
    kept = [loop for loop in step.loops if loop.kept]
    found = [step.strides or contiguous_strides(step.shape)]
    if not step.any_order or len(kept) < 2:
        return found
    sides = _sides(step)
    if sides is not None:
        batch, rows, columns = sides
        orders = [batch + rows + columns, batch + columns + rows]
    else:
        largest = max(range(len(step.reads)), key=lambda at: prod(loop.size for loop in kept if loop.strides[at]))
        orders = [slowest_first(kept, largest)]
    for order in orders:
        strides = dict(zip((loop.label for loop in order), contiguous_strides([o.size for o in order]), strict=True))
        found.append(tuple(strides[label] for label in step.labels))
    return list(dict.fromkeys(found))


def _sides(step: Fused) -> tuple[list[Loop], list[Loop], list[Loop]] | None:
    """Batch, rows and columns of the result of a matrix product, or of a chain; ``None`` if it is neither."""
    chain = chain_of(step.loops)
    if chain is not None:
        return list(chain.batch), slowest_first(chain.rows, 0), slowest_first(chain.columns, -1)
    if not multiplies_matrices(step):
        return None
    kept = [loop for loop in step.loops if loop.kept]
    batch, rows, columns = ([loop for loop in kept if _role(loop) == role] for role in ("batch", "rows", "columns"))
    return batch, slowest_first(rows, LEFT), slowest_first(columns, RIGHT)


def with_more_rows(step: Fused) -> tuple[Fused, bool]:
    """The step with no fewer rows than columns, and whether its two operands change places for that.

    A tile's columns can be fitted to an odd extent, its rows can't.
    """
    if not multiplies_matrices(step) or len(step.reads) > 2:
        return step, False
    rows, columns = (prod(loop.size for loop in step.loops if _role(loop) == role) for role in ("rows", "columns"))
    if rows >= columns:
        return step, False
    return step.replace(loops=tuple(loop.replace(strides=loop.strides[::-1]) for loop in step.loops)), True


def problem(step: Fused, strides: Sequence[int]) -> ChainProblem | Contraction | Reduction:
    """The step as loops by role, for a result with these strides."""
    of_result = dict(zip(step.labels, strides, strict=True))
    chain = chain_of(step.loops)
    if chain is not None:

        def axes_of(loops: Iterable[Loop]) -> list[Axis]:
            """Axes with their strides where the chain kernel looks for them."""
            return [
                Axis(loop.size, (loop.strides[0], loop.strides[-1], of_result.get(loop.label, 0), *loop.strides[1:-1]))
                for loop in loops
            ]

        batch, rows, columns = map(axes_of, (chain.batch, chain.rows, chain.columns))
        return chain_problem(batch, rows, columns, list(map(axes_of, chain.links)))
    if multiplies_matrices(step):
        roles: dict[str, list[Axis]] = {"batch": [], "rows": [], "columns": [], "contracted": []}
        for loop in step.loops:
            left, right, *more = loop.strides
            if step.epilogue is not None and step.epilogue.bias is not None:
                more = [dict(zip(step.labels, step.epilogue.bias, strict=True)).get(loop.label, 0)]
            roles[_role(loop)].append(Axis(loop.size, (left, right, of_result.get(loop.label, 0), *more)))
        return contraction(**roles, epilogue=step.epilogue)
    return as_reduction(step, strides)


def as_reduction(step: Fused, strides: Sequence[int]) -> Reduction:
    """The same as loops over products, be they of matrices or not."""
    of_result = dict(zip(step.labels, strides, strict=True))
    axes = [(loop, Axis(loop.size, (*loop.strides, of_result.get(loop.label, 0)))) for loop in step.loops]
    free = [axis for loop, axis in axes if loop.kept]
    return reduction(len(step.reads), free, [axis for loop, axis in axes if not loop.kept])


def _role(loop: Loop) -> str:
    if not loop.kept:
        return "contracted"
    right = loop.strides[RIGHT]
    left = any(stride for at, stride in enumerate(loop.strides) if at != RIGHT)
    return "rows" if left and not right else "columns" if right and not left else "batch"


def multiplies_matrices(step: Fused) -> bool:
    """Whether elements of both operands are used more than once: there are rows, columns and a sum.

    Of three operands, the first and the last are multiplied element by element to be the left one.
    """
    if len(step.reads) not in (2, 3):
        return False
    roles = {_role(loop) for loop in step.loops if loop.size > 1}
    return roles >= {"rows", "columns", "contracted"}


def slowest_first(loops: Iterable[Loop], array: int) -> list[Loop]:
    """The loops in the order in which they lie in one array."""
    return sorted(loops, key=lambda loop: -abs(loop.strides[array]))
