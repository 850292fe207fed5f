"""What GPU there is. torch.compile calls these while tracing, and takes what they return as it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

__all__ = ["capability", "has_cudnn"]

_cudnn: Any = torch.backends.cudnn


def capability(device: str) -> tuple[int, int]:
    """Compute capability of a CUDA device."""
    return _capability(device)


def has_cudnn() -> bool:
    """Return whether this torch comes with cuDNN."""
    return bool(_cudnn.is_available())


capability._dynamo_marked_constant = True  # type: ignore[attr-defined]
has_cudnn._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _capability(device: str) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor
