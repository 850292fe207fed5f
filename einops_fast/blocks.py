"""What a ``with`` block says: to the calls of a thread or a task, or to those that torch.compile traces."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from einops_fast.tracing import is_tracing

__all__ = ["holding", "holding_anywhere", "traced_value"]

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


def holding_anywhere(kind: str, variable: ContextVar[T], value: T) -> AbstractContextManager[None]:
    """The same, also in code that torch.compile traces now, which can't set a context variable.

    Args:
        kind: of block, by which :func:`traced_value` finds the value in such code.
        variable: what holds it in any other.
        value: a constant that isn't ``None``.
    """
    return _holding_traced(kind, value) if is_tracing() else holding(variable, value)


@contextmanager
def _holding_traced(kind: str, value: Any) -> Iterator[None]:
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
