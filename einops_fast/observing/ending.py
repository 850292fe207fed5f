"""Report what was observed when a process ends, each process for itself, children of :mod:`multiprocessing` included.

These leave by ``os._exit``, which runs no exit handler of :mod:`atexit`, and a pool ends its own by a signal.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType

_reports: list[Callable[[], object]] = []

_ATTEMPTS, _PAUSE = 100, 0.05
"""How often, and with how many seconds between, a child that is terminated is interrupted so that it reports."""


def at_end(report: Callable[[], object]) -> None:
    """Make a call when this process ends, and when a child ends that :mod:`multiprocessing` or ``os.fork`` makes."""
    _listen()
    _reports.append(report)
    atexit.register(report)


@contextmanager
def at_end_of_children(report: Callable[[], object]) -> Iterator[None]:
    """Make a call when a child ends that :mod:`multiprocessing` forks in a block."""
    _listen()
    _reports.append(report)
    try:
        yield
    finally:
        _reports.remove(report)


@cache
def _listen() -> None:
    # Few programs record anything: none should wait for this when it imports the package.
    from multiprocessing import parent_process, util

    # A child forgets the finalizers of its parent before it makes these calls.
    util.register_after_fork(_in_child, lambda begin: begin())
    if parent_process() is not None:  # it is a child already
        _in_child()


def _in_child() -> None:
    from multiprocessing.util import Finalize

    Finalize(None, _end, exitpriority=-100)
    main = threading.main_thread()
    if (
        hasattr(signal, "pthread_kill")
        and threading.current_thread() is main
        and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ):
        told, tells = os.pipe()
        os.set_blocking(tells, False)
        signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _end)
        threading.Thread(target=_interrupt, args=(told, main.ident), daemon=True).start()


def _interrupt(told: int, main: int) -> None:
    """Have the main thread handle its termination, which it misses where it begins to wait in that moment."""
    while os.read(told, 1)[0] != signal.SIGTERM:
        pass
    for _ in range(_ATTEMPTS):
        time.sleep(_PAUSE)
        if _ending:
            return
        signal.pthread_kill(main, signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGKILL)  # a library doesn't let go of it


_ending = _terminated = False


def _end(terminated: int = 0, frame: FrameType | None = None) -> None:
    global _ending, _terminated
    _terminated |= bool(terminated)
    if _ending:  # in the middle of a report
        return
    _ending = True
    try:
        while _reports:
            _reports.pop()()
    finally:
        if _terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
        _ending = False
