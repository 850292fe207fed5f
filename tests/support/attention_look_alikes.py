"""Programs that look like attention, sums or blocks of it, and aren't, or need more of it than its result."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from attention_spellings import HEADS_FIRST, SQUARE, B, D, E, H, M, Mask, N, Spelling

LOOK_ALIKES: dict[str, tuple[Spelling, str]] = {}
"""With the reason for which they aren't fused; ``''`` where nothing is said of them."""


def look_alike(reason: str, *shapes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a function to those that aren't fused."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        LOOK_ALIKES[function.__name__] = Spelling(function, shapes), reason
        return function

    return add


@look_alike("unsupported option", *HEADS_FIRST[:2], (B, H, N, 1))
def values_of_one_feature(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


@look_alike("different loop order", *HEADS_FIRST)
def softmax_over_the_queries(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


@look_alike("unsupported option", *HEADS_FIRST, (H, 1, 1), (H, M, N))
def a_temperature_of_a_bias(q, k, v, temperature, bias):
    return ((q @ k.mT + bias) * temperature).softmax(-1) @ v


@look_alike("broadcast", (M, D), (B, H, N, D), (B, H, N, E), (B, 1, 1, 1))
def a_temperature_of_more_than_the_queries(q, k, v, temperature):
    return (torch.einsum("id,bhjd->bhij", q, k) * temperature).softmax(-1) @ v


@look_alike("different offset", *HEADS_FIRST, (H, 1, 1))
def a_key_in_place_of_the_sink(q, k, v, sinks):
    return torch.cat([sinks.expand(B, H, M, 1), q @ k.mT], -1).softmax(-1)[..., :-1] @ v


@look_alike("unsupported option", *HEADS_FIRST, (H, 1, 1))
def a_sink_beside_a_number(q, k, v, sinks):
    return torch.cat([q @ k.mT + 1.0, sinks.expand(B, H, M, 1)], -1).softmax(-1)[..., :-1] @ v


@look_alike("broadcast", *HEADS_FIRST, (M, 1))
def a_sink_of_each_query(q, k, v, sinks):
    return torch.cat([q @ k.mT, sinks.expand(B, H, M, 1)], -1).softmax(-1)[..., :-1] @ v


@look_alike("unsupported option", *HEADS_FIRST)
def rounded_scores(q, k, v):
    return torch.div(q @ k.mT, 0.5, rounding_mode="floor").softmax(-1) @ v


@look_alike("", *HEADS_FIRST)
def a_sum_of_other_exponentials(q, k, v):
    scores = q @ k.mT
    return (scores.exp() / (2 * scores).exp().sum(-1, keepdim=True)) @ v


@look_alike("different offset", *HEADS_FIRST)
def part_of_the_scores(q, k, v):
    return (q @ k.mT)[..., 1:].softmax(-1) @ v[..., 1:, :]


@look_alike("unsupported option", *HEADS_FIRST)
def a_negative_softcap(q, k, v):
    return (-2 * torch.tanh(q @ k.mT)).softmax(-1) @ v


@look_alike("unsupported option", *HEADS_FIRST, (B * H, M, N))
def a_bias_of_a_product_within_the_softcap(q, k, v, bias):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    return (2 * torch.tanh(torch.baddbmm(bias, q, k.mT))).softmax(-1) @ v


@look_alike("unsupported option", *HEADS_FIRST)
def stabilized_scores_within_the_softcap(q, k, v):
    scores = q @ k.mT
    return (2 * torch.tanh(scores - scores.amax(-1, keepdim=True))).softmax(-1) @ v


@look_alike("unsupported option", *SQUARE, Mask((B, 1, 1, M)))
def padding_that_hides_less_than_the_causal_mask(q, k, v, mask):
    """A query that sees keys of padding alone sees them still."""
    scores = (q @ k.mT).masked_fill(mask, -1e9)
    return scores.masked_fill(torch.ones(M, M).triu(1).bool(), float("-inf")).softmax(-1) @ v


@look_alike("unsupported option", *HEADS_FIRST, Mask((B, 1, M, N)))
def a_logarithm_of_large_numbers(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@look_alike("value used elsewhere", *SQUARE)
def a_logarithm_over_the_queries(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-2)


@look_alike("value used elsewhere", (M, D), (N, D), (N, E))
def a_logarithm_that_broadcasts(q, k, v):
    scores = q @ k.mT
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total, torch.log(total) + largest.squeeze(-1)


@look_alike("unsupported option", *SQUARE)
def a_gate_that_lets_little_through(q, k, v):
    gate = torch.ones(M, M).tril()
    return ((q @ k.mT) * gate - 3.0 * (1 - gate)).softmax(-1) @ v


@look_alike("dtype", *HEADS_FIRST)
def values_of_another_dtype(q, k, v):
    return (q @ k.mT).double().softmax(-1) @ v.double()


# ---- sums, factors of weights, blocks of keys


@look_alike("broadcast", *HEADS_FIRST)
def weights_of_one_head_more(q, k, v):
    return ((q @ k.mT).softmax(-1) - (q[:, :1] @ k[:, :1].mT).softmax(-1)) @ v


@look_alike("random numbers", *HEADS_FIRST)
def a_difference_that_is_dropped(q, k, v):
    weights = (q @ k.mT).softmax(-1) - 0.3 * (q @ k.mT * 2).softmax(-1)
    return F.dropout(weights, 0.3) @ v * 0 + q.sum()


BLOCKS = ((B, H, M, D), (B, H, M, D), (B, H, 4, D), (B, H, 3, D), (B, H, 7, E))


@look_alike("unsupported option", *BLOCKS)
def blocks_of_other_scales(q, other, k1, k2, v):
    return torch.cat([q @ k1.mT / 2, q @ k2.mT], -1).softmax(-1) @ v * 1 + other[..., :1]


@look_alike("unsupported option", *BLOCKS, (M, 4))
def a_bias_of_one_block(q, other, k1, k2, v, bias):
    return torch.cat([q @ k1.mT + bias, q @ k2.mT], -1).softmax(-1) @ v + other[..., :1]


@look_alike("different offset", (B, H, 2, D), (B, H, 3, D), (B, H, N, D), (B, H, N, E))
def queries_that_are_joined_in_the_scores(q1, q2, k, v):
    return torch.cat([q1 @ k.mT, q2 @ k.mT], -2).softmax(-1) @ v


@look_alike("unsupported option", *BLOCKS[:3], (B, H, M, 2), (B, H, 6, E))
def scores_beside_keys_that_are_no_products(q, other, k, scores, v):
    return torch.cat([scores, q @ k.mT], -1).softmax(-1) @ v + other[..., :1]


@look_alike("broadcast", (B, H, M, D), (H, 4, D), (B, H, 3, D), (B, H, 7, E))
def a_block_of_keys_for_all_of_the_batch(q, k1, k2, v):
    return torch.cat([q @ k1.mT, q @ k2.mT], -1).softmax(-1) @ v


@look_alike("not worth it", *HEADS_FIRST)
def one_softmax_in_two_terms(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    return (weights - weights / 2) @ v


@look_alike("not worth it", (B, H, M, 2, D), (B, H, N, 2, D), (B, H, N, 2 * D))
def a_difference_for_wide_values(q, k, v):
    """On a processor, the second product with the values takes longer than reading and writing scores."""
    one, other = torch.einsum("bhisd,bhjsd->sbhij", q, k).softmax(-1)
    return (one - other / 3) @ v


@look_alike("not worth it", (3, M, H, 96), (3, M, H, 96), (3, M, H, 96))
def rows_that_share_their_weights_for_many_features(q, k, v):
    weights = torch.einsum("rihd,rjhd->hij", q / 17, k).softmax(-1)
    return torch.einsum("hij,rjhd->rihd", weights, v)


@look_alike("different loop order", *HEADS_FIRST, (H, H))
def heads_that_are_mixed_after_the_softmax(q, k, v, mix):
    return torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), mix) @ v


@look_alike("different offset", *HEADS_FIRST)
def every_second_query(q, k, v):
    return (q @ k.mT).softmax(-1)[..., ::2, :] @ v


@look_alike("", *SQUARE)
def a_logarithm_put_back_at_another_axis(q, k, v):
    scores = q @ k.mT
    return (scores - scores.logsumexp(-1)[..., None, :]).exp() @ v


@look_alike("", *HEADS_FIRST)
def a_logarithm_without_gradients(q, k, v):
    scores = q @ k.mT
    return (scores - scores.logsumexp(-1).detach()[..., None]).exp() @ v
