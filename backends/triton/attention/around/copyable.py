"""Which arrays Hopper's kernels of attention can get at, and which others to copy for them."""

from __future__ import annotations

from collections.abc import Iterable

from einops_fast.backends.triton.attention.problem import Layout, Problem
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.planning.cost import ITEM_SIZES

__all__ = ["addressable", "copyable", "odd_added", "reachable"]

_FAR = 1 << 31
"""Strides of what the hardware doesn't copy are less than this."""

_SCORES = 1 << 17
"""Of fewer there are no copies, which are a launch more."""

_MOST_BYTES = 2 << 30
"""Of a copy."""


def copyable(strides: tuple[int, ...], item: int) -> bool:
    """Whether the hardware can count through an array's axes."""
    *others, last = strides
    return last == 1 and all(stride >= 0 and stride * item % ALIGNMENT == 0 for stride in others) and others[-1] > 0


def addressable(strides: Iterable[int]) -> bool:
    """Whether the kernels can go along an array's axes by themselves."""
    return all(abs(stride) < _FAR for stride in strides)


def reachable(strides: tuple[int, ...] | None, along: tuple[bool, bool] | None, item: int) -> bool:
    """Whether the kernels can get at a bias or a mask, if there is one."""
    if strides is None or along is None:
        return True
    if along == (True, True):
        return copyable(strides, item)
    return addressable(strides)


def odd_added(problem: Problem, name: str, dtype: str) -> Layout | None:
    """How a bias, its gradient or a mask lies that the hardware can't copy, where it is to be copied for it.

    That's even where each element of the batch has its own: at 4×16×2049×64 in bfloat16, an H200 took 2.7 times as long
    with the kernels for any strides, copies included. It takes as much memory again, which is bounded.

    Args:
        problem: what is computed.
        name: of the array, as :class:`Strides` has it.
        dtype: of it.
    """
    strides = getattr(problem.strides, name)
    along = problem.features.mask if name == "mask" else problem.features.bias
    if strides is None or along != (True, True) or problem.features.wide_scores:
        return None
    if copyable(strides, ITEM_SIZES[dtype]):
        return None
    copied = ITEM_SIZES[dtype] * problem.q_len * problem.kv_len
    for size, stride in zip(problem.sizes, strides, strict=False):
        copied *= size if stride else 1
    if problem.elements * problem.q_len * problem.kv_len < _SCORES or copied > _MOST_BYTES:
        return None
    return (*problem.sizes, problem.q_len, problem.kv_len), strides
