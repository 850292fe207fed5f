"""What libraries look for beside `einsum` in a module that contracts for them: `tensordot`, `transpose`, `stack`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einops_fast.annotations import ArrayT
from einops_fast.einsum import fast_einsum
from einops_fast.errors import EinsumError


def tensordot(a: ArrayT, b: ArrayT, axes: Any = 2) -> ArrayT:
    """Return what NumPy's ``tensordot`` returns, by :func:`einops_fast.fast_einsum`."""
    of_a = [*range(len(a.shape))]
    of_b = [len(of_a) + axis for axis in range(len(b.shape))]
    pairs = [range(len(of_a) - axes, len(of_a)), range(axes)] if isinstance(axes, int) else axes
    pairs = [[each] if isinstance(each, int) else [*each] for each in pairs]
    kept_of_a, kept_of_b = [*of_a], [*of_b]
    try:
        for x, y in zip(*pairs, strict=True):
            kept_of_a.remove(of_a[x])
            kept_of_b.remove(of_b[y])
            of_b[y] = of_a[x]
    except (IndexError, TypeError, ValueError):
        shapes = f"arrays of shapes {tuple(a.shape)} and {tuple(b.shape)}"
        raise EinsumError(
            f"axes of tensordot are a number, or as many of a as of b, of {shapes}, not {axes!r}"
        ) from None
    return fast_einsum(a, of_a, b, of_b, kept_of_a + kept_of_b)


def transpose(a: ArrayT, axes: Sequence[int]) -> ArrayT:
    """Return a view of ``a`` with its axes in another order."""
    return fast_einsum(a, [*range(len(a.shape))], [*axes])


def stack(arrays: Sequence[ArrayT], axis: int = 0) -> ArrayT:
    """Return arrays along a new axis, as autoray has the arrays' own framework do it: cotengra joins slices so."""
    from autoray import do

    found: ArrayT = do("stack", arrays, axis)
    return found
