"""Products that are summed on a CPU, block by block: no array of all products is written to memory and read again.

The memory for a block is taken once and used over and over, so it stays in the cache, and the system needn't find
pages for it. Half-precision elements become float32 there, as they do in a GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product, repeat
from math import prod
from typing import Any

import torch

from einops_fast.backends.torch.einsum.lines import sum_by_lines
from einops_fast.backends.torch.types import HALVES

_SHORT = 8
"""Products in a sum up to which each is added to the result."""


def _broadcast(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a product of arrays of these shapes, which fit: torch takes 10 µs to tell."""
    rank = max(len(left), len(right))
    pairs = zip((1,) * (rank - len(left)) + tuple(left), (1,) * (rank - len(right)) + tuple(right), strict=True)
    return tuple([one if other == 1 else other for one, other in pairs])


def sum_in_blocks(a: Any, b: Any, summed: int, block: int) -> Any:
    """The product of two tensors, with broadcasting, summed over its last ``summed`` axes.

    Args:
        a, b: with the axes of the result and then those summed over; leading ones may be left out.
        summed: how many axes are summed over, at least one.
        block: elements of the product that are made at a time.
    """
    found = sum_by_lines(a, b, summed)
    if found is not None:
        return found
    dtype = a.dtype
    if summed == a.dim() and a.shape == b.shape and a.numel() <= block and a.is_contiguous() and dtype not in HALVES:
        return torch.dot(a.view(-1), b.reshape(-1))  # at once: to cut what is no more than a block takes 50 µs
    shape = _broadcast(a.shape, b.shape)
    a, b = (each[(None,) * (len(shape) - each.dim())] for each in (a, b))
    wide = torch.float32 if dtype in HALVES else dtype
    full = prod(shape)
    if b.numel() > a.numel():
        a, b = b, a
    if wide is dtype and full <= _SHORT * prod(shape[:-summed]):
        return _one_by_one(a, b, shape, summed)
    if 4 * b.numel() <= full:
        b = b.to(wide)  # each of its elements is used often
    result = a.new_empty(shape[:-summed], dtype=wide)
    _into(result, a, b, shape, summed, block)
    return result.to(dtype)


def _one_by_one(a: Any, b: Any, shape: tuple[int, ...], summed: int) -> Any:
    """A sum of few products: each is added to the result as it is made."""
    result = a.new_empty(shape[:-summed])
    for at, place in enumerate(product(*map(range, shape[-summed:]))):
        # An operand that lacks an axis has one element there.
        left, right = (each[(..., *map(min, place, [size - 1 for size in each.shape[-summed:]]))] for each in (a, b))
        if at:
            result.addcmul_(left, right)
        else:
            torch.mul(left, right, out=result)
    return result


def _into(result: Any, a: Any, b: Any, shape: tuple[int, ...], summed: int, block: int) -> None:
    """Split one axis, so that its pieces are blocks if it is long enough, and write the sums of each piece."""
    kept = len(shape) - summed
    full = prod(shape)
    # Slices of the outermost axis are in one piece; where it is summed over, each has a result of its own.
    few = 8 * prod(shape[:kept]) <= block
    axis = max(range(len(shape)), key=lambda at: (shape[at] > 1, few or at < kept, a.stride(at)))
    length = min(shape[axis], max(1, block * shape[axis] // full))
    lefts, rights = (_pieces(each, length, axis) for each in (a, b))
    if axis < kept:
        results = result.split(length, axis)
    else:
        partial = result.new_empty(-(-shape[axis] // length), *result.shape)
        results = partial.unbind(0)
    if full // shape[axis] * length <= 2 * block:
        sizes = (*shape[:axis], length, *shape[axis + 1 :])
        _sums(results, lefts, rights, axis, sizes, summed)
    else:
        sizes = (*shape[:axis], 1, *shape[axis + 1 :])
        for piece, left, right in zip(results, lefts, rights, strict=False):
            _into(piece, left, right, sizes, summed, block)
    if axis >= kept:
        torch.sum(partial, 0, out=result)


def _pieces(a: Any, length: int, axis: int) -> Iterable[Any]:
    """The operand for each piece; one that lacks the axis is the same for all."""
    return repeat(a) if a.shape[axis] == 1 else a.split(length, axis)


def _sums(
    results: Iterable[Any], lefts: Iterable[Any], rights: Iterable[Any], axis: int, shape: tuple[int, ...], summed: int
) -> None:
    """Multiply pieces of at most this shape and sum each over its last axes."""
    axes = tuple(range(-summed, 0))
    products = others = None
    for result, left, right in zip(results, lefts, rights, strict=False):
        rest = max(left.shape[axis], right.shape[axis])
        # A factor in another order is first brought to the cache as it lies, and read across there.
        turned = right.shape == left.shape and right.stride() != left.stride()
        if turned and summed == len(shape) and left.dtype == result.dtype and left.is_contiguous():
            others = torch.empty_like(left) if others is None else others.narrow(axis, 0, rest)
            torch.dot(left.view(-1), others.copy_(right).view(-1), out=result)
            continue
        if products is None:
            # Laid out like the operand: along its rows, multiplying and converting is fastest.
            products = torch.empty_like(left.expand(shape), dtype=result.dtype)
            if right.dtype != result.dtype or turned:
                others = torch.empty_like(right, dtype=result.dtype)
        product = products if rest == shape[axis] else products.narrow(axis, 0, rest)
        if others is not None:
            other = others if others.shape[axis] in (1, rest) else others.narrow(axis, 0, rest)
            factor = other.copy_(right)
        else:
            factor = right
        torch.mul(left if left.dtype == result.dtype else product.copy_(left), factor, out=product)
        torch.sum(product, axes, out=result)
