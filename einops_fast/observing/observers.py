"""Who looks on while plans run: nobody, unless :mod:`einops_fast.metrics` or :func:`einops_fast.profile` is in use.

What is observed is decided when a plan is compiled. Whoever starts or stops looking makes all plans be compiled
anew, so a call that nobody observes doesn't even ask.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from einops_fast.runtime.plan_cache import clear_plans

if TYPE_CHECKING:
    from einops_fast.backends.base import Backend
    from einops_fast.compiler.report import Fusion
    from einops_fast.observing.calls import Called
    from einops_fast.planning.plan import Plan

__all__ = [
    "Observer",
    "Program",
    "Watch",
    "attended",
    "called",
    "fusion",
    "left_to_native",
    "observed",
    "start",
    "stop",
    "watch_plan",
]

Program = list[tuple[Callable[..., Any], tuple[int, ...]]]
"""The calls of a plan, each with the slots that it reads."""


class Watch(Protocol):
    """One observer's view of one plan."""

    def program(self, program: Program) -> Program:
        """The calls of the plan's steps, each in something that observes it."""

    def whole(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The plan as one callable, in something that observes it."""


class Observer(Protocol):
    """Looks on."""

    def watch(self, plan: Plan, backend: Backend) -> Watch:
        """A plan is being compiled."""

    def left_to_native(self, backend: str, equation: str, reason: str) -> None:
        """A patched call went to the framework's own function."""

    def attention(self) -> None:
        """A patched call of attention is ours."""

    def called(self, call: Called) -> None:
        """An operator or an attention of a new kind was called; a contraction is watched."""

    def fusion(self, found: Fusion) -> None:
        """Something was fused in a program that is being compiled, or could not be."""


_active: tuple[Observer, ...] = ()
_lock = threading.Lock()


def start(observer: Observer) -> None:
    """Observe every plan from now on."""
    global _active
    with _lock:
        _active = (*_active, observer)
    clear_plans()


def stop(observer: Observer) -> None:
    """Observe no more."""
    global _active
    with _lock:
        _active = tuple(each for each in _active if each is not observer)
    clear_plans()


def observed() -> bool:
    """Whether anybody looks on."""
    return bool(_active)


def watch_plan(plan: Plan, backend: Backend) -> Sequence[Watch]:
    """The views of all who look on, on a plan that is being compiled."""
    return [observer.watch(plan, backend) for observer in _active]


def left_to_native(backend: str, equation: Any, reason: str) -> None:
    """Tell all who look on of a patched call that isn't ours, and why."""
    for observer in _active:
        observer.left_to_native(backend, equation if isinstance(equation, str) else "", reason)


def called(call: Called) -> None:
    """Tell all who look on of an operator or an attention that was called, once for each kind of call."""
    for observer in _active:
        observer.called(call)


def fusion(found: Fusion) -> None:
    """Tell all who look on of what was fused, or wasn't."""
    for observer in _active:
        observer.fusion(found)


def attended() -> None:
    """Tell all who look on of a patched call of attention that is ours."""
    for observer in _active:
        observer.attention()
