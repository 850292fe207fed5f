"""`FusedLinear`: torch's linear layer with an activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.attention.options import count
from einops_fast.ops.checks import check_activation

__all__ = ["FusedLinear"]


class FusedLinear(nn.Linear):
    """:class:`torch.nn.Linear` and an activation, by :func:`einops_fast.ops.linear`; its state is that of the layer.

    Args:
        in_features, out_features, bias, device, dtype: those of torch's class.
        activation: as for :func:`einops_fast.ops.dropout_bias_activation`.

    Raises:
        EinsumError: there is no such activation, or a number of features is none.

    Example:
        >>> import torch
        >>> from einops_fast.nn import FusedLinear
        >>> FusedLinear(4, 8, activation='gelu')(torch.zeros(2, 4)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str = "none",
    ) -> None:
        check_activation(activation)
        in_features = count("in_features", in_features, "a number of features", 0)
        out_features = count("out_features", out_features, "a number of features", 0)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation = activation

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, activation={self.activation!r}"

    def forward(self, input: Tensor) -> Tensor:
        """The activation of the layer's result: (..., in_features) to (..., out_features)."""
        found: Tensor = ops.linear(input, self.weight, self.bias, activation=self.activation)
        return found
