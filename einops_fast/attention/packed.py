"""Queries, keys and values that are parts of one array."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any


def apart(packed: Any, axis: int, sizes: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Return views of an array's parts along an axis: of these sizes, or without the axis, one for each position."""
    if getattr(packed, "is_nested", False):
        from einops_fast.backends.torch.attention.implementations.nested import parts

        return parts(packed, axis)
    if hasattr(packed, "unbind"):
        return tuple(packed.unbind(axis) if sizes is None else packed.split(sizes, axis))
    before = (slice(None),) * (axis % len(packed.shape))
    if sizes is None:
        return tuple([packed[(*before, at)] for at in range(packed.shape[axis])])
    ends = list(accumulate(sizes))
    return tuple([packed[(*before, slice(end - size, end))] for end, size in zip(ends, sizes, strict=True)])
