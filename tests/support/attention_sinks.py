"""Attention with sinks, and with scores that a tensor multiplies, as programs spell it."""

import torch
import torch.nn.functional as F
from attention_spellings import HEADS_FIRST, HEADS_LAST, SQUARE, B, D, H, M, Mask, N, spelling

# ---- sinks


def with_sinks(scores, sinks, q):
    return torch.cat([scores, sinks.view(1, H, 1, 1).expand(*q.shape[:3], 1)], -1)


@spelling(*HEADS_FIRST, (H,))
def sinks_of_heads(q, k, v, sinks):
    logits = with_sinks(q @ k.mT * D**-0.5, sinks, q)
    logits = logits - logits.max(-1, keepdim=True).values
    return F.softmax(logits, -1, dtype=torch.float32)[..., :-1].to(v.dtype) @ v


@spelling(*HEADS_FIRST, (H,), Mask((B, 1, M, N)))
def sinks_beside_a_mask(q, k, v, sinks, mask):
    scores = (q @ k.mT).masked_fill(~mask, torch.finfo(q.dtype).min)
    return torch.einsum("bhij,bhje->bihe", with_sinks(scores, sinks, q).softmax(-1)[:, :, :, :N], v)


@spelling(*HEADS_FIRST, (H,))
def sinks_beyond_the_number_of_keys(q, k, v, sinks):
    return with_sinks(q @ k.mT, sinks, q).softmax(-1)[..., 0 : k.shape[-2] : 1] @ v


@spelling(*SQUARE, (H,))
def sinks_where_rows_see_no_key(q, k, v, sinks):
    scores = (q @ k.mT).masked_fill(torch.ones(M, M, dtype=torch.bool).triu(), float("-inf"))
    return with_sinks(scores, sinks, q).softmax(-1)[..., :-1] @ v


@spelling(*SQUARE, (H,), (B, 1, M, M))
def sinks_beside_a_softcap_and_a_bias(q, k, v, sinks, bias):
    return F.dropout(with_sinks(5 * torch.tanh(q @ k.mT / 5) + bias, sinks, q).softmax(-1)[..., 0:-1], 0.0) @ v


@spelling(*HEADS_FIRST, (B, H, M, 1))
def sinks_by_exponentials(q, k, v, sinks):
    sinks = sinks[:, :, :1].expand(-1, -1, M, -1)
    weights = torch.cat([q @ k.mT, sinks], -1).exp()
    return (weights / weights.sum(-1, keepdim=True))[..., :-1] @ v


# ---- tensors that multiply scores


@spelling(*HEADS_FIRST, (H, 1, 1))
def a_temperature(q, k, v, temperature):
    return ((q @ k.mT) * temperature).softmax(-1) @ v


@spelling(*HEADS_FIRST, (H, 1, 1), (H, M, N))
def cosines_beside_a_bias(q, k, v, temperature, bias):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return (temperature.clamp(max=4.6).exp() * scores + bias).softmax(-1) @ v


@spelling(*HEADS_LAST, (), (B, H, M, 1))
def one_temperature_and_one_of_each_query(q, k, v, temperature, other):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / temperature.exp()
    return torch.einsum("bhij,bjhe->bihe", (3 * torch.tanh(scores.mul_(other) / 3)).softmax(-1), v)


@spelling(*HEADS_FIRST, (H, 1, 1), Mask((B, 1, 1, N)))
def a_temperature_below_a_mask(q, k, v, temperature, mask):
    scores = (q @ k.mT).float() * temperature
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
