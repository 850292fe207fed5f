"""How long compiling and measuring on a GPU may take where one kind of problem comes in ever new shapes.

A model whose shapes stay the same measures each of them at its first call, which pays in the thousands that follow.
Where the shapes change from call to call, every choice would cost seconds and be used once. So each kind of problem has
some seconds at once, and then a share of the time that passes; a shape that comes when that is spent is run without a
choice, and chosen for at a later call, if there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from time import perf_counter

__all__ = ["AT_ONCE", "forget_spending", "may_spend", "spending"]

AT_ONCE = 60.0
"""Seconds that a kind of problem may take before anything has to pass."""

_SHARE = 0.05
"""Of the time since the kind was measured first, how much may be spent on it."""

_MOST_KINDS = 4096

_lock = threading.Lock()
_spent: dict[Hashable, tuple[float, float]] = {}
"""When a kind was measured first, and seconds since then."""


def forget_spending() -> None:
    """Let every kind of problem begin anew."""
    with _lock:
        _spent.clear()


def may_spend(kind: Hashable, at_once: float = AT_ONCE) -> bool:
    """Whether there is time to choose for one more problem of a kind, which may take some seconds at once."""
    found = _spent.get(kind)
    if found is None:
        return True
    began, seconds = found
    return seconds <= at_once + _SHARE * (perf_counter() - began)


@contextmanager
def spending(kind: Hashable) -> Iterator[None]:
    """A block that chooses for a problem of a kind."""
    start = perf_counter()
    try:
        yield
    finally:
        end = perf_counter()
        with _lock:
            if kind not in _spent and len(_spent) >= _MOST_KINDS:
                _spent.clear()
            began, seconds = _spent.get(kind, (start, 0.0))
            _spent[kind] = began, seconds + end - start
