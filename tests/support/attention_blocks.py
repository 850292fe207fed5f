"""Attention to keys of several blocks whose scores are joined, as programs spell it."""

import torch
from attention_spellings import B, D, E, H, M, Mask, spelling

BLOCKS = ((B, H, M, D), (B, H, 4, D), (B, H, 3, D), (B, H, 4, E), (B, H, 3, E))


@spelling(*BLOCKS)
def blocks_of_keys(q, k1, k2, v1, v2):
    scores = torch.cat([q @ k1.mT, q @ k2.mT], -1) * D**-0.5
    return scores.softmax(-1) @ torch.cat([v1, v2], dim=-2)


@spelling(*BLOCKS, Mask((B, 1, 1, 7)), (H, M, 7))
def blocks_beside_a_mask_and_a_bias(q, k1, k2, v1, v2, mask, bias):
    scores = torch.cat((torch.einsum("bhid,bhjd->bhij", q, k1) / 2, torch.einsum("bhid,bhjd->bhij", q, k2) / 2), dim=3)
    weights = (scores + bias).masked_fill(~mask, float("-inf")).softmax(-1)
    return torch.einsum("bhij,bhje->bihe", weights, torch.cat((v1, v2), 2))


@spelling((B, M, H, D), (B, 4, H, D), (B, H, D, 5), (B, H, 2, D), (B, 11, H, E))
def three_blocks_in_other_orders(q, k1, k2, k3, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k1), q.transpose(1, 2) @ k2, torch.einsum("bhjd,bihd->bhij", k3, q)
    return torch.einsum("bhij,bjhe->bihe", torch.cat(scores, -1).softmax(-1), v)
