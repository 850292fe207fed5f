"""Whether a result is right: its error against float64 NumPy, and how large an error may be.

Inputs are standard normal, so a sum of ``terms`` products has the size ``sqrt(terms)``: errors are given
relative to that, and one limit fits every case. The largest of many such sums are about five times as large; those of
products of several factors are more, and so is what is rounded off them: then errors are relative to a fifth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isnan, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from einops_fast.profiles.cases import Case, Shape

Values = NDArray[np.float64]

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_LARGEST = 5.0  # How many times its size the largest of many sums of products is
REFERENCE_WORK = 5e8  # Multiplications that a float64 reference may take; of a larger result only a grid is compared


def random_values(shapes: Sequence[Shape], seed: int) -> list[Values]:
    """Return standard normal values."""
    random = np.random.default_rng(seed)
    return [np.asarray(random.standard_normal(shape)) for shape in shapes]


class Reference:
    """The float64 result of a case for operands of any framework, or a grid of its elements."""

    def __init__(self, case: Case, operands: Sequence[Any], to_float64: Callable[[Any], Values] = np.asarray) -> None:
        self.case = case
        grid = _grid(case)
        parts = [to_float64(operand[_pick(term, grid)]) for term, operand in zip(case.inputs, operands, strict=True)]
        self._values: Any = np.einsum(case.equation, *parts, optimize=True)
        self._picked = _pick(case.output, grid)
        self._size = max(sqrt(case.terms), float(np.max(np.abs(self._values), initial=0.0)) / _LARGEST)

    def error(self, result: Any, to_float64: Callable[[Any], Values]) -> float:
        """Return largest error of a result, relative to the size of its elements; infinite if its shape is wrong."""
        if tuple(result.shape) != self.case.result_shape:
            return inf
        difference = np.abs(to_float64(result[self._picked]) - self._values)
        worst = float(np.max(difference, initial=0.0)) / self._size
        return inf if isnan(worst) else worst


def rounded(dtype: str, terms: int, roundings: int = 4) -> float:
    """Return what plain arithmetic loses, relative to the size of a result.

    That are roundings of the result and of steps before it to the dtype, and in a sum, which is kept in float32 at
    best, about ``sqrt(terms)`` roundings of its own size, more for the worst of many elements.
    """
    return roundings * EPSILON[dtype] + 4 * min(EPSILON[dtype], EPSILON["float32"]) * sqrt(terms)


def allowed(case: Case, dtype: str, native: float | None = None) -> float:
    """Return the largest error that counts as right: twice the native einsum's, or what plain arithmetic collects."""
    plain = rounded(dtype, case.terms)
    return max(plain, 2 * native) if native is not None else min(0.1, 2 * plain)


def _grid(case: Case) -> dict[str, slice]:
    """Return a slice per axis of the result that keeps the reference affordable.

    Steps are odd, so that the grid meets every position within a tile, and each slice ends at the last
    element, where a tile may be cut off.
    """
    extents = case.extents
    steps = dict.fromkeys(case.output, 1)

    def kept(axis: str) -> int:
        return -(-extents[axis] // steps.get(axis, 1))

    while steps and prod(map(kept, extents)) > REFERENCE_WORK:
        longest = max(steps, key=kept)
        if kept(longest) == 1:
            break
        steps[longest] += 2
    return {axis: slice((extents[axis] - 1) % step, None, step) for axis, step in steps.items()}


def _pick(term: str, grid: dict[str, slice]) -> tuple[slice, ...]:
    return tuple(grid.get(axis, slice(None)) for axis in term)
