"""Whether torch's autocast is on, asked where there are tensors, so that torch is imported already."""

from __future__ import annotations

from typing import Any


def autocasts(array: Any) -> bool:
    """Whether autocast is on where this tensor is. torch.compile can trace it."""
    import torch

    # To ask a tensor for its device takes longer than all else.
    if not torch._C._is_any_autocast_enabled():
        return False
    device = array.device.type
    return _has_autocast(device) and bool(torch.is_autocast_enabled(device))


def _has_autocast(device: str) -> bool:
    """Whether there is an autocast for this type of device."""
    import torch

    return torch.amp.is_autocast_available(device)


# Not every torch.compile can follow the question.
_has_autocast._dynamo_marked_constant = True  # type: ignore[attr-defined]
