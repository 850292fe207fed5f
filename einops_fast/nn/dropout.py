"""`FusedDropoutBias`, as xFormers has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from einops_fast import ops
from einops_fast.attention.options import count
from einops_fast.errors import EinsumError
from einops_fast.ops.checks import check_activation, check_values

__all__ = ["FusedDropoutBias"]


class FusedDropoutBias(nn.Module):
    """``dropout(activation(x + bias))`` by :func:`einops_fast.ops.dropout_bias_activation`: one kernel each way.

    The arguments and the state are those of xFormers' module of this name.

    Args:
        p: probability of dropping an element while training.
        bias_shape: size of the bias, which is that of the last axis; ``None`` for no bias.
        activation: one of :data:`einops_fast.ops.activation.ACTIVATIONS`; ``None`` for none.
        device, dtype: of the bias.

    Raises:
        EinsumError: an argument is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import FusedDropoutBias
        >>> FusedDropoutBias(0.1, bias_shape=2, activation='relu').eval()(torch.tensor([[-1.0, 3.0]])).tolist()
        [[0.0, 3.0]]
    """

    def __init__(
        self,
        p: float,
        bias_shape: int | Sequence[int] | None,
        activation: str | None = None,
        *,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_values(p=p)
        self.activation = activation or "none"
        check_activation(self.activation)
        if isinstance(bias_shape, Sequence):
            if len(bias_shape) != 1:
                raise EinsumError(f"the bias has one axis, that of the features; not shape {tuple(bias_shape)}")
            bias_shape = bias_shape[0]
        self.p = float(p)
        self.bias = None
        if bias_shape is not None:
            features = count("bias_shape", bias_shape, "a number of features", 0)
            self.bias = nn.Parameter(torch.empty(features, device=device, dtype=dtype))
        self.init_weights()

    def init_weights(self) -> None:
        """Set the bias to zeros."""
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as ``x``."""
        found: Tensor = ops.dropout_bias_activation(x, self.bias, self.activation, self.p, training=self.training)
        return found

    def extra_repr(self) -> str:
        """The arguments."""
        shape = None if self.bias is None else self.bias.shape[0]
        return f"p={self.p}, bias_shape={shape}, activation={self.activation!r}"
