"""Dropout by torch's functions, as our kernels have it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for

__all__ = ["dropout_by_torch", "later_seed", "seeded"]


@cache
def _some_seed() -> Any:
    return torch.empty((1,), dtype=torch.int64, device="meta")


def later_seed(x: Any, p: float) -> Any:
    """Return what stands for the seed of a call that may not need one; ``None`` where nothing is dropped."""
    return None if not p else seed_for(x) if torch.compiler.is_compiling() else _some_seed()


def seeded(seed: Any, x: Any) -> Any:
    """Return a seed where :func:`later_seed` has left that open, but in a rehearsal."""
    return seed_for(x) if seed is not None and seed.is_meta and not x.is_meta else seed


def dropout_by_torch(x: Any, p: float) -> Any:
    """Each element dropped with probability ``p``, and the others divided by ``1 - p``.

    Example:
        >>> import torch
        >>> from einops_fast.backends.torch.ops.dropout import dropout_by_torch
        >>> dropout_by_torch(torch.tensor([torch.inf, 1.0]), 1.0)
        tensor([0., 0.])
    """
    if p == 1:  # torch multiplies by 0, which leaves NaN of what is infinite
        return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0.0)
    return F.dropout(x, p) if p else x
