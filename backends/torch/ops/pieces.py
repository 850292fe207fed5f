"""Pieces of tensors on a CPU, so that what is between two functions stays in the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch

from einops_fast.planning.layout import dense_strides

__all__ = ["dense_like", "outermost_first", "pieces", "room_for", "rows_of_piece"]

_ELEMENTS = 1 << 17
"""Of a piece, for each thread: several arrays of so many float32 are in its L2 cache."""

_FEW_ROWS = 16
"""Of long rows: enough that a piece takes longer than calling the functions for it."""

_MOST_KEPT = 1 << 22
"""Bytes of memory that is kept from call to call: those of a piece, for a few threads."""


class _Kept(threading.local):
    """What a thread keeps."""

    def __init__(self) -> None:
        self.rooms: dict[tuple[int, torch.dtype, torch.device], Any] = {}


_kept = _Kept()


def rows_of_piece(columns: int) -> int:
    """How many rows a piece has where each takes several calls: a few at least, also of long ones."""
    return max(_ELEMENTS * torch.get_num_threads() // columns, _FEW_ROWS)


def pieces(tensors: Sequence[Any], whole: int | None = None) -> Iterable[Sequence[Any]]:
    """The tensors, piece by piece, cut along their first axes.

    What runs between two pieces is itself no longer in the cache: there is little of it.
    """
    return _pieces(tensors, whole, _ELEMENTS * torch.get_num_threads())


def _pieces(tensors: Sequence[Any], whole: int | None, most: int) -> Iterable[Sequence[Any]]:
    count, shape = tensors[0].numel(), tensors[0].shape
    axis = None if count <= most else next((at for at, size in enumerate(shape) if at != whole and size > 1), None)
    if axis is None:
        return (tensors,)
    length = most * shape[axis] // count
    number = -(-shape[axis] // max(length, 1))
    parts = zip(*[each.chunk(number, axis) for each in tensors], strict=True)
    return parts if length else chain.from_iterable(_pieces(each, whole, most) for each in parts)


def room_for(piece: Any, dtype: torch.dtype, at: int = 0, last: Any = None) -> Any:
    """Memory for what there is of one piece at a time, in C order, with anything in it.

    It is kept for the thread's next call, or the system might find pages for it again and again, which takes as long as
    a function or two.
    """
    if last is not None and last.shape == piece.shape:
        return last
    kept, key, count = _kept.rooms, (at, dtype, piece.device), piece.numel()
    found = kept.get(key)
    if found is None or found.numel() < count:
        with torch.inference_mode(False):  # what is made in it can't be written to elsewhere
            found = torch.empty(count, dtype=dtype, device=piece.device)
        if found.nbytes <= _MOST_KEPT:
            kept[key] = found
    return found[:count].view(piece.shape)


def dense_like(x: Any, dtype: torch.dtype) -> Any:
    """A tensor without gaps, in the order of ``x``, with anything in it."""
    if x.is_contiguous():
        return torch.empty_like(x, dtype=dtype)
    return x.new_empty_strided(x.shape, dense_strides(x.shape, x.stride()), dtype=dtype)


def outermost_first(tensors: Sequence[Any], dense: Any, axis: int = 0) -> tuple[Sequence[Any], int]:
    """The tensors, broadcast to ``dense``, and an axis of it, permuted so that ``dense``, without gaps, is in C order.

    Example:
        >>> import torch
        >>> from einops_fast.backends.torch.ops.pieces import outermost_first
        >>> dense = torch.empty(2, 3, 4).permute(2, 0, 1)
        >>> (bias,), axis = outermost_first([torch.empty(3)], dense, 2)
        >>> tuple(bias.shape), axis
        ((2, 3, 4), 1)
    """
    shape = dense.shape
    tensors = [each if each.shape == shape else each.expand(shape) for each in tensors]
    if dense.is_contiguous():
        return tensors, axis
    strides = dense.stride()
    order = sorted(range(len(strides)), key=lambda at: -strides[at])
    return [each.permute(order) for each in tensors], order.index(axis)
