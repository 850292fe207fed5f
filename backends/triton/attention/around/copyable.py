"""Which arrays Hopper's kernels of attention can get at, and which others to copy for them.

That's the one place where a layout costs a copy. Those of q, k, v and of the result are of what grows with the length,
and save work that grows with its square: from some hundred positions on the copies take far less time than they save.
A bias or a mask grows with the square itself; copies of them are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.around.row_copies import RowCopies
from einops_fast.backends.triton.attention.problem import Layout, Problem
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.planning.cost import ITEM_SIZES

__all__ = ["addressable", "copyable", "odd_added", "on_copies", "reachable"]

_LENGTH = 512
"""Positions from which on copies of what has features pay."""

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


def on_copies(
    spec: AttentionSpec,
    layouts: Mapping[str, Layout],
    names: Sequence[str],
    bias_dtype: str,
    sort_out: Callable[[Mapping[str, Layout]], Problem],
    suits: Callable[[Problem], bool],
) -> tuple[Problem, RowCopies | None]:
    """Return the problem; where that makes it one for Hopper's kernels and may pay, with copies of some arrays.

    Args:
        spec: what is computed.
        layouts: of the arrays.
        names: of those with features that the hardware has to copy, if they are among ``layouts``.
        bias_dtype: of the bias, if there is one.
        sort_out: makes a problem of layouts.
        suits: whether one is for Hopper's kernels.
    """
    found = sort_out(layouts)
    if spec.dtype not in ("float16", "bfloat16"):
        return found, None
    odd = {}
    # What copies reckons with 32 bits inside a tile.
    if min(spec.q_len, spec.kv_len) >= _LENGTH and not found.features.wide:
        present = [name for name in names if name in layouts]
        item = ITEM_SIZES[spec.dtype]
        odd = {name: layouts[name] for name in present if not copyable(getattr(found.strides, name), item)}
    typed = {name: (layout, spec.dtype) for name, layout in odd.items()}
    moved = {name: (odd[name][0], strides) for name, strides in RowCopies(typed).strides.items()}
    copied = sort_out({**layouts, **moved}) if moved else found
    for name, dtype in (("bias", bias_dtype), ("mask", "bool")):
        added = odd_added(copied, name, dtype)
        if added is not None:
            typed[name] = added, dtype
    if not typed:
        return found, None
    copies = RowCopies(typed)
    own = {name: copies.strides[name] for name in ("bias", "mask") if name in typed}
    copied = replace(copied, strides=copied.strides._replace(**own))
    return (copied, copies) if suits(copied) else (found, None)
