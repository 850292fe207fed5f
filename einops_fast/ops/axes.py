"""Which axis an operator works along: by number, or by its name in a pattern."""

from __future__ import annotations

from einops_fast.attention.options import whole_number
from einops_fast.errors import EinsumError, ShapeError, SubscriptsError

__all__ = ["axis_of", "check_axis"]


def axis_of(dim: int | str | None, pattern: str | None, rank: int) -> int:
    """The axis that ``dim`` means, not negative; the last one if it is ``None``.

    Args:
        dim: a number, as in torch, or a name in the pattern.
        pattern: the names of all axes, in letters (``'bij'``) or words (``'batch i j'``).
        rank: how many axes the array has.

    Raises:
        SubscriptsError: there is no axis of this name, or a name without a pattern.
        ShapeError: there aren't as many axes.
        EinsumError: ``dim`` is neither a number nor a name.

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
