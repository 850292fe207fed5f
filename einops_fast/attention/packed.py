"""Queries, keys and values that are parts of one array."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import accumulate
from typing import Any

from einops_fast.runtime.tracing import is_tracing

__all__ = ["apart", "of_nested_tensors", "views"]


def apart(packed: Any, axis: int, sizes: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Return views of an array's parts along an axis: of these sizes, or without the axis, one for each position.

    Of torch's tensors, the gradients of the parts are joined without a copy where our kernels have written them.
    """
    if getattr(packed, "is_nested", False):
        parts: tuple[Any, ...] = of_nested_tensors().parts(packed, axis)
        return parts
    if is_tracing() or not hasattr(packed, "unbind"):
        return views(packed, axis, sizes)
    found: tuple[Any, ...] = import_module("einops_fast.backends.torch.attention.parts").apart(packed, axis, sizes)
    return found


_known: list[Any] = []


def of_nested_tensors() -> Any:
    """Return the module that knows nested tensors; torch.compile can follow a call of this while tracing."""
    _wake()
    return _known[0]


def _wake() -> bool:
    if not _known:
        _known.append(import_module("einops_fast.backends.torch.attention.implementations.nested"))
    return True


# torch.compile takes what it returns as it is, and can't follow an import.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]


def views(packed: Any, axis: int, sizes: Sequence[int] | None) -> tuple[Any, ...]:
    """Return the same with gradients as the framework makes them."""
    if hasattr(packed, "unbind"):
        return tuple(packed.unbind(axis) if sizes is None else packed.split(sizes, axis))
    before = (slice(None),) * (axis % len(packed.shape))
    if sizes is None:
        return tuple([packed[(*before, at)] for at in range(packed.shape[axis])])
    ends = list(accumulate(sizes))
    return tuple([packed[(*before, slice(end - size, end))] for end, size in zip(ends, sizes, strict=True)])
