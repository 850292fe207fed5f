"""Limits on the time that something may take which can't be asked to hurry."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["interrupts", "limited"]


class _TimeIsUp(BaseException):
    """Passes through handlers of ``Exception``, which would take it for a failure of their own."""


@contextmanager
def limited(seconds: float, what: str) -> Iterator[None]:
    """Give the block ``seconds``. There is no limit off the main thread, nor on Windows."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, ring)
    try:
        # Rings again: the first may come where Python ignores exceptions, such as in a destructor.
        signal.setitimer(signal.ITIMER_REAL, seconds, 5.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _TimeIsUp:
        raise TimeoutError(f"{what} took over {seconds:.0f} s") from None
    finally:
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupts() -> Iterator[None]:
    """Within the block a request to terminate, as ``timeout`` makes it, is a KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        # ``timeout`` asks twice; the second time would interrupt what is done about the first.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
