"""How much memory the reference may take for scores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from einops_fast.blocks import holding
from einops_fast.errors import EinsumError

__all__ = ["current_score_memory", "score_memory"]

_text = os.environ.get("EINOPS_FAST_SCORE_MEMORY", "")
_usual = int(_text) if _text.isdigit() and int(_text) else 256 << 20
_limit: ContextVar[int] = ContextVar("einops_fast_score_memory", default=_usual)


@contextmanager
def score_memory(limit: int) -> Iterator[None]:
    """How many bytes of scores the ``math`` implementation may hold at a time, in a ``with`` block.

    Above that it goes through batch and queries in pieces, and gradients compute the scores once more. Outside of all
    blocks the environment variable ``EINOPS_FAST_SCORE_MEMORY`` holds, as it was when the package was
    imported, or else 256 MiB. One query's scores are the least that it can do with.

    Args:
        limit: bytes.

    Raises:
        EinsumError: it isn't a positive number.

    Example:
        >>> from einops_fast.attention.memory import current_score_memory, score_memory
        >>> with score_memory(1 << 20):
        ...     current_score_memory()
        1048576
    """
    if not isinstance(limit, int) or limit <= 0:
        raise EinsumError(f"the memory for scores is a positive number of bytes, not {limit!r}")
    with holding(_limit, limit):
        yield


def current_score_memory() -> int:
    """The limit that holds now, in bytes."""
    return _limit.get()


# torch.compile calls it while tracing, and takes what it returns as it is.
current_score_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
