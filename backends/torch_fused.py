"""What :mod:`einops_fast.ops` calls for torch's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einops_fast.backends.torch_softmax import softmax

__all__ = ["FUNCTIONS"]

FUNCTIONS: dict[str, Callable[..., Any]] = {"softmax": softmax}
"""By name."""
