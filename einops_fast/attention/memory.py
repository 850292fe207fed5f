"""How much memory the reference may take for scores."""

from __future__ import annotations

import os
from contextvars import ContextVar

from einops_fast.errors import EinsumError
from einops_fast.runtime.blocks import Setting, holding

_VARIABLE = "EINOPS_FAST_SCORE_MEMORY"
_USUAL = 256 << 20
_text = os.environ.get(_VARIABLE) or str(_USUAL)
# The default may be wrong, which is 0 here: who imports the package needn't ever ask for it.
_limit: ContextVar[int] = ContextVar("einops_fast_score_memory", default=int(_text) if _text.isdecimal() else 0)


def score_memory(limit: int) -> Setting:
    """Set how many bytes of scores the ``math`` implementation may hold at a time.

    Above that it goes through batch and queries in pieces, and gradients compute the scores once more. A call alone
    holds from then on; ``with score_memory(...):`` holds in the block, and a function that is decorated with it has it
    in its calls. Where nothing was set, the environment variable ``EINOPS_FAST_SCORE_MEMORY`` holds, as it was when the
    package was imported, or else 256 MiB. One query's scores are the least that it can do with.

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
    return holding(_limit, limit)


def current_score_memory() -> int:
    """Return the limit that holds now, in bytes.

    Raises:
        EinsumError: nothing was set, and the environment variable isn't a positive number.
    """
    limit = _limit.get()
    if not limit:
        raise EinsumError(f"{_VARIABLE} is a positive number of bytes, not {_text!r}")
    return limit


# torch.compile calls it while tracing, and takes what it returns as it is.
current_score_memory._dynamo_marked_constant = True  # type: ignore[attr-defined]
