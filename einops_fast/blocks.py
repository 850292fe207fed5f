"""What a ``with`` block says: to the calls of a thread or a task, or to those that torch.compile traces."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

__all__ = ["holding", "holding_traced", "traced_value"]

T = TypeVar("T")

#: For each kind of block the code that is traced now, and what the innermost block in it says.
_traced: dict[str, tuple[Callable[[], Any], Any]] = {}


@contextmanager
def holding(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a context variable in a ``with`` block; blocks nest."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def holding_traced(kind: str, value: Any) -> Iterator[None]:
    """The same in code that torch.compile traces now, which can't set a context variable.

    Args:
        kind: of block.
        value: a constant that isn't ``None``, which :func:`traced_value` gives.
    """
    before = traced_value(kind)
    _hold(kind, value)
    try:
        yield
    finally:
        _hold(kind, before)


def traced_value(kind: str) -> Any:
    """What the innermost block of this kind in the code that is traced now says; ``None`` where there is none."""
    found = _traced.get(kind)
    if found is None:
        return None
    traced, value = found
    code = traced()
    return value if code is not None and code is _tracing() else None


def _hold(kind: str, value: Any) -> None:
    """Whoever stops in the middle of a block never leaves it, but what is traced next is another code."""
    if value is None:
        _traced.pop(kind, None)
    else:
        _traced[kind] = weakref.ref(_tracing()), value


def _tracing() -> Any:
    return sys.modules["torch"]._guards.TracingContext.try_get()


# torch.compile calls these while tracing, and takes what they return as it is.
traced_value._dynamo_marked_constant = True  # type: ignore[attr-defined]
_hold._dynamo_marked_constant = True  # type: ignore[attr-defined]
