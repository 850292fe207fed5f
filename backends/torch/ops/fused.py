"""What :mod:`einops_fast.ops` calls for torch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einops_fast.backends.torch.ops.activation import bias_activation
from einops_fast.backends.torch.ops.cross_entropy import cross_entropy
from einops_fast.backends.torch.ops.linear import linear
from einops_fast.backends.torch.ops.linear_cross_entropy import linear_cross_entropy
from einops_fast.backends.torch.ops.norm import dropout_add_norm, norm
from einops_fast.backends.torch.ops.softmax import softmax

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bias_activation": bias_activation,
    "linear": linear,
    "cross_entropy": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "softmax": softmax,
    "norm": norm,
    "dropout_add_norm": dropout_add_norm,
}
"""By name."""
