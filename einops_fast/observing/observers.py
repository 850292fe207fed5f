"""Who looks on while plans run: nobody, unless :mod:`einops_fast.metrics` or :func:`einops_fast.profile` is in use.

What is recorded is decided when a plan is compiled. Whoever starts or stops recording makes all plans be compiled
anew, so a call that nobody records doesn't even ask.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einops_fast.runtime.plan_cache import clear_plans

if TYPE_CHECKING:
    from einops_fast.observing.recording import Recorder

__all__ = ["active", "observed", "recording", "start"]

_active: tuple[Recorder, ...] = ()
_lock = threading.Lock()


def start() -> Recorder:
    """Record every plan from now on."""
    # Few programs record anything: none should wait for this when it imports the package.
    from einops_fast.observing.recording import Recorder

    global _active
    recorder = Recorder()
    with _lock:
        _active = (*_active, recorder)
    clear_plans()
    return recorder


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record every plan in a block."""
    global _active
    recorder = start()
    try:
        yield recorder
    finally:
        with _lock:
            _active = tuple(each for each in _active if each is not recorder)
        clear_plans()


def active() -> tuple[Recorder, ...]:
    """Return all who look on."""
    return _active


def observed() -> bool:
    """Return whether anybody looks on."""
    return bool(_active)
