"""Dropout by torch's functions, as our kernels have it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

__all__ = ["dropout_by_torch"]


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
