"""Which axis an operator works along: by number, or by its name in a pattern."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from einops_fast.attention.options import whole_number
from einops_fast.backends import backend_for_type
from einops_fast.errors import EinsumError, ShapeError, SubscriptsError
from einops_fast.runtime.tracing import is_tracing


def axis_of(dim: int | str | None, pattern: str | None, rank: int) -> int:
    """The axis that ``dim`` means, not negative; the last one if it is ``None``.

    >>> axis_of(-2, None, 3), axis_of('i', 'b i j', 3), axis_of(None, None, 3)
    (1, 1, 2)
    """
    names = None if pattern is None else _names(pattern, rank)
    if isinstance(dim, str):
        if names is None:
            raise _nameless(dim)
        if dim not in names:
            raise SubscriptsError(f"pattern {pattern!r} has no axis {dim!r}")
        return names.index(dim)
    at = _number(dim)
    if not -rank <= at < rank:
        raise ShapeError(f"axis {at} of an array with {rank} axes: it is from {-rank} to {rank - 1}")
    return at % rank


def class_axis(
    pattern: str | None,
    shape: Sequence[int],
    target: Sequence[int],
    weight: Sequence[int] | None = None,
    probabilities: bool = False,
) -> int:
    """Return the axis of the classes of a cross entropy whose caller gave no ``dim``: the last one, or torch's, axis 1.

    >>> class_axis(None, (2, 6, 8), (2, 6)), class_axis(None, (2, 6, 8), (2, 8)), class_axis(None, (2, 6, 6), (6,))
    (2, 1, 2)
    """
    last = axis_of(None, pattern, len(shape))
    pairs = {axis: _size_pairs(axis, shape, target, weight, probabilities) for axis in (1, last)}
    fitting = [axis for axis in pairs if _all_equal(pairs[axis])]
    if len(fitting) == 2:
        names = (1, -1) if pattern is None else [_names(pattern, len(shape))[axis] for axis in fitting]
        raise ShapeError(
            f"target of shape {tuple(target)} fits input of shape {tuple(shape)} with the classes along axis 1, where "
            f"torch's function has them, and along axis {last}: give dim={names[0]!r} or dim={names[1]!r}"
        )
    if not fitting and is_tracing():
        fitting = [axis for axis in (last, 1) if _guarded_equal(pairs[axis])]
    return fitting[0] if fitting else last


def _size_pairs(
    axis: int, shape: Sequence[int], target: Sequence[int], weight: Sequence[int] | None, probabilities: bool
) -> list[tuple[int, int]]:
    """The sizes that have to be equal for the classes to be along this axis."""
    wanted = [size for at, size in enumerate(shape) if probabilities or at != axis]
    if len(target) != len(wanted):
        return [(len(target), len(wanted))]
    classes = [] if weight is None or len(weight) != 1 else [(weight[0], shape[axis])]
    return [*zip(target, wanted, strict=True), *classes]


def _all_equal(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the sizes of each pair are the same; while traced, whatever sizes the program is called with.

    A guard on sizes that happen to differ would recompile for sizes that don't, and torch.export refuses it.
    """
    if not is_tracing():
        return all(size == other for size, other in pairs)
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return all(statically_known_true(size == other) for size, other in pairs)


def _guarded_equal(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether the sizes of each pair are both symbolic or both numbers, and equal, which the compiler then guards."""
    from torch.fx.experimental.symbolic_shapes import has_static_value

    if any(has_static_value(size) != has_static_value(other) for size, other in pairs):
        return False
    return all(size == other for size, other in pairs)


def check_axis(dim: int | str | None, pattern: str | None) -> None:
    """Raise what :func:`axis_of` raises whatever the rank is: one word names one axis, or as many as it has letters."""
    count = 1 if pattern is None else len(_text(pattern).split())
    if count > 1:
        axis_of(dim, pattern, count)
    elif not isinstance(dim, str):
        _number(dim)
    elif pattern is None:
        raise _nameless(dim)


def _nameless(dim: str) -> SubscriptsError:
    return SubscriptsError(f"axis {dim!r} has a name: give a pattern with it, as pattern='b i j'")


def _number(dim: int | None) -> int:
    try:
        return -1 if dim is None else whole_number(dim)
    except TypeError:
        raise EinsumError(f"dim is the number of an axis, or its name in a pattern, not {dim!r}") from None


def _text(pattern: str) -> str:
    if not isinstance(pattern, str):
        raise SubscriptsError(f"pattern has the names of all axes, as 'b i j', and isn't {pattern!r}")
    return pattern


def _names(pattern: str, rank: int) -> list[str]:
    pattern = _text(pattern)
    names = pattern.split()
    if len(names) == 1 != rank:
        names = list(pattern.strip())
    if len(set(names)) != len(names):
        raise SubscriptsError(f"pattern {pattern!r} has an axis twice")
    if len(names) != rank:
        raise ShapeError(f"pattern {pattern!r} has {len(names)} axes, the array has {rank}")
    return names


def of_any_size(array: Any) -> bool:
    """Whether this is in a graph that MXNet traces for arrays of any size."""
    backend = None if is_tracing() else backend_for_type(type(array))
    return backend is not None and backend.any_size()


def length(array: Any, axis: int, dtype: Any = "int64") -> Any:
    """Return the length of an axis: a number, or in a graph that MXNet traces for arrays of any size an array."""
    if of_any_size(array):
        return sys.modules["mxnet"].npx.shape_array(array)[axis].astype(dtype)
    return array.shape[axis]
