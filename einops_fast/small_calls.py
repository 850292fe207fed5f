"""Calls of NumPy's einsum that are left to its own loops at once: the operands are so small that nothing is faster.

Looking up a plan and calling BLAS takes 2 µs longer than the loops take to start. :func:`loops_suffice` is the one
place that decides. It says no while there is an observer, which sees every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from types import FunctionType
from typing import Any

from einops_fast.function_body import FunctionBody
from einops_fast.observers import observed
from einops_fast.plan_cache import emptied_with_plans, keep

__all__ = ["SmallCalls", "loops_suffice"]

_MOST_ELEMENTS = 1 << 13
"""The largest operand that has all labels, one iteration for each element: 1000 iterations take 0.3 µs."""

_MOST = 24_000
"""The largest product of two operands' sizes: matrices of 12 × 12. Those of 16 × 16 are as fast by BLAS."""

_MOST_OF_LISTS = 1 << 19
"""The same for a call with lists of labels, which take 10 µs to become an equation: matrices of 26 × 26."""

_rules: dict[str | int, tuple[int, int, int]] = emptied_with_plans({})
"""Two places among the operands whose sizes are multiplied, and the largest product; by equation or count of lists."""


def loops_suffice(operands: Sequence[Any]) -> bool:
    """Return whether NumPy's loops are the fastest for these operands.

    Args:
        operands: of ``numpy.einsum``, of either form and of any types; they may be wrong.

    Example:
        >>> import numpy as np
        >>> from einops_fast.small_calls import loops_suffice
        >>> loops_suffice(("ij,jk->ik", np.ones((2, 2)), np.ones((2, 2))))
        True
        >>> loops_suffice(("ij,jk->ik", np.ones((99, 99)), np.ones((99, 99))))
        False
    """
    try:
        key = operands[0]
        if type(key) is not str:
            key = len(operands)
        first, second, most = _rules[key] if key in _rules else _learn(key)
        one, other = operands[first], operands[second]
        # The loops of dtypes without a number, which are other packages', return zeros.
        return one.size * other.size <= most and one.dtype.num >= 0 <= other.dtype.num  # type: ignore[no-any-return]
    except (AttributeError, IndexError, TypeError):  # operands that aren't arrays, or too few of them
        return False


def _learn(key: str | int) -> tuple[int, int, int]:
    """Return the rule for an equation, or for a count of operands and lists, and keep it if nobody observes."""
    if observed():
        return 0, 0, -1
    rule = _of_equation(key) if isinstance(key, str) else _of_lists(key)
    keep(_rules, key, rule)
    return rule


def _of_equation(equation: str) -> tuple[int, int, int]:
    """Bound the iterations by the sizes of one operand, or of two, that have all labels."""
    terms = [set(term) for term in equation.partition("->")[0].replace(" ", "").split(",")]
    labels = set().union(*terms)
    for at, term in enumerate(terms, 1):
        if term == labels:
            return at, at, _MOST_ELEMENTS**2
    for (at, term), (other, others) in combinations(enumerate(terms, 1), 2):
        if term | others == labels:
            return at, other, _MOST
    return 1, 1, -1  # no small bound


def _of_lists(count: int) -> tuple[int, int, int]:
    """Bound the iterations by the sizes of all arrays: one for two or three arguments, two for four or five."""
    if count in (2, 3):
        return 0, 0, _MOST_ELEMENTS**2
    return (0, 2, _MOST_OF_LISTS) if count in (4, 5) else (0, 0, -1)


class SmallCalls:
    """Exchanges the code of ``numpy.einsum`` for one that calls NumPy's loops, or our function, and puts it back.

    NumPy's C code asks a generator for the operands that may have ``__array_function__``. A function that returns them
    as a tuple takes 0.3 µs less, which pays for :func:`loops_suffice`.
    """

    def __init__(self, body: FunctionBody) -> None:
        self._body, names = body, body.native.__globals__
        # Somebody may have put a function of their own in the place of NumPy's.
        self._code = _loops_first.__code__ if "c_einsum" in names else None
        dispatcher = names.get("_einsum_dispatcher")
        self._dispatcher = FunctionBody(dispatcher) if isinstance(dispatcher, FunctionType) else None

    def exchange(self, target: Callable[..., Any]) -> None:
        """Have every call that isn't small call ``target``."""
        self._body.exchange(target, self._code, _einops_fast_loops_suffice=loops_suffice)
        if self._dispatcher is not None:
            self._dispatcher.exchange(target, _operands_to_dispatch.__code__)

    def put_back(self) -> None:
        """Give NumPy's functions their own code again."""
        self._body.put_back()
        if self._dispatcher is not None:
            self._dispatcher.put_back()


def _loops_first(*operands: Any, out: Any = None, **options: Any) -> Any:
    # Runs among the globals of NumPy's module, which has c_einsum. With optimize=False, NumPy does the same.
    if _einops_fast_loops_suffice(operands):  # type: ignore[name-defined]  # noqa: F821
        if out is None and not options:
            return c_einsum(*operands)  # type: ignore[name-defined]  # noqa: F821
        if options.get("optimize", False) is False:
            options.pop("optimize", None)
            if out is not None:
                options["out"] = out
            return c_einsum(*operands, **options)  # type: ignore[name-defined]  # noqa: F821
    if len(operands) <= 3 and options.get("optimize") is False:
        del options["optimize"]  # one or two arrays have no intermediates
    if out is not None:
        options["out"] = out
    return _einops_fast_target(*operands, **options)  # type: ignore[name-defined]  # noqa: F821


def _operands_to_dispatch(*operands: Any, out: Any = None, optimize: Any = None, **kwargs: Any) -> Any:
    return operands if out is None else (*operands, out)
