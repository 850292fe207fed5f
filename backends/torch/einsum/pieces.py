"""Gradients of a contraction in pieces: each piece is contracted again, and its gradients are added up."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from einops_fast.backends.base import Run
from einops_fast.backends.torch.function import recorded
from einops_fast.backends.torch.types import HALVES, is_followed
from einops_fast.errors import EinsumError

if TYPE_CHECKING:
    from einops_fast.limited import Pieces


def recorded_in_pieces(pieces: Pieces) -> Run:
    """Return what contracts operands in pieces, recorded by autograd as one node that keeps the operands alone."""
    if is_followed():
        raise EinsumError("memory_limit isn't for functions that torch.func transforms: they take all pieces at once")
    return partial(_apply, pieces)


class _InPieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pieces: Pieces, *operands: Any) -> Any:
        device = operands[0].device.type
        ctx.pieces, ctx.autocast = pieces, (device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
        ctx.save_for_backward(*operands)
        return pieces(*operands)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if torch.is_grad_enabled():
            raise EinsumError("gradients of a call with memory_limit can't be differentiated again: give no limit")
        operands, wanted = ctx.saved_tensors, ctx.needs_input_grad[1:]
        sums: list[Any] = [
            torch.zeros_like(each, dtype=torch.float32 if each.dtype in HALVES else each.dtype) if is_wanted else None
            for each, is_wanted in zip(operands, wanted, strict=True)
        ]
        device, dtype, enabled = ctx.autocast
        for given, at in ctx.pieces.slicing.pieces([each.shape for each in operands]):
            parts = [
                each.detach()[index].requires_grad_(is_wanted)
                for each, index, is_wanted in zip(operands, given, wanted, strict=True)
            ]
            with torch.enable_grad(), torch.autocast(device, dtype, enabled):
                part = ctx.pieces.contract(parts)
            leaves = [part for part in parts if part.requires_grad]
            found = iter(torch.autograd.grad(part, leaves, gradient[at]))
            for total, index in zip(sums, given, strict=True):
                if total is not None:
                    total[index] += next(found)
        for number, each in enumerate(operands):
            if each.dtype in HALVES and sums[number] is not None:
                sums[number] = sums[number].to(each.dtype)
        return None, *sums


_apply = recorded(_InPieces)
