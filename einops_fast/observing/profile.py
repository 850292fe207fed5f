"""`profile`: every einsum of a program that went through us, how long it took, and what to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einops_fast.observing.observers import recording
from einops_fast.runtime.blocks import Block

if TYPE_CHECKING:
    from einops_fast.observing.profile_table import Profile

__all__ = ["profile"]


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
    # Few programs are profiled: none should wait for this when it imports the package.
    from einops_fast.observing.profile_table import Profile

    with recording() as recorder:
        seen = Profile(recorder)
        try:
            yield seen
        finally:
            seen.end()
