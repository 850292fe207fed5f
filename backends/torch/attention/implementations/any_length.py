"""Calls on a CPU that torch's own function computes alike for all lengths, so that no length needs a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.base import Likeness
from einops_fast.backends.torch.types import any_nested, guards_of, is_jit_tracing, recorder


def of_any_length(
    order: Sequence[int], spec: AttentionSpec, arrays: Sequence[Any]
) -> Callable[[bool], Likeness | None]:
    """Return what makes a likeness to arrays of a planned call, in all but sizes; its sizes fit together.

    It is asked with whether the call holds for this head_dim alone, as where a scale was given.

    Args:
        order: the axes of batch, heads, positions and features of q, k and v.
        spec: of the planned call.
        arrays: q, k, v, and a bias or mask if there is one.
    """
    batch, heads, positions, features = order
    grouped = arrays[0].shape[heads] != arrays[1].shape[heads]
    mask = arrays[3] if len(arrays) > 3 else None
    ones = [] if mask is None else [size == 1 for size in mask.shape]

    def fits(shapes: Sequence[Sequence[int]]) -> bool:
        """Return whether sizes fit together, and a mask has one element where the planned call's has."""
        q, k, v, *others = shapes
        if len(q) != 4 or len(k) != 4 or k != v or 0 in q or 0 in k:
            return False
        if q[batch] != k[batch] or q[features] != k[features] or q[heads] % k[heads]:
            return False
        if q[heads] != k[heads] and not grouped:
            return False
        # The order of axes of a mask is that of the planned call.
        sizes = q[batch], q[heads], q[positions], k[positions]
        return not others or (
            len(others[0]) == len(ones)
            and all((size == 1) is one and (one or size == full)
                    for size, full, one in zip(others[0], sizes[-len(ones) :], ones, strict=True))
        )  # fmt: skip

    def likeness(one_width: bool) -> Likeness | None:
        sizes: list[list[int | None]] = [[None] * each.dim() for each in arrays]
        if one_width:
            sizes[0][features] = spec.head_dim
        check = guards_of(arrays, sizes)
        for own, each in zip(sizes[:3], arrays, strict=False):
            own[:] = [size if axis != positions else None for axis, size in enumerate(each.shape)]
        check_all_but_lengths = guards_of(arrays, sizes)
        if check is None or check_all_but_lengths is None:
            return None
        wanted, grad_mode = any(each.requires_grad for each in arrays), spec.gradients

        # Each call of a new length comes through here: what is asked in C++ takes a tenth of what shapes take.
        def like(operands: Sequence[Any]) -> bool:
            if is_jit_tracing() or any_nested(operands):  # no decision may follow from traced sizes
                return False
            if mask is None and check_all_but_lengths(*operands):
                q, k, v = operands
                if not q.numel() or not k.numel() == v.numel() != 0:
                    return False
            elif not (check(*operands) and fits([each.shape for each in operands])):
                return False
            return (
                (not wanted or torch.is_grad_enabled() is grad_mode)
                and forward_ad._current_level < 0
                and recorder() is None
            )

        return like

    return likeness
