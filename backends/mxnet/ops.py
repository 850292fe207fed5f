"""Reshapes, sums and products on MXNet's arrays, by ways around what MXNet does slowly.

While MXNet traces a hybridized block ("deferred compute"), no size of an array may be fixed: the graph will run with
arrays of other sizes. Only :func:`sum_over` is of use then.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from einops_fast.backends.mxnet.importing import import_mxnet
from einops_fast.patching.function_body import private_copy

mxnet = import_mxnet()
mnp, npx, base = mxnet.np, mxnet.npx, mxnet.base
is_deferred: Callable[[], bool] = mxnet._deferred_compute.is_deferred_compute
# Native, also while that is patched.
native_einsum: Callable[..., Any] = private_copy(mnp.einsum)


def reshape(a: Any, shape: tuple[int, ...]) -> Any:
    """The array in this shape, sharing its memory where that can be; autograd sees it either way.

    ``mxnet.numpy`` always copies. The call that legacy arrays are reshaped with doesn't, but takes 0 for "as
    it was" and, when tracing, fixes the size that -1 stands for.
    """
    if -1 in shape or 0 in shape:
        return mnp.reshape(a, shape)
    handle = base.NDArrayHandle()
    sizes = (ctypes.c_int64 * len(shape))(*shape)
    base.check_call(base._LIB.MXNDArrayReshape64(a.handle, len(shape), sizes, False, ctypes.byref(handle)))
    return mnp.ndarray(handle=handle, writable=a.writable)


def nothing(shape: Sequence[int], dtype: Any, *arrays: Any) -> Any:
    """Return zeros of a shape, whose gradients with respect to ``arrays``, of floats, are zeros.

    Of MXNet's functions on arrays without elements, gradients are what is in memory there, or end the process; but not
    of those that take such an array from one with elements.
    """
    zeros = mnp.zeros(tuple(shape) if prod(shape) else (1,), dtype, device=arrays[0].device)
    found = mnp.where(zeros > 0, sum([mnp.sum(each).astype(dtype) for each in arrays]), zeros)
    return found if prod(shape) else found[:0].reshape(tuple(shape))


# oneDNN takes arrays of up to six axes in MXNet. Beyond that, sums fail and products don't use it.
ONEDNN_AXES = 6

# Elements from which on making the ones for a sum pays.
_WORTH_ONES = 8192


def sum_over(a: Any, axes: Sequence[int]) -> Any:
    """Sum over these axes.

    MXNet reads 15 GB/s where it sums float32 over the last axes, but 0.5 GB/s over other axes and 1.4 GB/s in
    float64. A product with ones reads 5 to 10 GB/s; where that can't be, the axes are brought to the end.
    """
    floats = a.dtype in (np.float32, np.float64)
    if floats and (a.size >= _WORTH_ONES or a.ndim > ONEDNN_AXES) and a.size and not is_deferred():
        return _sum_by_products(a, axes)
    kept = [axis for axis in range(a.ndim) if axis not in axes]
    if a.ndim > ONEDNN_AXES and a.dtype == np.float32:
        letters = ascii_letters[: a.ndim]
        return native_einsum(f"{letters}->{''.join(letters[axis] for axis in kept)}", a)
    last = a if kept == [*range(len(kept))] else mnp.transpose(a, (*kept, *axes))
    return mnp.sum(last, axis=tuple(range(len(kept), a.ndim)))


def _sum_by_products(a: Any, axes: Sequence[int]) -> Any:
    shape, after = a.shape, 1
    for summed, stretch in groupby(reversed(range(len(shape))), lambda axis: axis in axes):
        size = prod([shape[axis] for axis in stretch])
        if not summed:
            after *= size
            continue
        before = a.size // (size * after)
        if after > 1:
            a = npx.batch_dot(_ones((before, 1, size), a), reshape(a, (before, size, after)))
        elif a.dtype == np.float32:
            a = mnp.sum(reshape(a, (before, size)), axis=1)
        else:
            a = npx.batch_dot(reshape(a, (1, before, size)), _ones((1, size, 1), a))
    return reshape(a, tuple(size for axis, size in enumerate(shape) if axis not in axes))


def _ones(shape: tuple[int, ...], like: Any) -> Any:
    return mnp.ones(shape, like.dtype, device=like.device)


def multiply(a: Any, b: Any, summed: int) -> Any:
    """Elementwise product with broadcasting, summed over its last ``summed`` axes."""
    if len(_roles(a.shape, b.shape)) > _MOST_STRETCHES:
        return _einsum(a, b, summed)
    product = _multiply(a, b)
    return sum_over(product, range(product.ndim - summed, product.ndim)) if summed else product


# The most stretches of axes, each of one role, that MXNet broadcasts over.
_MOST_STRETCHES = 5


def _multiply(a: Any, b: Any) -> Any:
    """Elementwise product with broadcasting.

    In float32 oneDNN takes 70 ns per element for it, MXNet's own loops 1 ns: axes of size 1 that are put in
    front keep oneDNN out.
    """
    rank, lifted = max(a.ndim, b.ndim), ONEDNN_AXES + 1
    if a.dtype != np.float32 or a.shape == b.shape or rank >= lifted or not a.size or not b.size:
        return a * b
    shape = np.broadcast_shapes(a.shape, b.shape)
    outer = _outer(a.shape, b.shape)
    if outer is None:
        a, b = (reshape(x, (*[1] * (lifted - x.ndim), *x.shape)) for x in (a, b))
        return reshape(a * b, shape)
    batch, m, n, swapped = outer
    if swapped:
        a, b = b, a
    return reshape(npx.batch_dot(reshape(a, (batch, m, 1)), reshape(b, (batch, 1, n))), shape)


@lru_cache(maxsize=1024)
def _roles(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[tuple[str, int], ...]:
    """The axes of a product, in stretches that the same operands have: 'both', 'left' or 'right'."""
    rank = max(len(left), len(right))
    axes = []
    for one, two in zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True):
        if one != 1 or two != 1:
            axes.append(("both" if one == two else "left" if two == 1 else "right", max(one, two)))
    return tuple((role, prod([size for _, size in part])) for role, part in groupby(axes, lambda axis: axis[0]))


def _outer(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, int, int, bool] | None:
    """The product as outer products, which are matrix products and several times as fast as broadcasting.

    Returns how many, of what sizes, and whether the right operand's axes come first; ``None`` if it isn't such.
    """
    roles = _roles(left, right)
    names, sizes = [role for role, _ in roles], [size for _, size in roles]
    if names[:1] == ["both"]:
        names, batch = names[1:], sizes[0]
    else:
        batch = 1
    if sorted(names) != ["left", "right"]:
        return None
    return batch, sizes[-2], sizes[-1], names[0] == "right"


def _einsum(a: Any, b: Any, summed: int) -> Any:
    """What :func:`multiply` does, by MXNet's einsum: slow, but for up to ten axes in any order."""
    rank = max(a.ndim, b.ndim)
    terms, arrays = [], []
    for x, other in ((a, b), (b, a)):
        # Axes that are broadcast go: einsum gets their gradient wrong.
        gone = [at for at in range(-min(a.ndim, b.ndim), 0) if x.shape[at] == 1 != other.shape[at]]
        terms.append("".join(ascii_letters[rank + at] for at in range(-x.ndim, 0) if at not in gone))
        arrays.append(mnp.squeeze(x, axis=tuple(gone)) if gone else x)
    return native_einsum(f"{terms[0]},{terms[1]}->{ascii_letters[: rank - summed]}", *arrays)
