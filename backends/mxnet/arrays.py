"""What the reference of attention needs of MXNet beside einsum."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from einops_fast.attention.arrays import Arrays
from einops_fast.backends.mxnet.importing import import_mxnet
from einops_fast.backends.mxnet.ops import nothing

mxnet = import_mxnet()
mnp, autograd = mxnet.np, mxnet.autograd

_FLOATS = (np.float16, np.float32, np.float64)

_one_at_a_time = threading.Lock()
"""MXNet calls such functions in several threads."""


class MxnetArrays(Arrays):
    """Arrays of ``mxnet.numpy``, which autograd may record."""

    sums_gradients = True
    most_axes = 5

    def __init__(self) -> None:
        super().__init__(mnp)

    def einsum(self, equation: str, a: Any, b: Any) -> Any:
        if a.size and b.size:
            return super().einsum(equation, a, b)
        # One of two products of matrices, without features: the gradients of its own functions would be undefined.
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        columns = b.shape[-2 if equation.endswith("ij") else -1]
        return self.nothing((*batch, a.shape[-2], columns), a, b)

    def quotient(self, a: Any, b: Any) -> Any:
        return a / b if a.size else self.nothing(a.shape, a, b)

    def permute(self, array: Any, order: tuple[int, ...]) -> Any:
        if array.dtype != bool:
            return array.transpose(order)
        return array.astype("uint8").transpose(order).astype("bool")  # it transposes no booleans

    def positions(self, start: int, count: int, like: Any) -> Any:
        return self.xp.arange(start, start + count, dtype="int64", device=like.device)

    def full(self, shape: Sequence[int], value: float, like: Any) -> Any:
        return self.xp.full(tuple(shape), value, dtype=like.dtype, device=like.device)

    def nothing(self, shape: Sequence[int], *arrays: Any) -> Any:
        return nothing(shape, arrays[0].dtype, *arrays)

    def expand(self, array: Any, shape: Sequence[int]) -> Any:
        if array.dtype in _FLOATS and not prod(shape):
            return self.nothing(shape, array)
        return super().expand(array, shape)

    def cast(self, array: Any, dtype: str) -> Any:
        return array if array.dtype == dtype else array.astype(dtype)

    def where(self, condition: Any, yes: Any, no: Any) -> Any:
        # It has no broadcasting with numbers that gradients go through, and ends the process where nothing is left.
        arrays = [each for each in (yes, no) if hasattr(each, "shape")]
        for array in arrays:
            if array.size == 0:
                return array
        like = arrays[0]
        yes, no = (each if hasattr(each, "shape") else self.full((1,), each, like) for each in (yes, no))
        return self.xp.where(condition, yes, no)

    def largest(self, array: Any) -> Any:
        return array.detach().max(axis=-1, keepdims=True)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.xp.maximum(a.detach(), b.detach())

    def dropout(self, array: Any, p: float) -> Any:
        kept = self.xp.random.uniform(size=array.shape, device=array.device) >= p
        return array * kept.astype(array.dtype) / (1 - p)

    def in_order(self, array: Any, order: tuple[int, ...]) -> Any:
        return array  # every array is contiguous, and a permutation a copy

    def whole(self, function: Callable[..., Any], pieces: Sequence[Any], arguments: Sequence[Any]) -> Any:
        floats = [at for at, array in enumerate(arguments) if array is not None and array.dtype in _FLOATS]
        wide = "float64" if any(arguments[at].dtype == np.float64 for at in floats) else "float32"
        # One argument: of several, MXNet leaves out the gradients of all after the first that needs none.
        flat = mnp.concatenate([mnp.reshape(self.cast(arguments[at], wide), (-1,)) for at in floats])
        return _Whole(function, pieces, arguments, floats)(flat)


class _Whole(autograd.Function):  # type: ignore[name-defined, misc]
    """A function of which nothing is kept but its arguments: gradients compute its pieces once more, one by one.

    MXNet itself would make an array of the whole size for the gradient of each part, and hold them all.

    Args:
        function, pieces, arguments: see :meth:`Arrays.whole`.
        floats: which arguments may have gradients; it is called with these, in one flat array.
    """

    def __init__(
        self, function: Callable[..., Any], pieces: Sequence[Any], arguments: Sequence[Any], floats: Sequence[int]
    ) -> None:
        super().__init__()
        self._function, self._pieces, self._arguments, self._floats = function, pieces, arguments, floats

    def forward(self, flat: Any) -> Any:
        self._wide = flat.dtype
        return self._function(tuple(self._arguments))

    def backward(self, *gradients: Any) -> Any:
        # MXNet calls such functions in several threads, in which axes of size 0 aren't known until it's told.
        with _one_at_a_time, mxnet.util.np_shape(True):
            return self._gradients(gradients)

    def _gradients(self, gradients: Sequence[Any]) -> Any:
        given: list[Any] = [None if array is None else array.detach() for array in self._arguments]
        sums = {at: mnp.zeros(given[at].shape, self._wide, device=given[at].device) for at in self._floats}
        for function, parts, own in self._pieces:
            leaves: list[Any] = [
                None if array is None else array[part] for array, part in zip(given, parts, strict=True)
            ]
            for at in self._floats:
                leaves[at] = leaves[at].copy()
                leaves[at].attach_grad()
            with autograd.record():
                results = function(*leaves)
            autograd.backward([*results], [gradient[own] for gradient in gradients])
            for at, total in sums.items():
                total[parts[at]] += leaves[at].grad.astype(self._wide)
                # Or MXNet would begin with others, and hold what is needed for all.
                total.wait_to_read()
        return mnp.concatenate([mnp.reshape(total, (-1,)) for total in sums.values()])
