"""Calls of FlashAttention-4, or of what stands in for it."""

from functools import partial
from typing import Any

import torch

from einops_fast import attention

P = "b i h d, b j g d, b j g e -> b i h e"

THD = {"layout": "thd"}

BR = "bottom_right"


def made(case: tuple[Any, Any, dict[str, Any]], device: str) -> tuple[Any, list[Any], dict[str, Any]]:
    """The call, its operands, and its options, with tensors."""
    way, sizes, options = case[0], case[1], dict(case[2])
    dtype = getattr(torch, options.pop("dtype", "bfloat16"))
    generator = torch.Generator().manual_seed(0)
    arrays = [torch.randn(size, generator=generator).to(device, dtype) for size in sizes]
    for name in ("cu_seqlens_q", "cu_seqlens_kv", "cache_seqlens"):
        if name in options:
            options[name] = torch.tensor(options[name], dtype=torch.int32, device=device)
    if "block_table" in options:
        count = -(-256 // options["block_table"])
        order = torch.randperm(40, generator=generator)[: 2 * count].reshape(2, count)
        options["block_table"] = order.to(device, torch.int32)
    if "sinks" in options:
        options["sinks"] = torch.randn(options["sinks"], generator=generator).to(device)
    if isinstance(way, dict):
        return partial(attention, **way), arrays, options
    return (partial(attention, way) if " " in way else partial(attention, layout=way)), arrays, options


def results(
    call: Any, arrays: list[Any], options: dict[str, Any], gradients: bool, wide: bool = False
) -> dict[str, Any]:
    """The result, its logarithms, and all gradients for ones that are fixed."""
    leaves = [each.detach().to(torch.float64 if wide else each.dtype).requires_grad_(gradients) for each in arrays]
    options = dict(options)
    if "sinks" in options:
        sinks = options["sinks"].detach().to(torch.float64 if wide else torch.float32).requires_grad_(gradients)
        leaves.append(sinks)
        options["sinks"] = sinks if call.keywords else ("h", sinks)
    found = call(*leaves[: len(arrays)], **options)
    found = found if isinstance(found, tuple) else (found,)
    named = dict(zip(("result", "lse"), found, strict=False))
    if gradients:
        generator = torch.Generator().manual_seed(1)
        total = 0.0
        for each in found:
            cotangent = torch.randn(each.shape, generator=generator).to(each.device, torch.bfloat16).to(each.dtype)
            total = total + (torch.where(each == -torch.inf, 0.0, each) * cotangent).sum()
        names = ["d_q", "d_k", "d_v"][: len(arrays)] + ["d_sinks"] * ("sinks" in options)
        named |= dict(zip(names, torch.autograd.grad(total, leaves), strict=True))
    return {name: each.detach() for name, each in named.items()}


def check(found: dict[str, Any], expected: dict[str, Any], eps: float) -> None:
    for name, right in expected.items():
        ours = found[name]
        assert ours.shape == right.shape, name
        hidden = right == -torch.inf
        assert torch.equal(ours == -torch.inf, hidden), name
        ours, right = (each.double().masked_fill(hidden, 0.0) for each in (ours, right))
        error = (ours - right).abs().max().item()
        assert error <= eps * max(1.0, right.abs().max().item()), f"{name}: {error:.2g}"
