"""Pieces of tensors on a CPU, so that what is between two functions stays in the cache."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from einops_fast.backends.triton.rows import dense_strides

__all__ = ["Room", "dense_like", "outermost_first", "pieces", "rows_of_piece"]

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


def pieces(tensors: Sequence[Any], whole: int | None = None) -> Iterator[Sequence[Any]]:
    """The tensors, piece by piece, cut along their first axes.

    Args:
        tensors: of one shape.
        whole: an axis that isn't cut.
    """
    return _pieces(tensors, whole, _ELEMENTS * torch.get_num_threads())


def _pieces(tensors: Sequence[Any], whole: int | None, most: int) -> Iterator[Sequence[Any]]:
    count, shape = tensors[0].numel(), tensors[0].shape
    axis = None if count <= most else next((at for at, size in enumerate(shape) if at != whole and size > 1), None)
    if axis is None:
        yield tensors
        return
    length = max(1, most * shape[axis] // count)
    for parts in zip(*[each.split(length, axis) for each in tensors], strict=True):
        yield from _pieces(parts, whole, most)


class Room:
    """Memory for what there is of one piece at a time.

    It is kept for the thread's next call, or the system would find pages for it again and again, which takes as long as
    a function or two.

    Args:
        at: which of the rooms of its dtype, each of which is used for one thing at a time.
        dtype: of what is in it.
    """

    def __init__(self, at: int, dtype: torch.dtype) -> None:
        self._key, self._dtype = (at, dtype), dtype
        self._last: Any = None

    def of(self, piece: Any) -> Any:
        """A tensor of the piece's shape, in C order, with anything in it."""
        if self._last is None or self._last.shape != piece.shape:
            self._last = self._flat(piece.numel(), piece.device).view(piece.shape)
        return self._last

    def _flat(self, count: int, device: torch.device) -> Any:
        kept, key = _kept.rooms, (*self._key, device)
        found = kept.get(key)
        if found is None or found.numel() < count:
            with torch.inference_mode(False):  # what is made in it can't be written to elsewhere
                found = torch.empty(count, dtype=self._dtype, device=device)
            if found.nbytes <= _MOST_KEPT:
                kept[key] = found
        return found[:count]


def dense_like(x: Any, dtype: torch.dtype) -> Any:
    """A tensor without gaps, in the order of ``x``, with anything in it."""
    if x.is_contiguous():
        return torch.empty_like(x, dtype=dtype)
    return x.new_empty_strided(x.shape, dense_strides(x.shape, x.stride()), dtype=dtype)


def outermost_first(tensors: Sequence[Any], dense: Any, axis: int = 0) -> tuple[Sequence[Any], int]:
    """The tensors, broadcast to ``dense``, and an axis of it, permuted so that ``dense``, without gaps, is in C order.

    Example:
        >>> import torch
        >>> from einops_fast.backends.torch_pieces import outermost_first
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
