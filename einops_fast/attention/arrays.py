"""What the reference needs of a framework beside einsum, in one class for NumPy's dialects; others are subclasses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from math import prod
from typing import Any, ClassVar

from einops_fast.einsum import fast_einsum


class Arrays:
    """Arrays of a namespace ``xp`` with NumPy's functions."""

    #: Whether gradients of pieces are summed up by :meth:`whole`; with other random numbers than before.
    sums_gradients: ClassVar[bool] = False
    #: How many axes all functions take, whatever is broadcast to what.
    most_axes: int = 32

    def __init__(self, xp: Any) -> None:
        self.xp = xp

    def einsum(self, equation: str, a: Any, b: Any) -> Any:
        return fast_einsum(equation, a, b)

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b

    def permute(self, array: Any, order: tuple[int, ...]) -> Any:
        return array.transpose(order)

    def cast(self, array: Any, dtype: str) -> Any:
        return array if str(array.dtype) == dtype else array.astype(dtype)

    def positions(self, start: int, count: int, like: Any) -> Any:
        return self.xp.arange(start, start + count, dtype="int64")

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        return self.xp.where(condition, yes, no)

    def full(self, shape: Sequence[int], value: float, like: Any) -> Any:
        return self.xp.full(tuple(shape), value, dtype=like.dtype)

    def nothing(self, shape: Sequence[int], *arrays: Any) -> Any:
        """Return zeros that depend on other arrays, as far as gradients go: these are zeros, too."""
        return self.full(shape, 0.0, arrays[0])

    def expand(self, array: Any, shape: Sequence[int]) -> Any:
        return self.xp.broadcast_to(array, tuple(shape))

    def largest(self, array: Any) -> Any:
        """Return the largest along the last axis, which stays; no gradient goes through it."""
        return array.max(axis=-1, keepdims=True)

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger of two elements each; no gradient goes through it."""
        return self.xp.maximum(a, b)

    def sum(self, array: Any) -> Any:
        """Return the sum along the last axis, which stays."""
        return array.sum(axis=-1, keepdims=True)

    def concatenate(self, parts: Sequence[Any], axis: int) -> Any:
        return parts[0] if len(parts) == 1 else self.xp.concatenate(parts, axis=axis)

    def pieces(self, array: Any, axis: int, size: int) -> list[Any]:
        """Return the array cut along an axis into pieces of this size, and a rest."""
        before = (slice(None),) * axis
        return [array[(*before, slice(at, at + size))] for at in range(0, array.shape[axis], size)]

    def dropout(self, array: Any, p: float) -> Any:
        kept = self.xp.random.random(array.shape) >= p
        return array * kept.astype(array.dtype) / (1 - p)

    def integers(self, array: Any) -> list[int]:
        """Read the numbers of an array on the host."""
        return [int(value) for value in array.tolist()]

    def can_look(self, array: Any) -> bool:
        """Return whether its values are there without waiting for a device."""
        return bool(self.xp.__name__ != "cupy")

    def block(self, function: Callable[..., Any], gradients: bool, *arguments: Any) -> Any:
        """Call ``function``; where gradients are wanted, without keeping what it makes on the way."""
        return function(*arguments)

    def whole(self, function: Callable[..., Any], pieces: Sequence[Any], arguments: Sequence[Any]) -> Any:
        """Call ``function`` with arrays in a tuple, without keeping what it makes on the way.

        For gradients, ``pieces`` of it are functions of parts of the arguments, each with the places of these parts,
        and that of its two results in those of the whole.
        """
        return function(tuple(arguments))

    def in_order(self, array: Any, order: tuple[int, ...]) -> Any:
        """Return the array with its memory in this order of axes, if that can be said."""
        if not order or order == tuple(range(len(order))):
            return self.contiguous(array)
        inverse = tuple(map(order.index, range(len(order))))
        return self.permute(self.contiguous(self.permute(array, order)), inverse)

    def contiguous(self, array: Any) -> Any:
        return self.xp.ascontiguousarray(array)


_known: dict[str, Arrays] = {}


def arrays_of(framework: str) -> Arrays:
    """Return the class for the arrays of a backend of this name."""
    _wake(framework)
    return _known[framework]


def _wake(framework: str) -> bool:
    if framework not in _known:
        if framework == "torch":
            _known[framework] = import_module("einops_fast.backends.torch.attention.arrays").TorchArrays()
        elif framework == "mxnet":
            _known[framework] = import_module("einops_fast.backends.mxnet.arrays").MxnetArrays()
        else:
            _known[framework] = Arrays(import_module("cupy" if framework == "cupy" else "numpy"))
    return True


# torch.compile calls it while tracing, and can't follow an import.
_wake._dynamo_marked_constant = True  # type: ignore[attr-defined]


def merge_batch(
    batch: Sequence[int], arrays: Sequence[Any], on: Arrays, first: int = 0
) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """Merge batch axes, those from ``first`` on, until a framework takes them all."""
    end = first + 1 + max(0, len(batch) - (on.most_axes - 2))
    if end == first + 1:
        return tuple(batch), tuple(arrays)

    def merged(array: Any) -> Any:
        if array is None:
            return None
        before, own, after = array.shape[:first], array.shape[first:end], array.shape[end:]
        if prod(own) != 1:
            own = batch[first:end]
            array = on.expand(array, (*before, *own, *after))
        return array.reshape((*before, prod(own), *after))

    return (*batch[:first], prod(batch[first:end]), *batch[end:]), tuple([merged(each) for each in arrays])
