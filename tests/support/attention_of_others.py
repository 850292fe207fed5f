"""Attention as code of others spells it, and weights that are sums of softmaxes or lack sinks."""

import math

import torch
import torch.nn.functional as F
from attention_spellings import HEADS_FIRST, SQUARE, B, D, E, H, M, Mask, N, spelling


def heads_of(x):
    return x.reshape(*x.shape[:-1], H, -1).transpose(-3, -2)


def joined(x):
    return x.transpose(-3, -2).flatten(-2)


# ---- language models


@spelling((B, M, 3 * H * D))
def causal_with_a_buffer_of_ones(x):
    """As small GPTs have it: a triangle is compared with zero."""
    q, k, v = map(heads_of, x.split(H * D, dim=2))
    scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    bias = torch.tril(torch.ones(M, M)).view(1, 1, M, M)
    weights = F.softmax(scores.masked_fill(bias[:, :, :M, :M] == 0, float("-inf")), dim=-1)
    return F.dropout(weights, 0.1, False).matmul(v).transpose(1, 2).contiguous().view(B, M, H * D)


# ---- vision and diffusion


@spelling((4 * B, M, 3 * H * D), (H, M, M), (4, M, M))
def windows_that_are_shifted(x, bias, mask):
    """The mask of four windows of an image is added to scores of all images."""
    q, k, v = x.reshape(4 * B, M, 3, H, D).permute(2, 0, 3, 1, 4)
    scores = (q * D**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(B, 4, H, M, M) + mask.unsqueeze(1).unsqueeze(0)
    weights = scores.view(-1, H, M, M).softmax(-1)
    return (weights @ v).transpose(1, 2).reshape(4 * B, M, H * D)


@spelling((B, H * D, 2, 3), (B, H * D, 2, 3), (B, H * E, 2, 3))
def pixels_of_channels(q, k, v):
    """Channels come first, as in a U-Net."""
    q, k, v = (each.reshape(B * H, -1, 6) for each in (q, k, v))
    scale = 1 / math.sqrt(math.sqrt(D))
    weights = torch.softmax(torch.einsum("bct,bcs->bts", q * scale, k * scale).float(), dim=-1).type(q.dtype)
    return torch.einsum("bts,bcs->bct", weights, v).reshape(B, -1, 2, 3)


# ---- sets and latents


@spelling((B, M, H, D), (B, N, H, D), (B, N, H, D), Mask((B, N)))
def masked_by_the_least_number(q, k, v, mask):
    scores = torch.einsum("b i h d, b j h d -> b h i j", q, k) * D**-0.5
    scores = scores.masked_fill(~mask.reshape(B, 1, 1, N), -torch.finfo(scores.dtype).max)
    scores = scores - scores.amax(dim=-1, keepdim=True).detach()
    return torch.einsum("b h i j, b j h d -> b i h d", scores.softmax(dim=-1), v)


# ---- graphs


@spelling(*SQUARE, Mask((B, 1, 1, M)))
def queries_of_padding_give_zeros(q, k, v, mask):
    """Rows of padding are set to zero after the softmax."""
    scores = (q @ k.mT).masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1).masked_fill(~mask.mT, 0.0)
    return weights @ v


# ---- proteins


@spelling((B, 4, M, H, D), (B, 4, M, H, D), (B, 4, M, H, D), Mask((B, 4, M)), (B, M, M, H), (B, 4, M, H, D))
def gated_rows_with_a_bias_of_pairs(q, k, v, mask, pairs, gate):
    """Rows of an alignment share a bias, as in an Evoformer."""
    bias = (mask.to(q.dtype) - 1)[:, :, None, None, :] * 1e9
    scores = torch.einsum("...qhd,...khd->...hqk", q * D**-0.5, k) + bias
    scores = scores + pairs.permute(0, 3, 1, 2).unsqueeze(1)
    found = torch.einsum("...hqk,...khd->...qhd", scores.softmax(-1), v)
    return (torch.sigmoid(gate) * found).flatten(-2)


TWICE = ((B, H, M, D), (B, H, N, D), (B, H, M, D), (B, H, N, D), (B, H, N, D))


@spelling(*TWICE, (H, 1, 1), (B, 1, M, 1))
def difference_by_heads_and_queries(q1, k1, q2, k2, v, of_head, of_query):
    one, other = torch.softmax(q1 @ k1.mT / 2, -1), torch.softmax(q2 @ k2.mT / 2, -1)
    return torch.einsum("bhij,bhje->bihe", of_query * one - other * of_head.sigmoid(), v)


@spelling((B, H, 3, M, D), (B, H, 3, N, D), (B, H, N, D), (3,))
def three_terms(q, k, v, parts):
    one, other, third = (q @ k.mT).softmax(-1).unbind(2)
    return (parts[0] * one + (other / parts[1] - 0.5 * third)) @ v


# ---- parts of the weights


@spelling((B, 2, M, D), (B, 2, N, D), (B, 2, N, D))
def rows_that_share_their_weights_and_logarithm(q, k, v):
    scores = torch.einsum("brid,brjd->bij", q, k)
    return torch.einsum("bij,brjd->irbd", scores.softmax(-1), v), scores.logsumexp(-1)


# ---- sinks


def with_sinks(scores, sinks, q):
    return torch.cat([scores, sinks.view(1, H, 1, 1).expand(*q.shape[:3], 1)], -1)


@spelling(*HEADS_FIRST, (H,))
def sinks_of_heads(q, k, v, sinks):
    logits = with_sinks(q @ k.mT * D**-0.5, sinks, q)
    logits = logits - logits.max(-1, keepdim=True).values
    return F.softmax(logits, -1, dtype=torch.float32)[..., :-1].to(v.dtype) @ v


# ---- keys of several blocks, whose scores are joined

BLOCKS = ((B, H, M, D), (B, H, 4, D), (B, H, 3, D), (B, H, 4, E), (B, H, 3, E))


@spelling(*BLOCKS)
def blocks_of_keys(q, k1, k2, v1, v2):
    scores = torch.cat([q @ k1.mT, q @ k2.mT], -1) * D**-0.5
    return scores.softmax(-1) @ torch.cat([v1, v2], dim=-2)
