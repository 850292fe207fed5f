"""What a call holds at most, as Python tells it."""

import tracemalloc
from collections.abc import Callable
from typing import Any

PYTHON = 1 << 15
"""Bytes of the interpreter's own objects, about: plans, views, loops; there are more of many operands."""


def peak_of(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return what a call does the second time, and the most bytes that it takes then."""
    call()
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
