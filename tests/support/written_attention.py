"""Attention that is written out, and tensors for it."""

from typing import Any

import torch


def attend(q: Any, k: Any, v: Any, mask: Any = None, fill: float = float("-inf")) -> Any:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / 2
    if mask is not None:
        scores = scores.masked_fill(~mask, fill)
    return torch.einsum("bhij,bhjd->bihd", scores.softmax(-1), v)


def operands(*shape: int, dtype: Any = None, count: int = 3) -> list[Any]:
    generator = torch.Generator().manual_seed(1)
    made = torch.randn(count, *(shape or (2, 3, 6, 8)), generator=generator)
    return [each.to(dtype or torch.float32).requires_grad_() for each in made]
