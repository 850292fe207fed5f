"""`Softmax` and `LogSoftmax`, as torch has them, with masks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from einops_fast import ops

__all__ = ["LogSoftmax", "Softmax"]


class Softmax(nn.Softmax):
    """:class:`torch.nn.Softmax` by :func:`einops_fast.ops.softmax`.

    Args:
        dim: the axis, as a number or as a name in ``pattern``; the last one if ``None``.
        options: what else the function takes, for every call: ``pattern``, ``causal``, ``temperature``, ``dtype``.

    Example:
        >>> import torch
        >>> from einops_fast.nn import Softmax
        >>> Softmax(dim=-1, causal=True)(torch.zeros(2, 2)).tolist()
        [[1.0, 0.0], [0.5, 0.5]]
    """

    def __init__(self, dim: Any = None, **options: Any) -> None:
        super().__init__(dim)
        self.options = options

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.softmax(input, self.dim, mask=mask, **self.options)
        return found


class LogSoftmax(nn.LogSoftmax):
    """:class:`torch.nn.LogSoftmax` by :func:`einops_fast.ops.log_softmax`; the arguments are those of :class:`Softmax`.

    Example:
        >>> import torch
        >>> from einops_fast.nn import LogSoftmax
        >>> LogSoftmax(dim=-1)(torch.zeros(1, 1)).tolist()
        [[0.0]]
    """

    def __init__(self, dim: Any = None, **options: Any) -> None:
        super().__init__(dim)
        self.options = options

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """The logarithm of the softmax of ``input``, with what ``mask`` leaves or adds."""
        found: Tensor = ops.log_softmax(input, self.dim, mask=mask, **self.options)
        return found
