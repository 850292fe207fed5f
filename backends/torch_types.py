"""Types of torch's that are asked about in many places."""

from __future__ import annotations

import torch

__all__ = ["HALVES", "PLAIN"]

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""Types of tensors that nobody has overridden anything of."""

HALVES = (torch.float16, torch.bfloat16)
"""Floating-point types of 16 bits."""
