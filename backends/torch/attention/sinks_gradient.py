"""The gradient of attention sinks, by torch."""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.attention.spec import AttentionSpec

__all__ = ["sinks_gradient"]


def sinks_gradient(spec: AttentionSpec, sinks: Any, q_starts: Any, lse: Any, delta: Any) -> Any:
    """A sink is a key without a value: the gradient of its score is its weight times ``-delta``.

    Args:
        spec: what was computed.
        sinks: one for each element of the batch, or 1 along axes that share one.
        q_starts: where packed sequences begin, and the end of the last.
        lse: logarithms of the rows' sums.
        delta: see :mod:`einops_fast.backends.triton.attention.general.backward`.
    """
    by_sequence = spec.varlen and sinks.shape[0] > 1
    rows = sinks[..., None]
    if by_sequence:
        tokens = torch.arange(lse.shape[-1], device=lse.device)
        sequence = torch.bucketize(tokens, q_starts[1:].long(), right=True).clamp_max(sinks.shape[0] - 1)
        rows = sinks[sequence].movedim(0, -1)[None]
    gradient = -delta * torch.where(lse == float("-inf"), 0.0, torch.exp(rows - lse))
    if by_sequence:
        # Sequence by token, for a sum whose order is always the same.
        belongs = torch.zeros((sinks.shape[0], lse.shape[-1]), dtype=gradient.dtype, device=lse.device)
        belongs[sequence, tokens] = (tokens < q_starts[-1]).to(gradient.dtype)
        gradient = torch.einsum("...t,nt->n...", gradient[0], belongs)
    else:
        gradient = gradient.sum(-1)
    axes = [at for at, size in enumerate(sinks.shape) if size == 1 != gradient.shape[at]]
    return (gradient.sum(axes, keepdim=True) if axes else gradient).to(sinks.dtype)
