"""Batch axes merged until a framework's functions take them all; an array that lacks one of two is expanded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from einops_fast.attention.arrays import Arrays

__all__ = ["merge_batch"]


def merge_batch(
    batch: Sequence[int], arrays: Sequence[Any], on: Arrays, first: int = 0
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Neighbouring batch axes as one, those first for which the least has to be expanded.

    Args:
        batch: sizes of all batch axes.
        arrays: with these axes, or 1 for them, and two more; ``None`` for those that there aren't.
        on: the framework, which says how many axes it takes.
        first: how many axes stay as they are.

    Example:
        >>> import numpy as np
        >>> from einops_fast.attention.arrays import arrays_of
        >>> from einops_fast.attention.fewer_axes import merge_batch
        >>> on = arrays_of('numpy')
        >>> on.most_axes = 4
        >>> batch, (q, mask) = merge_batch((2, 3, 4), (np.ones((2, 3, 4, 5, 6)), np.ones((1, 1, 4, 5, 7))), on)
        >>> del on.most_axes
        >>> batch, q.shape, mask.shape
        ((6, 4), (6, 4, 5, 6), (1, 4, 5, 7))
    """
    batch = tuple(batch)
    while len(batch) > on.most_axes - 2:
        prices = [
            sum([_elements(each, at, batch) for each in arrays if each is not None])
            for at in range(first, len(batch) - 1)
        ]
        at = first + prices.index(min(prices))
        arrays = [None if each is None else _merged(each, at, batch, on) for each in arrays]
        batch = (*batch[:at], batch[at] * batch[at + 1], *batch[at + 2 :])
    return batch, tuple(arrays)


def _expanded(array: Any, at: int, batch: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with all or none of the axes ``at`` and the next."""
    shape = tuple(array.shape)
    return shape if shape[at : at + 2] == (1, 1) else (*shape[:at], *batch[at : at + 2], *shape[at + 2 :])


def _elements(array: Any, at: int, batch: tuple[int, ...]) -> int:
    """How many there are once two axes are merged, if that takes a copy."""
    shape = _expanded(array, at, batch)
    return 0 if shape == tuple(array.shape) else prod(shape)


def _merged(array: Any, at: int, batch: tuple[int, ...], on: Arrays) -> Any:
    shape = _expanded(array, at, batch)
    if shape != tuple(array.shape):
        array = on.expand(array, shape)
    return array.reshape((*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]))
