"""The compiled plans of all calls so far, so that nothing is thought out twice. Bounded and thread-safe."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["LIMIT", "clear_plans", "compiled", "remember"]

LIMIT = 4096
"""The most plans that are kept; the oldest goes first."""

compiled: dict[Hashable, Callable[..., Any]] = {}
"""By everything that a plan depends on. Reading needs no lock."""

_lock = threading.Lock()


def remember(key: Hashable, run: Callable[..., Any]) -> None:
    """Keep a compiled plan."""
    with _lock:
        while len(compiled) >= LIMIT:
            compiled.pop(next(iter(compiled)))
        compiled[key] = run


def clear_plans() -> None:
    """Forget all compiled plans."""
    with _lock:
        compiled.clear()
