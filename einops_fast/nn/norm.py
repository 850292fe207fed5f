"""`LayerNorm` and `RMSNorm`, as torch has them, and `DropoutAddLayerNorm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.errors import ShapeError
from einops_fast.nn.heads import check_features
from einops_fast.ops.checks import check_values
from einops_fast.ops.norm import last_sizes

__all__ = ["DropoutAddLayerNorm", "LayerNorm", "RMSNorm"]


class LayerNorm(nn.LayerNorm):
    """:class:`torch.nn.LayerNorm` by :func:`einops_fast.ops.layer_norm`: the same arguments and the same state.

    Raises:
        EinsumError: ``normalized_shape`` isn't made of sizes, or ``eps`` is no number.

    Example:
        >>> import torch
        >>> from einops_fast.nn import LayerNorm
        >>> norm = LayerNorm(4, bias=False)
        >>> norm.load_state_dict(torch.nn.LayerNorm(4, bias=False).state_dict())
        <All keys matched successfully>
        >>> norm(torch.zeros(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        check_values(eps=eps)
        super().__init__(last_sizes(normalized_shape), eps, elementwise_affine, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """The norm over the last axes."""
        found: Tensor = ops.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
        return found


class RMSNorm(nn.RMSNorm):
    """:class:`torch.nn.RMSNorm` by :func:`einops_fast.ops.rms_norm`: the same arguments and the same state.

    Raises:
        EinsumError: as :class:`LayerNorm`.

    Example:
        >>> import torch
        >>> from einops_fast.nn import RMSNorm
        >>> RMSNorm(4, eps=1e-6)(torch.ones(1, 4)).round().tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if eps is not None:
            check_values(eps=eps)
        super().__init__(last_sizes(normalized_shape), eps, elementwise_affine, device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The norm over the last axes."""
        found: Tensor = ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)
        return found


class DropoutAddLayerNorm(LayerNorm):
    """``layer_norm(dropout(x) + residual)`` by :func:`einops_fast.ops.dropout_add_layer_norm`.

    Its state is that of the :class:`torch.nn.LayerNorm` in it.

    Args:
        normalized_shape: the size of the last axis.
        p: probability of dropping an element while training.
        prenorm: return the sum, too, which is the next residual.
        options: what else :class:`LayerNorm` takes: ``eps``, ``elementwise_affine``, ``bias``, …

    Raises:
        ShapeError: ``normalized_shape`` has several axes, or isn't the input's.
        EinsumError: base of it; as :class:`LayerNorm`; ``p`` isn't a probability.

    Example:
        >>> import torch
        >>> from einops_fast.nn import DropoutAddLayerNorm
        >>> norm = DropoutAddLayerNorm(4, p=0.1, prenorm=True).eval()
        >>> normalised, summed = norm(torch.ones(2, 4), torch.ones(2, 4))
        >>> summed[0].tolist()
        [2.0, 2.0, 2.0, 2.0]
    """

    def __init__(
        self, normalized_shape: int | Sequence[int], p: float = 0.1, prenorm: bool = False, **options: Any
    ) -> None:
        super().__init__(normalized_shape, **options)
        if len(self.normalized_shape) != 1:
            raise ShapeError(f"normalized_shape is the size of the last axis, not {self.normalized_shape}")
        check_values(p=p)
        self.p, self.prenorm = p, prenorm

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:
        """The norm, and with ``prenorm`` the sum."""
        check_features("input", input, *self.normalized_shape)
        found, summed = ops.dropout_add_layer_norm(
            input, residual, self.weight, self.bias, self.p, self.eps, training=self.training
        )
        return (found, summed) if self.prenorm else found

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{super().extra_repr()}, p={self.p}, prenorm={self.prenorm}"
