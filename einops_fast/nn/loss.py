"""`CrossEntropyLoss`, as torch has it, with the z-loss."""

from __future__ import annotations

from torch import Tensor, nn

from einops_fast import ops
from einops_fast.ops.cross_entropy import check_options

__all__ = ["CrossEntropyLoss"]


class CrossEntropyLoss(nn.CrossEntropyLoss):
    """:class:`torch.nn.CrossEntropyLoss` by :func:`einops_fast.ops.cross_entropy`, with classes where torch has them.

    Args:
        weight, size_average, ignore_index, reduce, reduction, label_smoothing: as torch's class takes them.
        z_loss: factor of the square of the logarithm of the sum.

    Raises:
        EinsumError: an option is wrong.

    Example:
        >>> import torch
        >>> from einops_fast.nn import CrossEntropyLoss
        >>> CrossEntropyLoss(label_smoothing=0.1)(torch.zeros(2, 4, 3), torch.zeros(2, 3, dtype=torch.long))
        tensor(1.3863)
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        check_options(ignore_index, self.reduction, label_smoothing, z_loss)
        self.z_loss = z_loss

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss of (classes,), (rows, classes) or (rows, classes, ...)."""
        found: Tensor = ops.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing, z_loss=self.z_loss,
            dim=min(input.dim() - 1, 1),
        )  # fmt: skip
        return found
