"""Attention as programs spell it."""

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
def einsum_with_an_ellipsis(q, k, v):
    return torch.einsum("...ij,...je->...ie", torch.einsum("...id,...jd->...ij", q, k).softmax(-1), v)


@spelling(*HEADS_FIRST)
def weights_of_keys_first(q, k, v):
    return (k @ q.mT / math.sqrt(D)).softmax(-2).mT @ v


@spelling(*HEADS_FIRST, (M, N))
def scores_taken_from_a_bias(q, k, v, bias):
    return (bias - q @ k.mT).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def scaled_keys_and_queries(q, k, v):
    return torch.softmax((q / 1.7) @ (k * 0.4).permute(0, 1, 3, 2), dim=-1) @ v


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


@spelling((2, M, H, D), (2, N, D), (2, N, E))
def queries_and_heads_in_one_axis(q, k, v):
    weights = torch.bmm(q.reshape(2, M * H, D), k.mT).softmax(-1)
    return torch.bmm(weights, v).view(2, M, H, E)
