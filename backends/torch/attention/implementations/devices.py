"""What GPU there is. torch.compile calls these while tracing, and takes what they return as it is."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from einops_fast.backends.absent_gpu import aimed

_cudnn: Any = torch.backends.cudnn


def capability(device: str) -> tuple[int, int]:
    """Compute capability of a CUDA device."""
    aim = aimed()
    return _capability(device) if aim is None else aim.capability


def has_cudnn() -> bool:
    """Return whether this torch comes with cuDNN, as that for a GPU that isn't here does."""
    return aimed() is not None or bool(_cudnn.is_available())


capability._dynamo_marked_constant = True  # type: ignore[attr-defined]
has_cudnn._dynamo_marked_constant = True  # type: ignore[attr-defined]


@lru_cache(maxsize=64)
def _capability(device: str) -> tuple[int, int]:
    major, minor = torch.cuda.get_device_capability(device)
    return major, minor
