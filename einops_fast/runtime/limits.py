"""How much memory calls may allocate: from a ``with`` block or the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from einops_fast.errors import EinsumError, OperandError
from einops_fast.runtime.blocks import Setting, holding
from einops_fast.runtime.tracing import is_tracing

UNITS = {"": 1, **{f"{prefix}B": 1000**at for at, prefix in enumerate(("", "k", "M", "G", "T"))},
         **{f"{prefix}iB": 1024**at for at, prefix in enumerate("KMGT", 1)}}  # fmt: skip
"""Bytes by the units in which a limit may be given."""

_VARIABLE = "EINOPS_FAST_MEMORY_LIMIT"

# The default is text, which is read at the first use; 0: a call within a limit is under way, and none is for its parts.
_limit: ContextVar[int | str | None] = ContextVar("einops_fast_memory_limit", default=os.environ.get(_VARIABLE) or None)

#: The limit of a call without an argument; ``None`` or 0 where there is none.
limit_now = _limit.get


def memory_limit(limit: int | str) -> Setting:
    """Have einsums allocate no more than so much at a time, each call's result included.

    A call alone holds from then on; ``with memory_limit(...):`` holds in the block, and a function that is decorated
    with it has it in its calls. Blocks nest, and each thread and each asyncio task has its own, as with
    :func:`einops_fast.autotune`. The default is what the environment variable ``EINOPS_FAST_MEMORY_LIMIT`` said when
    the package was imported. What can't be contracted in pieces (code that is traced or compiled, arrays of no backend
    of ours, dtypes that are left to the framework's own einsum) has no such limit. Ways are measured by the calls
    themselves only, as in ``autotune('auto')``: to measure them beside a call would take memory of its own.

    Args:
        limit: bytes, or a text such as ``'2GiB'``.

    Raises:
        EinsumError: the limit is neither.

    Example:
        >>> import einops_fast, numpy as np
        >>> x = np.ones((60, 60))
        >>> with einops_fast.memory_limit('100 kB'):
        ...     float(einops_fast.fast_einsum('ab,bc,cd,da->', x, x, x, x))
        12960000.0
    """
    if is_tracing():
        raise OperandError("memory_limit isn't for code that is traced: what it's compiled to allocates otherwise")
    return holding(_limit, read_bytes(limit))


def current_limit() -> int:
    """Return the limit of a call without an argument, in bytes."""
    limit = _limit.get()
    return limit if isinstance(limit, int) else read_bytes(limit, _VARIABLE)


@contextmanager
def unlimited() -> Iterator[None]:
    """Have no limit in a block: for the parts of a call that keeps to one as a whole."""
    before = _limit.set(0)
    try:
        yield
    finally:
        _limit.reset(before)


def read_bytes(limit: Any, what: str = "memory_limit") -> int:
    """Return a memory limit in bytes: a number of them, or a text such as ``'2GiB'``.

    >>> read_bytes(4096), read_bytes('1.5 MiB')
    (4096, 1572864)
    """
    if isinstance(limit, str):
        found = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", limit)
        if found and found[2] in UNITS and re.fullmatch(r"\d+\.?\d*", found[1]):
            return int(float(found[1]) * UNITS[found[2]])
    elif (
        not isinstance(limit, bool) and hasattr(limit, "__index__") and getattr(limit, "shape", ()) == () and limit > 0
    ):
        return int(limit)
    raise EinsumError(f"{what} is a number of bytes, or a text such as '2GiB' or '500 MB', not {limit!r}")
