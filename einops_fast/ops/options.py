"""Options of the operators: errors of the library's own about what is none, in plain words."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from einops_fast.errors import EinsumError

__all__ = ["check_number", "check_probability"]


def check_number(name: str, value: Any, what: str, fits: Callable[[Any], bool] = lambda value: -inf <= value) -> None:
    """Raise EinsumError unless an option is a number that fits.

    Args:
        name: of the option.
        value: what was given for it.
        what: how the number that it should be is called.
        fits: whether a number is one.
    """
    try:
        if type(value) is int:
            float(value)  # which not all are
        if fits(value):
            return
    except (OverflowError, TypeError, ValueError, RuntimeError):  # of what can't be compared, or has several elements
        pass
    raise EinsumError(f"{name} is {what}, not {value!r}")


def check_probability(p: Any, name: str = "p") -> None:
    """Raise EinsumError unless ``p`` is a probability."""
    check_number(name, p, "a probability, from 0 to 1", lambda p: 0 <= p <= 1)
