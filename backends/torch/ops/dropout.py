"""Dropout by torch's functions, as our kernels have it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.attention.torch_state import seed_for

__all__ = ["dropout_by_torch", "seed_of"]


@cache
def _some_seed() -> Any:
    return torch.empty((1,), dtype=torch.int64, device="meta")


def seed_of(x: Any, p: float) -> Any:
    """Return the seed of a call, in a rehearsal one without memory; ``None`` where nothing is dropped."""
    return None if not p else _some_seed() if x.is_meta else seed_for(x)


def dropout_by_torch(x: Any, p: float) -> Any:
    """Each element dropped with probability ``p``, and the others divided by ``1 - p``."""
    if p == 1:  # torch multiplies by 0, which leaves NaN of what is infinite
        return x.masked_fill(torch.ones((), dtype=torch.bool, device=x.device), 0.0)
    return F.dropout(x, p) if p else x
