"""Losses of rows of logits that are nobody else's: the gradient is written over them, in the same go."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from einops_fast.backends.torch_cross_entropy import cross_entropy_by_kernel, write_gradient
from einops_fast.backends.torch_operator import by_kernel

__all__ = ["RowLoss"]


class RowLoss(NamedTuple):
    """What a row's loss is; the arguments are those of :func:`einops_fast.ops.cross_entropy`."""

    weight: Any
    ignore_index: int
    smoothing: float
    z_loss: float

    def __call__(self, logits: Any, target: Any, d_losses: Any = None) -> Any:
        """The loss of each row of ``(rows, classes)``, in float32 at least.

        Args:
            logits: overwritten by their gradient if there is one of the losses.
            target: the number of each row's class.
            d_losses: gradients of the losses, if any.
        """
        weight, numbers = self.weight, (self.ignore_index, self.smoothing, self.z_loss)
        if not by_kernel([each for each in (logits, target, weight) if each is not None]):
            return self._by_torch(logits, target, d_losses)
        weights = weight.double().sum() if weight is not None and self.smoothing else None
        losses, logs = cross_entropy_by_kernel.compute(logits, target, weight, weights, 1, *numbers, False)
        if d_losses is not None:
            write_gradient(logits, logits, target, weight, weights, logs, d_losses, True, 1, *numbers)
        return losses

    def _by_torch(self, logits: Any, target: Any, d_losses: Any) -> Any:
        """As the kernels do it; beside the logits there are their logarithms, which become the gradient."""
        classes, share = logits.shape[1], self.smoothing
        dtype = torch.promote_types(logits.dtype, torch.float32)
        weight = None if self.weight is None else self.weight.to(dtype)
        lse = logits.to(dtype).logsumexp(1) if self.z_loss else None
        logs = F.log_softmax(logits, 1, dtype=dtype)
        losses = F.nll_loss(logs, target.long(), weight, ignore_index=self.ignore_index, reduction="none")
        counts = target != self.ignore_index
        if share:
            spread = logs.sum(1) if weight is None else logs @ weight
            losses = (1 - share) * losses - torch.where(counts, share / classes * spread, 0.0)
        if lse is not None:
            losses = losses + torch.where(counts, self.z_loss * lse.square(), 0.0)
        if d_losses is None:
            return losses
        back = torch.where(counts, d_losses.to(dtype), 0.0)
        number = torch.where(counts, target, 0).long()
        own = back if weight is None else back * weight[number]
        factor = own
        if share:
            own = (1 - share) * own
            factor = own + back * (share if weight is None else share / classes * weight.sum())
        if lse is not None:
            factor = factor + 2 * self.z_loss * lse * back
        gradient = logs.exp_().mul_(factor[:, None])
        if share:
            each = back.new_ones(1).expand(classes) if weight is None else weight
            gradient.addr_(back, each, alpha=-share / classes)
        gradient.scatter_add_(1, number[:, None], -own[:, None])
        logits.copy_(gradient)
        return losses
