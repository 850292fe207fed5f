"""Which arrays Hopper's kernels of attention can get at, and which others to copy for them.

That's the one place where a layout costs a copy. Those of q, k, v and of the result are of what grows with the length,
and save work that grows with its square: from some hundred positions on the copies take far less time than they save.
A bias or a mask grows with the square itself; copies of them are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.problem import Layout, Problem
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.planning.cost import ITEM_SIZES

_LENGTH = 512
"""Positions from which on copies of what has features pay."""

_FAR = 1 << 31
"""Strides of what the hardware doesn't copy are less than this."""

_SCORES = 1 << 17
"""Of fewer there are no copies, which are a launch more."""

_MOST_BYTES = 2 << 30
"""Of a copy."""


def copyable(strides: tuple[int, ...], item: int) -> bool:
    """Return whether the hardware can count through an array's axes."""
    *others, last = strides
    return last == 1 and all(stride >= 0 and stride * item % ALIGNMENT == 0 for stride in others) and others[-1] > 0


def addressable(strides: Iterable[int]) -> bool:
    """Return whether the kernels can go along an array's axes by themselves."""
    return all(abs(stride) < _FAR for stride in strides)


def reachable(strides: tuple[int, ...] | None, along: tuple[bool, bool] | None, item: int) -> bool:
    """Return whether the kernels can get at a bias or a mask, if there is one."""
    if strides is None or along is None:
        return True
    if along == (True, True):
        return copyable(strides, item)
    return addressable(strides)


def odd_added(problem: Problem, name: str) -> Layout | None:
    """Return how a bias, its gradient or a mask lies that the hardware can't copy, where it is to be copied for it.

    That's even where each element of the batch has its own: at 4×16×2049×64 in bfloat16, an H200 took 2.7 times as long
    with the kernels for any strides, copies included. It takes as much memory again, which is bounded.
    """
    spec, strides, dtype = problem.spec, getattr(problem.strides, name), problem.dtype(name)
    along = problem.features.mask if name == "mask" else problem.features.bias
    if strides is None or along != (True, True) or problem.features.wide_scores:
        return None
    if copyable(strides, ITEM_SIZES[dtype]):
        return None
    copied = ITEM_SIZES[dtype] * spec.q_len * spec.kv_len
    for size, stride in zip(problem.sizes, strides, strict=False):
        copied *= size if stride else 1
    if problem.elements * spec.q_len * spec.kv_len < _SCORES or copied > _MOST_BYTES:
        return None
    return Layout((*problem.sizes, spec.q_len, spec.kv_len), strides, dtype)


def on_copies(
    problem: Problem, names: Sequence[str], suits: Callable[[Problem], bool]
) -> tuple[Problem, RowCopies | None]:
    """Return the problem; where that makes it one for Hopper's kernels and may pay, with copies of some arrays.

    ``names`` are those of arrays with features that the hardware has to copy, if the problem has them.
    """
    spec, layouts = problem.spec, problem.layouts
    if spec.dtype not in ("float16", "bfloat16"):
        return problem, None
    odd: dict[str, Layout] = {}
    # What copies reckons with 32 bits inside a tile.
    if min(spec.q_len, spec.kv_len) >= _LENGTH and not problem.features.wide:
        present, item = [name for name in names if name in layouts], ITEM_SIZES[spec.dtype]
        odd = {name: layouts[name] for name in present if not copyable(getattr(problem.strides, name), item)}
    copied = problem.on_copies(RowCopies(odd).strides) if odd else problem
    added = {name: layout for name in ("bias", "mask") if (layout := odd_added(copied, name)) is not None}
    if not (odd or added):
        return problem, None
    copies = RowCopies({**odd, **added})
    own = {name: copies.strides[name] for name in added}
    copied = replace(copied, strides=copied.strides._replace(**own))
    return (copied, copies) if suits(copied) else (problem, None)
