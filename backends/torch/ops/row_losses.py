"""Losses of rows of logits that are nobody else's: the gradient is written over them, in the same go."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from einops_fast.backends.torch.ops.cross_entropy import RowLoss, cross_entropy_by_kernel, write_gradient

__all__ = ["losses_over_logits"]

_LOGITS = 1 << 17
"""Of a piece, for each thread: they stay in its cache from one function to the next."""

_FEW_ROWS = 16
"""Of a piece of long rows: enough that it takes longer than calling the functions for it."""


def losses_over_logits(loss: RowLoss, logits: Any, target: Any, d_losses: Any = None) -> Any:
    """Return the loss of each row of ``(rows, classes)``; write gradients, of ``d_losses``, over the logits."""
    if not loss.has_kernels(logits, target):
        return _by_torch(loss, logits, target, d_losses)
    weights, numbers = loss.weights(), loss[1:]
    losses, logs = cross_entropy_by_kernel.compute(logits, target, loss.weight, weights, 1, *numbers, False)
    if d_losses is not None:
        write_gradient(logits, target, loss.weight, weights, logs, d_losses, 1, *numbers)
    return losses


def _by_torch(loss: RowLoss, logits: Any, target: Any, d_losses: Any) -> Any:
    """As the kernels do it, for some rows at a time, whose logarithms become the gradient in the cache."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    weight = None if loss.weight is None else loss.weight.to(dtype)
    target = target.long()
    counts = target != loss.ignore_index
    back: Any = None
    number: Any = None
    if d_losses is not None:
        back = torch.where(counts, d_losses.to(dtype), 0.0)
        number = torch.where(counts, target, 0)[:, None]
    found = []
    size = max(_LOGITS * torch.get_num_threads() // logits.shape[1], _FEW_ROWS)
    for start in range(0, len(logits), size):
        at = slice(start, start + size)
        part = logits[at]
        lse = part.to(dtype).logsumexp(1) if loss.z_loss else None
        logs = torch.log_softmax(part, 1, dtype)
        found.append(_losses(loss, logs, target[at], counts[at], weight, lse))
        if back is not None:
            _to_gradient(loss, logs, number[at], back[at], weight, lse)
            part.copy_(logs)
    return torch.cat(found) if found else logits.new_empty(0, dtype=dtype)


def _losses(loss: RowLoss, logs: Any, target: Any, counts: Any, weight: Any, lse: Any) -> Any:
    losses = F.nll_loss(logs, target, weight, ignore_index=loss.ignore_index, reduction="none")
    if loss.smoothing:
        spread = logs.sum(1) if weight is None else logs @ weight
        each = loss.smoothing / logs.shape[1] * spread
        losses = (1 - loss.smoothing) * losses - torch.where(counts, each, 0.0)
    return losses if lse is None else losses + torch.where(counts, loss.z_loss * lse.square(), 0.0)


def _to_gradient(loss: RowLoss, logs: Any, number: Any, back: Any, weight: Any, lse: Any) -> None:
    """Write the gradient of the logits over their logarithms, of those of losses and the classes that count."""
    share, classes = loss.smoothing, logs.shape[1]
    own = back if weight is None else back * weight[number[:, 0]]
    factor = own
    if share:
        own = (1 - share) * own
        factor = own + back * (share if weight is None else share / classes * weight.sum())
    if lse is not None:
        factor = factor + 2 * loss.z_loss * lse * back
    logs.exp_().mul_(factor[:, None])
    if share:
        each = back.new_ones(1).expand(classes) if weight is None else weight
        logs.addr_(back, each, alpha=-share / classes)
    logs.scatter_add_(1, number, -own[:, None])
