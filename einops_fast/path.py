"""The order in which pairs are contracted, by opt_einsum. One and two operands never ask for it."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex

from einops_fast.errors import EinsumError
from einops_fast.notation import Subscripts

__all__ = ["Path", "candidate_paths"]

Path = tuple[tuple[int, ...], ...]


def candidate_paths(
    subscripts: Subscripts, shapes: Sequence[tuple[int, ...]], optimize: Any, room: int | None
) -> list[Path]:
    """Paths worth pricing, best by FLOPs first; a single one where the caller chose.

    Args:
        subscripts: the parsed equation.
        shapes: shape of each operand.
        optimize: ``'auto'`` or ``True``; ``False`` (left to right); the name of an opt_einsum optimizer or an
            optimizer object; an explicit path, with or without NumPy's leading ``'einsum_path'``; or a pair
            ``(name, memory_limit)`` with the limit in elements, as in NumPy.
        room: elements that the largest intermediate may have, if known. A path that needs more is returned
            only if every path does; then it's the one that needs least.

    Raises:
        EinsumError: ``optimize`` is none of these.
    """
    count = len(shapes)
    if count < 3:
        return [(tuple(range(count)),)]
    explicit = _explicit(optimize, count)
    if explicit is not None:
        return [explicit]
    if optimize is False or any(0 in shape for shape in shapes):
        # Left to right. Without elements there is nothing to search for, and opt_einsum refuses to.
        return [((0, 1), *((0, left) for left in range(count - 2, 0, -1)))]
    limit = room
    if isinstance(optimize, (list, tuple)) and list(map(type, optimize)) in ([str, int], [str, float]):
        optimize, limit = optimize[0], int(optimize[1])
    if not (optimize in (None, True) or isinstance(optimize, str) or callable(optimize)):
        raise EinsumError(
            f"optimize={optimize!r} is neither a bool nor an optimizer, a path, or an optimizer and a memory limit"
        )
    own = optimize is True or optimize == "auto"
    found = [_search(subscripts, shapes, "auto" if own else optimize)]
    if own and count <= 8:
        # Fewest FLOPs is not least time where memory is the bound.
        from opt_einsum.paths import DynamicProgramming

        found.append(_search(subscripts, shapes, DynamicProgramming(minimize="write")))
    fitting = [path for path, largest in found if limit is None or largest <= limit]
    if not fitting:
        from opt_einsum.paths import DynamicProgramming

        found.append(_search(subscripts, shapes, DynamicProgramming(minimize="size")))
        fitting = [min(found, key=lambda each: each[1])[0]]
    return list(dict.fromkeys(fitting))


def _search(subscripts: Subscripts, shapes: Sequence[tuple[int, ...]], optimize: Any) -> tuple[Path, int]:
    from opt_einsum import contract_path

    try:
        path, info = contract_path(subscripts.equation, *shapes, shapes=True, optimize=optimize)
    except (KeyError, TypeError, ValueError) as error:
        raise EinsumError(f"optimize={optimize!r} is no optimizer that opt_einsum has: {error}") from error
    return tuple(tuple(sorted(pair)) for pair in path), int(info.largest_intermediate)


def _explicit(optimize: Any, count: int) -> Path | None:
    """A path given as such, checked; ``None`` if ``optimize`` is something else."""
    if not isinstance(optimize, (list, tuple)):
        return None
    steps = list(optimize)
    if steps and steps[0] == "einsum_path":
        steps = steps[1:]
    if not all(isinstance(step, (list, tuple)) for step in steps):
        return None
    left = count
    path = []
    for step in steps:
        positions = tuple(sorted({index(at) for at in step if isinstance(at, SupportsIndex)}))
        if len(positions) != len(step) or not positions or positions[0] < 0 or positions[-1] >= left:
            raise EinsumError(
                f"optimize={optimize!r}: {tuple(step)} doesn't name distinct terms of the {left} that are left"
            )
        left -= len(positions) - 1
        path.append(positions)
    if left > 1:
        path.append(tuple(range(left)))
    return tuple(path)
