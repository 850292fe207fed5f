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


@spelling(*HEADS_LAST)
def einsums_with_heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * D**-0.5
    return torch.einsum("bhij,bjhe->bihe", F.softmax(scores, dim=-1), v)


@spelling(*HEADS_FIRST)
def weights_of_keys_first(q, k, v):
    return (k @ q.mT / math.sqrt(D)).softmax(-2).mT @ v


@spelling(*HEADS_FIRST, (M, N))
def scores_taken_from_a_bias(q, k, v, bias):
    return (bias - q @ k.mT).softmax(-1) @ v


@spelling(*HEADS_FIRST, (B * H, M, N))
def baddbmm(q, k, v, bias):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return torch.baddbmm(bias, q, k.transpose(1, 2), beta=0.5, alpha=0.4).softmax(-1).bmm(v)


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
def product_and_sum(q, k, v):
    scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1)
    return (scores.softmax(-1).unsqueeze(-1) * v[:, :, None]).sum(dim=3)


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


@spelling(*HEADS_LAST, (M, N, H))
def bias_with_heads_last(q, k, v, bias):
    scores = torch.einsum("bihd,bjhd->bijh", q, k) + bias
    return torch.einsum("bijh,bjhe->bihe", scores.softmax(2), v)


@spelling(*SQUARE)
def causal_by_positions(q, k, v):
    n = q.shape[2]
    mask = torch.arange(n)[:, None] >= torch.arange(n)[None, :]
    return torch.where(mask, torch.einsum("bhid,bhjd->bhij", q, k), -1e9).softmax(-1) @ v


@spelling(*SQUARE)
def causal_by_filling_in_place(q, k, v):
    mask = torch.empty(B, M, M)
    mask.fill_(torch.finfo(torch.float32).min)
    mask.triu_(1)
    return (q @ k.mT + mask.unsqueeze(1)).softmax(-1) @ v


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


@spelling(*SQUARE, Mask((M, M)))
def where_of_filled_tensors(q, k, v, mask):
    scores = torch.where(~mask, torch.full((1, 1), -1e9), q @ k.mT)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def gate_of_a_mask(q, k, v, mask):
    """As GPT-2 had it first."""
    b = mask.to(q.dtype)
    return ((q @ k.mT / 2) * b - 1e10 * (1 - b)).softmax(-1) @ v


@spelling(*SQUARE)
def causal_gate(q, k, v):
    nd, ns = q.shape[-2], k.shape[-2]
    i, j = torch.arange(nd)[:, None], torch.arange(ns)
    b = (i >= j - ns + nd).to(q.dtype).view(1, 1, nd, ns)
    w = torch.matmul(q, k.transpose(-1, -2))
    return torch.matmul(torch.softmax(w * b + -1e4 * (1 - b), dim=-1), v)


# ---- windows


@spelling(*HEADS_FIRST)
def window_at_the_end_of_more_keys(q, k, v):
    rows, columns = torch.arange(M)[:, None] + N - M, torch.arange(N)[None, :]
    mask = (columns <= rows + 1) & (columns >= rows - 1)
    return torch.where(mask, q @ k.mT, -1e9).softmax(-1) @ v


@spelling(*SQUARE)
def window_that_hides_nothing(q, k, v):
    i = torch.arange(M)
    return (q @ k.mT).masked_fill((i[:, None] - i).abs() > M, float("-inf")).softmax(-1) @ v


@spelling(*SQUARE, Mask((B, 1, 1, M)))
def window_and_causal_mask_by_two_numbers(q, k, v, mask):
    """Each query sees itself, so that nobody sees how far the others are hidden."""
    scores = (q @ k.mT).masked_fill(torch.ones(M, M).triu(1).bool(), float("-inf"))
    return scores.masked_fill(torch.ones(M, M).tril(-3).bool(), -1e9).softmax(-1) @ (v * mask[..., 1:2])


@spelling(*SQUARE)
def causal_mask_beside_a_bias_of_positions(q, k, v):
    distance = (torch.arange(M)[:, None] - torch.arange(M)).to(q.dtype)
    return (q @ k.mT - 0.1 * distance + torch.full((M, M), -1e9).triu(1).type_as(q)).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def softmax_by_a_reciprocal(q, k, v):
    weights = torch.exp(q @ k.mT)
    return (weights * weights.sum(-1, keepdim=True).reciprocal()) @ v


@spelling(*HEADS_FIRST)
def exponential_of_log_softmax(q, k, v):
    return F.log_softmax(q @ k.mT, dim=-1).exp() @ v


@spelling(*HEADS_FIRST)
def scores_in_float64_and_back(q, k, v):
    scores = (q @ k.mT).double() / 2
    return scores.softmax(-1).to(q.dtype) @ v


# ---- normalized after the product with the values


@spelling(*HEADS_LAST)
def normalized_late_with_heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.5
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    total = weights.sum(-1)
    return torch.einsum("bhij,bjhe->bihe", weights, v) / total.transpose(1, 2).unsqueeze(-1)


# ---- the log-sum-exp as well


@spelling(*HEADS_FIRST)
def weights_by_a_logsumexp_that_is_returned(q, k, v):
    scores = q @ k.mT / 2
    lse = torch.logsumexp(scores, dim=-1, keepdim=True)
    return torch.exp(scores - lse) @ v, lse.squeeze(-1)


@spelling(*HEADS_FIRST)
def softmax_and_logsumexp(q, k, v):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    lse = scores.logsumexp(-1)
    return scores.softmax(-1) @ v, lse.transpose(1, 2) * 2


@spelling(*HEADS_FIRST)
def logarithm_of_a_total(q, k, v):
    scores = torch.einsum("bhid,bhjd->bijh", q, k)
    weights = scores.exp()
    total = weights.sum(2)
    return torch.einsum("bijh,bhje->bihe", weights, v) / total[..., None], total.log()


@spelling(*HEADS_FIRST, (H, M, N))
def logarithms_without_a_kept_axis(q, k, v, bias):
    scores = q @ k.mT + bias
    largest = scores.max(-1, keepdim=True).values
    weights = (scores - largest).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights / total) @ v, largest.squeeze(-1) + total.squeeze(-1).log()


@spelling(*HEADS_FIRST)
def a_logarithm_whose_axis_is_put_back(q, k, v):
    scores = q @ k.mT
    log = scores.logsumexp(-1)
    return (scores - log[..., None]).exp() @ v, log


@spelling(*HEADS_FIRST)
def reductions_whose_axes_are_put_back(q, k, v):
    scores = q @ k.mT
    weights = (scores - scores.max(-1)[0].unsqueeze(3).detach()).exp()
    return (weights / weights.sum(-1)[..., None]) @ v


@spelling(*HEADS_FIRST)
def arguments_named_as_in_numpy(q, k, v):
    scores = q @ k.mT
    weights = torch.exp(scores - torch.max(scores, axis=-1, keepdims=True)[0])
    return (weights / torch.sum(weights, axis=-1, keepdims=True)) @ v


@spelling(*HEADS_FIRST)
def a_copy_that_nobody_uses(q, k, v):
    scores = q @ k.mT
    before = scores.clone()
    weights = scores.softmax(-1)
    del before
    return weights @ v


@spelling(*HEADS_FIRST)
def distances(q, k, v):
    squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1)[..., None, :]
    return (-(squares - 2 * q @ k.mT) / 10).softmax(-1) @ v


@spelling((M, D), (N, D), (N, E))
def functions_for_two_axes(q, k, v):
    return F.linear(torch.inner(q, k).softmax(-1), v.mT)


@spelling((M, D), (N, D), (N, E), (N,))
def an_added_row(q, k, v, bias):
    return torch.mm(torch.addmm(bias, q, k.T, beta=2.0, alpha=0.5).softmax(-1), v)


@spelling(*HEADS_FIRST)
def vector_products(q, k, v):
    scores = torch.linalg.vecdot(q[..., None, :], k[..., None, :, :])
    return torch.linalg.vecdot(scores.softmax(-1)[..., None], v[..., None, :, :], dim=-2)


@spelling(*SQUARE, (M, M))
def a_bias_that_is_written_to_before(q, k, v, bias):
    bias = bias.sin()
    bias[:, 2:4] = -1.0
    return (q @ k.mT + bias).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def powers_of_two(q, k, v):
    scores = q @ k.mT / math.log(2)
    weights = torch.exp2(scores - scores.amax(-1, keepdim=True))
    return weights @ v / weights.sum(-1, keepdim=True)


@spelling(*HEADS_FIRST, Mask((M, N)))
def the_least_distance(q, k, v, mask):
    return F.softmin((q @ k.mT).neg().masked_fill(~mask, float("inf")), dim=-1) @ v


@spelling(*SQUARE, (M, M))
def shapes_of_the_scores(q, k, v, bias):
    scores = q @ k.mT
    mask = torch.ones_like(scores, dtype=torch.bool).tril()
    scores = scores + bias.flatten().view(M, M).expand_as(scores) + bias.reshape(-1, 1).reshape_as(scores[0, 0])
    return torch.where(mask, scores, torch.full_like(scores, float("-inf"))).softmax(-1) @ v
