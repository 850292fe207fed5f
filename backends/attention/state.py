"""What torch's global state means for an attention: derivatives, autocast, random seeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.autograd import forward_ad

from einops_fast.errors import OperandError

__all__ = ["autocast", "derivatives", "seed_for"]


def derivatives(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a spec that say which derivatives may be asked for.

    Raises:
        OperandError: one that there is none of.
    """
    wanted = torch.is_grad_enabled()
    if wanted and "alibi_slopes" in arrays and arrays["alibi_slopes"].requires_grad:
        raise OperandError("alibi_slopes have no gradient here: detach them, or add a bias that is made of them")
    gradients = wanted and any(
        arrays[name].requires_grad for name in ("q", "k", "v", "bias", "sinks") if name in arrays
    )
    return {
        "gradients": gradients,
        "bias_gradient": wanted and "bias" in arrays and arrays["bias"].requires_grad,
        "transforms": torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0,
    }


def autocast(arrays: dict[str, Any]) -> None:
    """Convert q, k and v as autocast does for torch's scaled_dot_product_attention: all but float64."""
    device = arrays["q"].device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return
    dtype = torch.get_autocast_dtype(device)
    for name in ("q", "k", "v"):
        array = arrays[name]
        if array.is_floating_point() and array.dtype != torch.float64:
            arrays[name] = array.to(dtype)


def seed_for(array: Any) -> Any:
    """A seed for the dropout of one call, on the device of ``array``."""
    return torch.randint(0, 1 << 62, (1,), dtype=torch.int64, device=array.device)
