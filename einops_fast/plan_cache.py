"""The compiled plans of all calls so far, so that nothing is thought out twice. Bounded and thread-safe."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Protocol

__all__ = ["LIMIT", "Forgetful", "clear_plans", "compiled", "keeps_plans", "remember"]

LIMIT = 4096
"""The most plans that are kept; the oldest goes first."""

compiled: dict[Hashable, Callable[..., Any]] = {}
"""By everything that a plan depends on. Reading needs no lock."""

_lock = threading.Lock()


_keepers: weakref.WeakSet[Forgetful] = weakref.WeakSet()


class Forgetful(Protocol):
    """Keeps compiled plans of its own."""

    def forget_plans(self) -> None:
        """Let go of them."""


def remember(key: Hashable, run: Callable[..., Any]) -> None:
    """Keep a compiled plan."""
    with _lock:
        while len(compiled) >= LIMIT:
            compiled.pop(next(iter(compiled)))
        compiled[key] = run


def keeps_plans(keeper: Forgetful) -> None:
    """From now on ``keeper`` forgets its plans whenever all are forgotten."""
    with _lock:
        _keepers.add(keeper)


def clear_plans() -> None:
    """Forget all compiled plans."""
    with _lock:
        compiled.clear()
        keepers = list(_keepers)
    for keeper in keepers:
        keeper.forget_plans()
