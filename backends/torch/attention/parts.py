"""Parts of a packed tensor, whose gradients are joined without a copy where they were made side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from einops_fast.attention.packed import views
from einops_fast.backends.torch.types import is_batched, is_followed, is_jit_tracing


def apart(packed: Any, axis: int, sizes: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Return views of a tensor's parts along an axis: of these sizes, or without the axis, one for each position.

    Their gradients become one tensor. Where those lie in memory as the parts do, as our kernels for attention leave
    them, they are one already; else they are copied, as torch's ``split`` and ``unbind`` always do.
    """
    plain = type(packed) is torch.Tensor or type(packed) is torch.nn.Parameter
    followed = is_followed() or is_jit_tracing()  # which can't save a function of ours
    if plain and packed.requires_grad and torch.is_grad_enabled() and not packed.is_nested and not followed:
        found: tuple[Any, ...] = _Apart.apply(packed, axis, sizes)  # type: ignore[no-untyped-call]
        return found
    return views(packed, axis, sizes)


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, packed: Any, axis: int, sizes: Sequence[int] | None) -> Any:
        parts = views(packed, axis, sizes)
        ctx.whole, ctx.cut = (packed.shape, packed.stride()), (axis, sizes)
        ctx.places = [(part.storage_offset() - packed.storage_offset(), part.stride()) for part in parts]
        return parts

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        first, (axis, sizes) = gradients[0], ctx.cut
        # Who differentiates them again has to see how they are joined, and so has who takes several at a time.
        if not torch.is_grad_enabled() and not any(map(is_batched, gradients)):
            begin, memory = first.storage_offset() - ctx.places[0][0], first.untyped_storage().data_ptr()
            if all(
                each.untyped_storage().data_ptr() == memory and (each.storage_offset() - begin, each.stride()) == place
                for each, place in zip(gradients, ctx.places, strict=True)
            ):
                return first.as_strided(*ctx.whole, begin), None, None
        return torch.stack(gradients, axis) if sizes is None else torch.cat(gradients, axis), None, None
