"""The compiled plans of all calls so far, so that nothing is thought out twice. Bounded and thread-safe."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

LIMIT = 4096
"""The most plans that are kept; the oldest goes first."""

compiled: dict[Hashable, Callable[..., Any]] = {}
"""By everything that a plan depends on. Reading needs no lock."""

_ALIKE = 4
"""The most plans of one question whose operands are compared one after the other."""

_Alike = tuple[tuple[Callable[[Sequence[Any]], bool], Callable[..., Any]], ...]
"""Whether operands are like those that a plan was kept for, and the plan; the newest first."""

_alike: dict[Hashable, _Alike | dict[Hashable, _Alike]] = {}
"""By what is asked, but for the operands; where there are many plans, those are found by the operands' shapes."""

of_all_shapes: dict[Hashable, _Alike] = {}
"""By the same question, plans for operands of all shapes, which are looked at first where there are any."""

_lock = threading.Lock()

_keepers: weakref.WeakSet[Any] = weakref.WeakSet()

_caches: list[dict[Any, Any]] = [compiled, _alike, of_all_shapes]


def emptied_with_plans(cache: dict[K, T]) -> dict[K, T]:
    """Return the cache, which :func:`clear_plans` empties from now on."""
    _caches.append(cache)
    return cache


def remember(key: Hashable, run: Callable[..., Any]) -> None:
    """Keep a compiled plan."""
    keep(compiled, key, run)


def keep(kept: dict[K, T], key: K, value: T) -> None:
    """Keep something else that was thought out, as plans are: the oldest goes first."""
    with _lock:
        while len(kept) >= LIMIT:
            kept.pop(next(iter(kept)))
        kept[key] = value


def kept(cache: dict[K, T], key: K, make: Callable[[], T]) -> T:
    """Return what is kept for a key, or make it and keep it."""
    found = cache.get(key)
    if found is None:
        found = make()
        keep(cache, key, found)
    return found


def remember_alike(question: Hashable, like: Callable[[Sequence[Any]], bool] | None, run: Callable[..., Any],
                   operands: Sequence[Any]) -> None:  # fmt: skip
    """Keep a compiled plan for operands like these, unless it's kept; the oldest of its question goes first."""
    if like is None:  # nothing tells such operands
        return
    with _lock:
        if len(_alike) >= LIMIT:
            _alike.clear()
        known = _alike.get(question, ())
        if isinstance(known, tuple) and len(known) == _ALIKE and (like, run) not in known:
            known = _alike[question] = {}
        kept, key = (known, _shapes(operands)) if isinstance(known, dict) else (_alike, question)
        if len(kept) >= LIMIT:
            kept.clear()
        others: Any = kept.get(key, ())
        if (like, run) not in others:
            kept[key] = ((like, run), *others[: _ALIKE - 1])


def keep_for_all_shapes(question: Hashable, like: Callable[[Sequence[Any]], bool], run: Callable[..., Any]) -> None:
    """Keep a compiled plan for operands that are like others but for sizes; the oldest of its question goes first."""
    with _lock:
        if len(of_all_shapes) >= LIMIT:
            of_all_shapes.clear()
        of_all_shapes[question] = ((like, run), *of_all_shapes.get(question, ())[: _ALIKE - 1])


def recall(question: Hashable, operands: Sequence[Any]) -> Callable[..., Any] | None:
    """The plan that was kept for operands like these; comparing them takes less time than hashing what they are.

    Raises:
        AttributeError, IndexError, TypeError: such operands were never kept, or the question can't be hashed.
    """
    kept: Any = _alike.get(question, ())
    if type(kept) is dict:
        try:
            kept = kept.get(_shapes(operands), ())
        except RuntimeError:  # nested tensors have no sizes
            return None
    for like, run in kept:
        if like(operands):
            plan: Callable[..., Any] = run
            return plan
    return None


def has_room(question: Hashable, operands: Sequence[Any]) -> bool:
    """Whether plans of a question were kept, and one more may be for operands that are like none of theirs."""
    kept: Any = _alike.get(question)
    if type(kept) is dict:
        kept = kept.get(_shapes(operands), ())
    return kept is not None and len(kept) < _ALIKE


def _shapes(operands: Sequence[Any]) -> Hashable:
    """Shapes that tell calls apart, nearly always: of the first operand and the last. The others are compared."""
    return operands[0].shape, operands[-1].shape


def keeps_plans(keeper: Any) -> None:
    """Have a keeper of plans of its own forget them, by ``forget_plans()``, whenever all are forgotten."""
    with _lock:
        _keepers.add(keeper)


def clear_plans() -> None:
    """Empty every cache of plans, calls and measured choices of this process; what is on disk stays."""
    with _lock:
        for cache in _caches:
            cache.clear()
        keepers = list(_keepers)
    for keeper in keepers:
        keeper.forget_plans()
