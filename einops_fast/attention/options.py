"""What a call asks for beside its arrays, as numbers of Python, so that calls can be told apart by it.

An array of one number would be told apart by identity: who changes what is in it would get the results of before.
"""

from __future__ import annotations

import math
import operator
import sys
from typing import Any, NamedTuple

from einops_fast.errors import EinsumError, OperandError
from einops_fast.runtime.tracing import is_tracing

_FAR = 2**31 - 1
"""As many positions as no array has: any window beyond is as good."""


class Options(NamedTuple):
    """The arguments of :func:`einops_fast.attention` that are neither arrays nor about their axes."""

    causal: Any = False
    alignment: Any = None
    window: Any = None
    softcap: Any = 0.0
    scale: Any = None
    dropout_p: Any = 0.0
    return_lse: bool = False
    deterministic: bool = False


class Request(NamedTuple):
    """A call as it was read, but for its arrays: what plans are made of and kept by."""

    pattern: str  # the axes of q, k, v and the result
    sequence: Any  # names of the axes of queries and keys, as they were given
    options: Options  # everything else that was asked for
    # names of the arrays beside q, k and v, each with its own pattern if it has one
    patterns: tuple[tuple[str, str | None], ...] = ()
    longest: tuple[int, int] | None = None  # of packed sequences, queries and keys of the longest


def plain_options(options: Options) -> Options:
    """Return the options with numbers as Python's; none has a gradient, which nobody would compute."""
    causal, alignment, window, softcap, scale, dropout_p, *flags = options
    for name, flag in zip(("return_lse", "deterministic"), flags, strict=True):
        if getattr(flag, "shape", ()) != ():
            raise EinsumError(f"{name} is True or False, not {flag!r}")
    if type(softcap) is not float:
        softcap = _number("softcap", 0.0 if softcap is None else softcap)
    if type(softcap) is float and softcap == math.inf:
        softcap = 0.0  # scores that nothing caps
    if type(scale) is not float and scale is not None:
        scale = _number("scale", scale)
    if type(dropout_p) is not float:
        dropout_p = _number("dropout_p", dropout_p)
    if window is not None:
        window = _window(window)
    return Options(causal, alignment, window, softcap, scale, dropout_p, *flags)


def _number(name: str, value: Any) -> Any:
    if getattr(value, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise OperandError(f"{name} has no gradient here: detach it, and multiply q by what is to be learnt")
    try:
        if not isinstance(value, (str, bytes)):
            # A symbol that stands for a number has to stay one.
            return value if is_tracing() and not hasattr(value, "dtype") else float(value)
    # The last is what torch says about tensors of several elements.
    except (OverflowError, TypeError, ValueError, RuntimeError):
        pass
    raise EinsumError(f"{name} is a number, not {value!r}") from None


def _window(window: Any) -> tuple[int | None, int | None]:
    sides = window if isinstance(window, (list, tuple)) else (window, window)
    try:
        before, after = [None if side is None else min(whole_number(side), _FAR) for side in sides]
    except (TypeError, ValueError):
        before = after = -1
    if (before is not None and before < 0) or (after is not None and after < 0):
        raise EinsumError(f"window is (keys before, keys after), each a number or None for all, not {window!r}")
    return before, after


def whole_number(value: Any) -> int:
    """Return an integer of any kind as Python's, or raise a TypeError."""
    if isinstance(value, bool):
        raise TypeError("a truth value is no count")
    return value if isinstance(value, int) else operator.index(value)


def count(name: str, value: Any, what: str, least: int | None = 1) -> int:
    """Return a whole number of any kind as Python's."""
    try:
        found = whole_number(value)
        if least is None or found >= least:
            return found
    except TypeError:
        pass
    raise EinsumError(f"{name} is {what}, not {value!r}")
