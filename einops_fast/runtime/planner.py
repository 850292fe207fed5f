"""The thread that finds out what to compile, beside the program."""

from __future__ import annotations

import atexit
import functools
import queue
import sys
import threading
from collections.abc import Callable

from einops_fast.backends.triton_support import load_library

_LONGEST = 20.0
"""Seconds that the end of a program waits for what the planner is at."""

_SLICE = 1e-4
"""Seconds for which the planner keeps the interpreter's lock while others want it."""


class _Planner:
    """A thread that finds out what to compile; it imports Triton, and ends with the program, after what it is at."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="einops_fast planner", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def put(self, work: Callable[[], None]) -> None:
        """Have something done."""
        self._work.put(work)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None and not self._stopped:
            # What runs beside this, and gives up the interpreter's lock in every call of torch, gets it back as soon.
            before = sys.getswitchinterval()
            sys.setswitchinterval(min(before, _SLICE))
            try:
                load_library()
                work()
            finally:
                sys.setswitchinterval(before)

    def _stop(self) -> None:
        # A thread that is stopped inside of a compiler takes the program down with it.
        self._stopped = True
        self._work.put(None)
        self._thread.join(_LONGEST)


@functools.cache
def planner() -> _Planner:
    """Return the thread that plans."""
    return _Planner()
