"""Attention as programs spell it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

B, H, M, N, D, E = 2, 3, 6, 5, 4, 7
"""Sizes: batch, heads, queries, keys, features of queries and keys, features of values."""


class Spelling(NamedTuple):
    """A function, and the shapes of its arguments; one of ``bool`` is a mask."""

    function: Callable[..., Any]
    shapes: tuple[Any, ...]


SPELLINGS: dict[str, Spelling] = {}

HEADS_FIRST = ((B, H, M, D), (B, H, N, D), (B, H, N, E))
HEADS_LAST = ((B, M, H, D), (B, N, H, D), (B, N, H, E))
SQUARE = ((B, H, M, D),) * 3


class Mask(NamedTuple):
    """The shape of a mask, each row of which shows some keys."""

    shape: tuple[int, ...]


def spelling(*shapes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to the spellings."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        SPELLINGS[function.__name__] = Spelling(function, shapes)
        return function

    return add


# ---- two contractions and a softmax


@spelling(*HEADS_FIRST)
def two_einsums(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k) / math.sqrt(D)
    return torch.einsum("bhij,bhje->bhie", scores.softmax(-1), v)


@spelling(*HEADS_LAST)
def einsums_with_heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * D**-0.5
    return torch.einsum("bhij,bjhe->bihe", F.softmax(scores, dim=-1), v)


@spelling(*HEADS_LAST)
def einsums_with_keys_first(q, k, v):
    scores = torch.einsum("bihd,bjhd->bjih", q, k)
    return torch.einsum("bjih,bjhe->bihe", scores.softmax(dim=1), v)


@spelling(*HEADS_FIRST)
def einsum_of_swapped_operands(q, k, v):
    weights = torch.softmax(torch.einsum("bhjd,bhid->bhij", k, q), -1)
    return torch.einsum("bhje,bhij->bhie", v, weights)


@spelling(*HEADS_FIRST)
def einsum_with_an_ellipsis(q, k, v):
    return torch.einsum("...ij,...je->...ie", torch.einsum("...id,...jd->...ij", q, k).softmax(-1), v)


@spelling(*HEADS_FIRST)
def matmul_and_transpose(q, k, v):
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(D), dim=-1), v)


@spelling(*HEADS_FIRST)
def operators(q, k, v):
    return ((q @ k.mT) * 0.3).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def scaled_keys_and_queries(q, k, v):
    return torch.softmax((q / 1.7) @ (k * 0.4).permute(0, 1, 3, 2), dim=-1) @ v


@spelling(*HEADS_FIRST)
def batched_products(q, k, v):
    q, k, v = (each.reshape(B * H, -1, each.shape[-1]) for each in (q, k, v))
    weights = F.softmax(torch.bmm(q, k.transpose(1, 2)) / 2.0, dim=-1)
    return torch.bmm(weights, v).view(B, H, M, E)


@spelling(*HEADS_FIRST)
def batched_products_of_viewed_scores(q, k, v):
    batch, heads = q.shape[:2]
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, q.shape[1], -1)
    weights = F.softmax(scores, dim=-1).view(batch * heads, q.shape[1], -1)
    return torch.bmm(weights, v).view(batch, heads, q.shape[1], -1)


@spelling(*HEADS_FIRST, (B * H, M, N))
def baddbmm(q, k, v, bias):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=0.4).softmax(-1).bmm(v)


@spelling(*HEADS_FIRST)
def baddbmm_of_nothing(q, k, v):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    empty = torch.empty(B * H, M, N, dtype=q.dtype)
    return torch.bmm(torch.baddbmm(empty, q, k.transpose(1, 2), beta=0, alpha=0.4).softmax(-1), v)


@spelling((B, M, D), (B, N, D), (B, N, E))
def three_axes(q, k, v):
    return torch.softmax(torch.einsum("bid,bjd->bij", q, k), -1) @ v


@spelling((B, 2, H, M, D), (B, 2, H, N, D), (B, 2, H, N, E))
def five_axes(q, k, v):
    return torch.einsum("bxhij,bxhje->bxihe", torch.einsum("bxhid,bxhjd->bxhij", q, k).softmax(-1), v)


@spelling((B, M, 2, H, D), (B, M, 2, H, D), (B, M, 2, H, E))
def along_the_second_of_two_axes(q, k, v):
    """Axial attention, as along the columns of a pair representation."""
    return torch.einsum("bxhij,bjxhe->bixhe", torch.einsum("bixhd,bjxhd->bxhij", q, k).softmax(-1), v)


@spelling((B, M, 3 * H * D))
def packed_projections(x):
    q, k, v = x.view(B, M, 3, H, D).permute(2, 0, 3, 1, 4)
    return ((q @ k.transpose(-2, -1)) * D**-0.5).softmax(dim=-1) @ v


@spelling((B, M, 3 * H * D))
def chunks(x):
    q, k, v = (each.view(B, M, H, D).transpose(1, 2) for each in x.chunk(3, dim=-1))
    return (torch.softmax(q @ k.transpose(-2, -1), -1) @ v).transpose(1, 2).contiguous().view(B, M, H * D)


@spelling((B, M, 3 * H * D))
def split(x):
    q, k, v = x.split(H * D, dim=2)
    q, k, v = (each.unflatten(-1, (H, D)).movedim(2, 1) for each in (q, k, v))
    return torch.einsum("bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v).flatten(2)


@spelling((B, M, H, D), (B, N, D), (B, N, E))
def one_head_of_keys(q, k, v):
    return torch.einsum("bhij,bje->bihe", torch.einsum("bihd,bjd->bhij", q, k).softmax(-1), v)


@spelling((B, 4, M, D), (B, 2, N, D), (B, 2, N, E))
def repeated_heads(q, k, v):
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    return torch.softmax(q @ k.transpose(2, 3) / 2, dim=-1) @ v


@spelling((B, 4, M, D), (B, 2, N, D), (B, 2, N, E))
def expanded_heads(q, k, v):
    k, v = (each[:, :, None].expand(B, 2, 2, N, each.shape[-1]).reshape(B, 4, N, each.shape[-1]) for each in (k, v))
    return torch.softmax(q @ k.transpose(2, 3) / 2, dim=-1) @ v


@spelling((B, M, 4, D), (B, N, 2, D), (B, N, 2, E))
def grouped_einsums(q, k, v):
    q = q.view(B, M, 2, 2, D)
    weights = torch.einsum("bigrd,bjgd->bgrij", q, k).softmax(-1)
    return torch.einsum("bgrij,bjge->bigre", weights, v).reshape(B, M, 4 * E)


@spelling((M, B * H, D), (N, B * H, D), (N, B * H, E))
def sequence_first(q, k, v):
    q, k, v = (each.transpose(0, 1) for each in (q, k, v))
    weights = F.softmax(torch.bmm(q * D**-0.5, k.transpose(1, 2)), dim=-1)
    return torch.bmm(weights, v).transpose(0, 1).contiguous().view(M, B, H * E)


@spelling(*HEADS_FIRST)
def product_and_sum(q, k, v):
    scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1)
    return (scores.softmax(-1).unsqueeze(-1) * v[:, :, None]).sum(dim=3)


@spelling((B, H, 1, D), (B, H, N, D), (B, H, N, E))
def one_query(q, k, v):
    return (q @ k.transpose(-1, -2)).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def einsum_of_lists(q, k, v):
    scores = torch.einsum(q, [0, 1, 2, 3], k, [0, 1, 4, 3], [0, 1, 2, 4])
    return torch.einsum(scores.softmax(-1), [0, 1, 2, 4], v, [0, 1, 4, 5], [0, 2, 1, 5])


@spelling((M, D), (N, D), (N, E))
def tensordot(q, k, v):
    return torch.tensordot(torch.tensordot(q, k, dims=([1], [1])).softmax(-1), v, dims=1)


@spelling((B, 4, M, D), (B, 2, N, D), (B, 2, N, E))
def heads_in_turns(q, k, v):
    k, v = k.repeat(1, 2, 1, 1), torch.cat([v, v], dim=1)
    return (q @ k.mT).softmax(-1) @ v


@spelling((B, H, D), (B, H, N, D), (B, H, N, E))
def no_axis_of_queries(q, k, v):
    return torch.einsum("bhj,bhje->bhe", torch.einsum("bhd,bhjd->bhj", q, k).softmax(-1), v)


@spelling(*HEADS_FIRST)
def scale_as_a_tensor(q, k, v):
    return (q @ k.mT / torch.sqrt(torch.tensor(float(D)))).softmax(-1) @ v


# ---- the softmax


@spelling(*HEADS_FIRST)
def softmax_by_hand(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("bhij,bhje->bhie", weights / weights.sum(-1, keepdim=True), v)


@spelling(*HEADS_FIRST)
def softmax_by_hand_with_max(q, k, v):
    scores = q @ k.mT
    weights = torch.exp(scores - torch.max(scores, dim=-1, keepdim=True)[0])
    return (weights / torch.sum(weights, dim=-1, keepdim=True)) @ v


@spelling(*HEADS_FIRST)
def softmax_by_hand_without_max(q, k, v):
    weights = torch.exp((q @ k.mT) * 0.5)
    return (weights / weights.sum(dim=-1, keepdim=True)) @ v


@spelling(*HEADS_FIRST)
def softmax_by_a_reciprocal(q, k, v):
    weights = torch.exp(q @ k.mT)
    return (weights * weights.sum(-1, keepdim=True).reciprocal()) @ v


@spelling(*HEADS_FIRST)
def softmax_of_stabilized_scores(q, k, v):
    scores = q @ k.mT
    scores = scores - scores.max(dim=-1, keepdim=True).values
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST)
def softmax_by_logsumexp(q, k, v):
    scores = q @ k.mT
    return (scores - scores.logsumexp(-1, keepdim=True)).exp() @ v


@spelling(*HEADS_FIRST)
def exponential_of_log_softmax(q, k, v):
    return F.log_softmax(q @ k.mT, dim=-1).exp() @ v


@spelling(*HEADS_FIRST)
def softmax_in_float32(q, k, v):
    return F.softmax((q @ k.mT), dim=-1, dtype=torch.float32).to(v.dtype) @ v


@spelling(*HEADS_FIRST)
def scores_in_float32(q, k, v):
    return (q @ k.mT).float().softmax(-1).type_as(v) @ v


@spelling(*HEADS_FIRST)
def dropout_that_is_off(q, k, v):
    return F.dropout((q @ k.mT).softmax(-1), 0.3, training=False) @ v


# ---- masks and biases


@spelling(*HEADS_FIRST, Mask((B, 1, 1, N)))
def mask_of_keys(q, k, v, mask):
    scores = (q @ k.mT) / 2
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, N)))
def mask_of_keys_with_new_axes(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((M, N)))
def where(q, k, v, mask):
    scores = torch.where(mask, q @ k.mT, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((M, N)))
def where_of_a_tensor(q, k, v, mask):
    scores = torch.where(mask, q @ k.mT, torch.tensor(-1e9, dtype=q.dtype))
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, 1, N)), Mask((M, N)))
def two_masks(q, k, v, one, other):
    scores = (q @ k.mT).masked_fill(~one, -torch.inf)
    return torch.where(other, scores, -torch.inf).softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, 1, N)))
def mask_as_large_numbers(q, k, v, mask):
    return ((q @ k.mT) * 0.5 + (1.0 - mask.to(q.dtype)) * -10000.0).softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def mask_of_scores_and_weights(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, -1e9)
    return scores.softmax(-1).masked_fill(mask.logical_not(), 0.0) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def mask_in_place(q, k, v, mask):
    scores = q @ k.mT
    scores.masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, (H, M, N))
def bias_of_positions(q, k, v, bias):
    return (torch.einsum("bhid,bhjd->bhij", q, k) + bias).softmax(-1) @ v


@spelling(*HEADS_FIRST, (1, H, M, N), (B, 1, 1, N))
def two_biases(q, k, v, one, other):
    scores = one + q @ k.mT
    scores += other
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, (H, M, N))
def bias_that_is_scaled_too(q, k, v, bias):
    return ((q @ k.mT - bias) * 0.25).softmax(-1) @ v


@spelling(*HEADS_LAST, (M, N, H))
def bias_with_heads_last(q, k, v, bias):
    scores = torch.einsum("bihd,bjhd->bijh", q, k) + bias
    return torch.einsum("bijh,bjhe->bihe", scores.softmax(2), v)


@spelling(*HEADS_FIRST, (H,))
def alibi(q, k, v, slopes):
    distance = torch.arange(N)[None, :] - torch.arange(M)[:, None]
    return ((q @ k.mT) + slopes[:, None, None] * distance).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def softcap(q, k, v):
    scores = 5.0 * torch.tanh((q @ k.mT) * 0.5 / 5.0)
    return scores.softmax(-1) @ v


@spelling(*SQUARE)
def causal_by_tril(q, k, v):
    mask = torch.tril(torch.ones(M, M, dtype=torch.bool))
    return (q @ k.mT / 2).masked_fill(~mask, float("-inf")).softmax(-1) @ v


@spelling(*SQUARE)
def causal_by_triu(q, k, v):
    mask = torch.triu(torch.full((M, M), float("-inf")), diagonal=1)
    return (q @ k.mT + mask).softmax(-1) @ v


@spelling(*SQUARE)
def causal_by_positions(q, k, v):
    n = q.shape[2]
    mask = torch.arange(n)[:, None] >= torch.arange(n)[None, :]
    return torch.where(mask, torch.einsum("bhid,bhjd->bhij", q, k), -1e9).softmax(-1) @ v


@spelling(*SQUARE, Mask((B, 1, 1, M)))
def causal_with_padding(q, k, v, mask):
    causal = torch.ones(M, M).tril().view(1, 1, M, M)
    scores = (q @ k.mT).masked_fill(causal == 0, float("-inf"))
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
