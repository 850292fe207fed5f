"""Attention as programs spell it: its contractions, its softmax, its masks, biases and windows."""

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


@spelling((B, M, 3 * H * D))
def split(x):
    q, k, v = x.split(H * D, dim=2)
    q, k, v = (each.unflatten(-1, (H, D)).movedim(2, 1) for each in (q, k, v))
    return torch.einsum("bhij,bhjd->bihd", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v).flatten(2)


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


@spelling(*HEADS_FIRST)
def scale_as_a_tensor(q, k, v):
    return (q @ k.mT / torch.sqrt(torch.tensor(float(D)))).softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, N)))
def mask_of_keys_with_new_axes(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def mask_of_scores_and_weights(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, -1e9)
    return scores.softmax(-1).masked_fill(mask.logical_not(), 0.0) @ v


@spelling(*HEADS_FIRST, (1, H, M, N), (B, 1, 1, N))
def two_biases(q, k, v, one, other):
    scores = one + q @ k.mT
    scores += other
    return scores.softmax(-1) @ v


@spelling(*SQUARE)
def causal_by_positions(q, k, v):
    n = q.shape[2]
    mask = torch.arange(n)[:, None] >= torch.arange(n)[None, :]
    return torch.where(mask, torch.einsum("bhid,bhjd->bhij", q, k), -1e9).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def causal_by_the_positions_of_a_cache(q, k, v):
    m, n = q.shape[2], k.shape[2]
    rows = torch.arange(n - m, n)
    hidden = rows.view(-1, 1) < torch.arange(n).view(1, -1)
    return (q @ k.mT).masked_fill(hidden, -1e9).softmax(-1) @ v


@spelling(*SQUARE, Mask((M, M)))
def block_mask_by_where(q, k, v, mask):
    scores = q @ k.mT
    return torch.where(mask, scores, torch.full_like(scores, float("-inf"))).softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def gate_of_a_mask(q, k, v, mask):
    """As GPT-2 had it first."""
    b = mask.to(q.dtype)
    return ((q @ k.mT / 2) * b - 1e10 * (1 - b)).softmax(-1) @ v


# ---- windows


@spelling(*SQUARE, Mask((B, 1, 1, M)))
def window_and_causal_mask_by_two_numbers(q, k, v, mask):
    """Each query sees itself, so that nobody sees how far the others are hidden."""
    scores = (q @ k.mT).masked_fill(torch.ones(M, M).triu(1).bool(), float("-inf"))
    return scores.masked_fill(torch.ones(M, M).tril(-3).bool(), -1e9).softmax(-1) @ (v * mask[..., 1:2])


@spelling(*HEADS_FIRST)
def softmax_by_a_reciprocal(q, k, v):
    weights = torch.exp(q @ k.mT)
    return (weights * weights.sum(-1, keepdim=True).reciprocal()) @ v


@spelling(*HEADS_FIRST)
def exponential_of_log_softmax(q, k, v):
    return F.log_softmax(q @ k.mT, dim=-1).exp() @ v


# ---- normalized after the product with the values


@spelling(*HEADS_LAST)
def normalized_late_with_heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.5
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    total = weights.sum(-1)
    return torch.einsum("bhij,bjhe->bihe", weights, v) / total.transpose(1, 2).unsqueeze(-1)


# ---- the log-sum-exp as well


@spelling(*HEADS_FIRST)
def logarithm_of_a_total(q, k, v):
    scores = torch.einsum("bhid,bhjd->bijh", q, k)
    weights = scores.exp()
    total = weights.sum(2)
    return torch.einsum("bijh,bhje->bihe", weights, v) / total[..., None], total.log()


@spelling(*HEADS_FIRST)
def reductions_whose_axes_are_put_back(q, k, v):
    scores = q @ k.mT
    weights = (scores - scores.max(-1)[0].unsqueeze(3).detach()).exp()
    return (weights / weights.sum(-1)[..., None]) @ v


@spelling(*HEADS_FIRST)
def a_copy_that_nobody_uses(q, k, v):
    scores = q @ k.mT
    before = scores.clone()
    weights = scores.softmax(-1)
    del before
    return weights @ v


@spelling((M, D), (N, D), (N, E))
def functions_for_two_axes(q, k, v):
    return F.linear(torch.inner(q, k).softmax(-1), v.mT)


@spelling(*HEADS_FIRST)
def vector_products(q, k, v):
    scores = torch.linalg.vecdot(q[..., None, :], k[..., None, :, :])
    return torch.linalg.vecdot(scores.softmax(-1)[..., None], v[..., None, :, :], dim=-2)


@spelling(*HEADS_FIRST, Mask((M, N)))
def the_least_distance(q, k, v, mask):
    return F.softmin((q @ k.mT).neg().masked_fill(~mask, float("inf")), dim=-1) @ v
