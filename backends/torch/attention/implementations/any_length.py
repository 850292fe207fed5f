"""Calls on a CPU that torch's own function computes alike for all lengths, so that no length needs a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.types import is_jit_tracing
from einops_fast.runtime.autocast import autocasts


def of_any_length(
    run: Callable[..., Any], order: Sequence[int], spec: AttentionSpec, arrays: Sequence[Any]
) -> Callable[[bool, Sequence[Any]], Callable[..., Any] | None]:
    """Return what gives ``run`` to arrays that differ from those of a planned call in sizes only.

    It is asked with whether ``run`` holds for this head_dim alone, as where a scale was given, and with the arrays.

    Args:
        run: computes q, k, v, and a bias or mask if there is one.
        order: the axes of batch, heads, positions and features of q, k and v.
        spec: of the planned call.
        arrays: those of the planned call.
    """
    q, k = arrays[:2]
    kind, dtype, width = type(q), q.dtype, spec.head_dim
    gradients, bias_gradient = spec.gradients, spec.bias_gradient
    batch, heads, positions, features = order
    grouped = q.shape[heads] != k.shape[heads]
    mask = arrays[3] if len(arrays) > 3 else None
    added = None if mask is None else (type(mask), mask.dtype)
    ones = [] if mask is None else [size == 1 for size in mask.shape]

    def at_once(one_width: bool, operands: Sequence[Any]) -> Callable[..., Any] | None:
        if is_jit_tracing():  # the sizes are traced tensors, which no decision may follow from
            return None
        wanted = False
        for each in operands[:3]:
            if type(each) is not kind or each.dtype is not dtype or not each.is_cpu:
                return None
            wanted = wanted or each.requires_grad
        q, k, v = operands[:3]
        shape, other = q.shape, k.shape
        if len(shape) != 4 or len(other) != 4 or 0 in shape or 0 in other or other != v.shape or autocasts(q):
            return None
        # Written out: to slice shapes takes several microseconds.
        of_q, of_k, differentiates = shape[heads], other[heads], torch.is_grad_enabled()
        if (
            shape[batch] != other[batch]
            or shape[features] != other[features]
            or (one_width and width != other[features])
        ):
            return None
        if of_q != of_k and not (grouped and of_q % of_k == 0):
            return None
        of_mask = False
        if added is not None:
            mask = operands[3]
            own = mask.shape
            if type(mask) is not added[0] or mask.dtype is not added[1] or not mask.is_cpu or len(own) != len(ones):
                return None
            of_mask = mask.requires_grad
            # An axis of one element is for all; the order of the others is that of the planned call.
            sizes = (shape[batch], of_q, shape[positions], other[positions])[-len(own) :]
            for size, full, one in zip(own, sizes, ones, strict=True):
                if (size == 1) is not one or not (one or size == full):
                    return None
        if not differentiates or not (wanted or of_mask):  # gradients that nobody asks for make no difference
            return run
        return run if gradients and of_mask is bias_gradient else None

    return at_once
