"""Who looks on while plans run: nobody, unless :mod:`einops_fast.metrics` or :func:`einops_fast.profile` is in use.

What is recorded is decided when a plan is compiled. Whoever starts or stops recording makes all plans be compiled
anew, so a call that nobody records doesn't even ask.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einops_fast.runtime.blocks import Block
from einops_fast.runtime.plan_cache import clear_plans

if TYPE_CHECKING:
    from einops_fast.observing.profile_table import Profile
    from einops_fast.observing.recording import Recorder

_active: tuple[Recorder, ...] = ()
_lock = threading.Lock()


def _in_fork() -> None:
    """Leave to the parent what it has recorded."""
    global _lock
    _lock = threading.Lock()
    for recorder in _active:
        recorder.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_fork)


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


def profile() -> Block[Profile]:
    """Watch every call in a ``with`` block, those of patched frameworks and of compiled code included.

    Times are those of the device. Plans are made anew at the beginning and the end of the block, so let the program
    run for a while in it; first calls don't count where there are others. The framework's own einsum is timed once
    beside each plan, on the operands of its first call, where that takes little time and no gradient is recorded.

    Returns:
        What gives the block a :class:`~einops_fast.observing.profile_table.Profile`, which prints as a table; ``rows``
        has the same as data.

    Example:
        >>> import numpy as np
        >>> import einops_fast
        >>> with einops_fast.profile() as p:
        ...     _ = einops_fast.fast_einsum('id,jd->ij', np.ones((2, 3)), np.ones((4, 3)))
        >>> [(row.equation, row.calls) for row in p.rows]
        [('id,jd->ij', 1)]
    """
    return Block("einops_fast.profile()", _profile)


@contextmanager
def _profile() -> Iterator[Profile]:
    from einops_fast.observing.profile_table import Profile

    with recording() as recorder:
        seen = Profile(recorder)
        try:
            yield seen
        finally:
            seen.end()
