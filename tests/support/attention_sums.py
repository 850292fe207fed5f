"""Attention whose weights are sums of softmaxes or lack sinks, whose rows have factors, whose keys come in blocks."""

import torch
import torch.nn.functional as F
from attention_spellings import HEADS_FIRST, HEADS_LAST, SQUARE, B, D, E, H, M, Mask, N, spelling

TWICE = ((B, H, M, D), (B, H, N, D), (B, H, M, D), (B, H, N, D), (B, H, N, D))


@spelling(*TWICE, (H, 1, 1), (B, 1, M, 1))
def difference_by_heads_and_queries(q1, k1, q2, k2, v, of_head, of_query):
    one, other = torch.softmax(q1 @ k1.mT / 2, -1), torch.softmax(q2 @ k2.mT / 2, -1)
    return torch.einsum("bhij,bhje->bihe", of_query * one - other * of_head.sigmoid(), v)


@spelling((B, 2 * H, M, D), (B, 2 * H, M, D), (B, H, M, D), ())
def difference_of_halved_heads(q, k, v, part):
    """As differential transformers have it: twice the heads, then halves of them."""
    scores = torch.matmul(q * D**-0.5, k.transpose(-1, -2))
    scores = scores + torch.triu(torch.full((M, M), float("-inf")), 1)
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).type_as(scores).view(B, H, 2, M, M)
    return torch.matmul(weights[:, :, 0] - part * weights[:, :, 1], v).transpose(1, 2).reshape(B, M, -1)


@spelling((B, H, M, 2 * D), (B, H, N, 2 * D), (B, H, N, D))
def difference_of_split_features(q, k, v):
    (q1, q2), (k1, k2) = q.split(D, -1), k.chunk(2, -1)
    weights = (q1 @ k1.mT).softmax(-1).sub((q2 @ k2.mT).softmax(-1), alpha=0.8)
    return weights @ v


@spelling((B, H, 3, M, D), (B, H, 3, N, D), (B, H, N, D), (3,))
def three_terms(q, k, v, parts):
    one, other, third = (q @ k.mT).softmax(-1).unbind(2)
    return (parts[0] * one + (other / parts[1] - 0.5 * third)) @ v


@spelling(*TWICE)
def difference_that_is_negated(q1, k1, q2, k2, v):
    one, other = (q1 @ k1.mT).exp(), (q2 @ k2.mT).softmax(-1)
    return -(-(one / one.sum(-1, keepdim=True)) + other) @ v


@spelling(*HEADS_LAST, (B, M, H))
def weights_with_gates_of_queries(q, k, v, gates):
    weights = torch.einsum("bihd,bjhd->bhij", q, k).softmax(-1)
    return torch.einsum("bhij,bjhe->bihe", weights * gates.sigmoid().permute(0, 2, 1)[..., None], v)


@spelling(*SQUARE, Mask((B, 1, 1, M)), (H, 1, 1))
def weights_that_are_gated_and_zeroed(q, k, v, mask, gate):
    weights = (q @ k.mT).softmax(-1).masked_fill(mask.transpose(-1, -2), 0)
    return (weights / gate.exp()) @ v


# ---- parts of the weights


@spelling(*HEADS_FIRST)
def one_query_of_many(q, k, v):
    return (q @ k.mT).softmax(-1)[:, :, -1:] @ v


@spelling((B, H, M, D), (B, H, 4, D), (B, H, 2, E))
def half_of_the_keys(q, k, v):
    return (q @ k.mT)[..., 2:].softmax(-1) @ v


@spelling((B, 3, H, M, D), (B, H, N, D), (B, H, N, E))
def queries_that_are_narrowed(q, k, v):
    weights = torch.einsum("bshid,bhjd->bshij", q, k).softmax(-1)
    return torch.select(weights, 1, 2).narrow(2, 0, 3) @ v


@spelling((B, 4, M, D), (B, 4, M, D), (B, 2, M, D))
def halves_with_biases_and_gains(q, k, v):
    of_heads = torch.arange(1.0, 5.0, dtype=q.dtype).view(4, 1, 1)
    scores = q @ k.mT * of_heads + torch.arange(4 * M * M, dtype=q.dtype).view(4, M, M).sin()
    weights = scores.masked_fill(torch.ones(M, M, dtype=torch.bool).triu(1), -1e9).softmax(-1)
    return (weights[:, :2] - 0.3 * weights[:, 2:]) @ v


@spelling((B, 2, M, D), (B, 2, N, D), (B, 2, N, D))
def rows_that_share_their_weights_and_logarithm(q, k, v):
    scores = torch.einsum("brid,brjd->bij", q, k)
    return torch.einsum("bij,brjd->irbd", scores.softmax(-1), v), scores.logsumexp(-1)


@spelling(*TWICE)
def difference_and_logarithm(q1, k1, q2, k2, v):
    one, other = q1 @ k1.mT, q2 @ k2.mT
    return (one.softmax(-1) - other.softmax(-1)) @ v, one.logsumexp(-1)


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


@spelling(*HEADS_FIRST, (H, 1, 1), (H, M, N))
def cosines_beside_a_bias(q, k, v, temperature, bias):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    return (temperature.clamp(max=4.6).exp() * scores + bias).softmax(-1) @ v


@spelling(*HEADS_FIRST, (H, 1, 1), Mask((B, 1, 1, N)))
def a_temperature_below_a_mask(q, k, v, temperature, mask):
    scores = (q @ k.mT).float() * temperature
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


# ---- keys of several blocks, whose scores are joined

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
