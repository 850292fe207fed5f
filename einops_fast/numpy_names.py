"""What libraries look for beside `einsum` in a module that contracts for them: `tensordot` and `transpose`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.annotations import ArrayT
from einops_fast.einsum import fast_einsum
from einops_fast.errors import EinsumError

__all__ = ["tensordot", "transpose"]


def tensordot(a: ArrayT, b: ArrayT, axes: Any = 2) -> ArrayT:
    """Return what NumPy's ``tensordot`` returns, by :func:`einops_fast.fast_einsum`."""
    of_a = [*range(len(a.shape))]
    of_b = [len(of_a) + axis for axis in range(len(b.shape))]
    pairs = [range(len(of_a) - axes, len(of_a)), range(axes)] if isinstance(axes, int) else axes
    pairs = [[each] if isinstance(each, int) else [*each] for each in pairs]
    if len(pairs) != 2 or len(pairs[0]) != len(pairs[1]) or len(pairs[0]) > min(len(of_a), len(of_b)):
        raise EinsumError(f"axes of tensordot are a number, or as many of a as of b, not {axes!r}")
    kept = [*of_b]
    for x, y in zip(*pairs, strict=True):
        kept.remove(of_b[y])
        of_b[y] = of_a[x]
    return fast_einsum(a, of_a, b, of_b, [axis for axis in of_a if axis not in of_b] + kept)


def transpose(a: ArrayT, axes: Sequence[int]) -> ArrayT:
    """Return a view of ``a`` with its axes in another order."""
    return fast_einsum(a, [*range(len(a.shape))], [*axes])
