"""Programs that look like sums of attentions, factors of their weights or blocks of their keys, and aren't."""

import torch
import torch.nn.functional as F
from attention_look_alikes import look_alike
from attention_spellings import HEADS_FIRST, SQUARE, B, D, E, H, M, Mask, N


@look_alike("unsupported option", *HEADS_FIRST, (N,))
def weights_that_are_scaled_by_keys(q, k, v, scale):
    return ((q @ k.mT).softmax(-1) * scale) @ v


@look_alike("", *SQUARE)
def weights_and_what_is_no_softmax(q, k, v):
    return ((q @ k.mT).softmax(-1) + torch.eye(M)) @ v


@look_alike("broadcast", *HEADS_FIRST)
def weights_of_one_head_more(q, k, v):
    return ((q @ k.mT).softmax(-1) - (q[:, :1] @ k[:, :1].mT).softmax(-1)) @ v


@look_alike("different loop order", *SQUARE)
def a_difference_of_softmaxes_over_other_axes(q, k, v):
    return ((q @ k.mT).softmax(-1) - (k @ q.mT).softmax(-2)) @ v


@look_alike("random numbers", *HEADS_FIRST)
def a_difference_that_is_dropped(q, k, v):
    weights = (q @ k.mT).softmax(-1) - 0.3 * (q @ k.mT * 2).softmax(-1)
    return F.dropout(weights, 0.3) @ v * 0 + q.sum()


@look_alike("value used elsewhere", *HEADS_FIRST)
def a_difference_one_part_of_which_is_used(q, k, v):
    one, other = (q @ k.mT).softmax(-1), (q @ k.mT.sin()).softmax(-1)
    return (one - other) @ v, other


@look_alike("value used elsewhere", (B, 2 * H, M, D), (B, 2 * H, N, D), (B, H, N, E))
def one_half_of_the_weights(q, k, v):
    one, other = (q @ k.mT).softmax(-1).chunk(2, 1)
    return (one - other) @ v, other.mean()


BLOCKS = ((B, H, M, D), (B, H, M, D), (B, H, 4, D), (B, H, 3, D), (B, H, 7, E))


@look_alike("unsupported option", *BLOCKS)
def blocks_of_other_queries(q, other, k1, k2, v):
    return torch.cat([q @ k1.mT, other @ k2.mT], -1).softmax(-1) @ v


@look_alike("unsupported option", *BLOCKS)
def blocks_of_other_scales(q, other, k1, k2, v):
    return torch.cat([q @ k1.mT / 2, q @ k2.mT], -1).softmax(-1) @ v * 1 + other[..., :1]


@look_alike("unsupported option", *BLOCKS, (M, 4))
def a_bias_of_one_block(q, other, k1, k2, v, bias):
    return torch.cat([q @ k1.mT + bias, q @ k2.mT], -1).softmax(-1) @ v + other[..., :1]


@look_alike("unsupported option", *BLOCKS, Mask((M, 4)))
def a_mask_of_one_block(q, other, k1, k2, v, mask):
    return torch.cat([(q @ k1.mT).masked_fill(~mask, -1e9), q @ k2.mT], -1).softmax(-1) @ v + other[..., :1]


@look_alike("different offset", (B, H, 2, D), (B, H, 3, D), (B, H, N, D), (B, H, N, E))
def queries_that_are_joined_in_the_scores(q1, q2, k, v):
    return torch.cat([q1 @ k.mT, q2 @ k.mT], -2).softmax(-1) @ v


@look_alike("value used elsewhere", *BLOCKS)
def scores_of_a_block_that_are_used(q, other, k1, k2, v):
    scores = q @ k1.mT
    return torch.cat([scores, q @ k2.mT], -1).softmax(-1) @ v + other[..., :1], scores


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


@look_alike("unsupported option", *SQUARE)
def a_difference_by_keys(q, k, v):
    return ((q @ k.mT).softmax(-1) - v[..., :1].mT * (q @ k.sin().mT).softmax(-1)) @ v


@look_alike("unsupported option", *HEADS_FIRST)
def weights_of_some_keys_that_are_zeroed(q, k, v):
    return (q @ k.mT).softmax(-1).masked_fill(torch.arange(N) < 3, 0.0) @ v


@look_alike("value used elsewhere", *HEADS_FIRST)
def the_largest_scores_of_a_row(q, k, v):
    scores = q @ k.mT
    least = scores.topk(3, -1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ v


@look_alike("", *HEADS_FIRST)
def the_largest_weights_of_a_row(q, k, v):
    weights = (q @ k.mT).softmax(-1)
    least = weights.topk(3, -1).values[..., -1:]
    return torch.where(weights >= least, weights, torch.zeros_like(weights)) @ v


@look_alike("", *SQUARE)
def linear_attention(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return (q @ (k.mT @ v)) / (q @ k.sum(-2, keepdim=True).mT)


@look_alike("", *SQUARE)
def softmaxes_of_queries_and_of_keys(q, k, v):
    """Efficient attention, which is linear in the number of keys."""
    return q.softmax(-1) @ (k.softmax(-2).mT @ v)


@look_alike("different loop order", *SQUARE)
def slots_that_compete(q, k, v):
    weights = (q @ k.mT).softmax(-2) + 1e-8
    return (weights / weights.sum(-1, keepdim=True)) @ v


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


@look_alike("different loop order", *HEADS_FIRST, (H, H))
def heads_that_a_layer_mixes(q, k, v, mix):
    weights = (q @ k.mT).softmax(-1).permute(0, 2, 3, 1)
    return F.linear(weights, mix).permute(0, 3, 1, 2) @ v


@look_alike("unsupported option", *HEADS_FIRST)
def a_product_of_two_softmaxes(q, k, v):
    return ((q @ k.mT).softmax(-1) * (q @ k.mT.sin()).softmax(-1)) @ v


@look_alike("different offset", *HEADS_FIRST)
def every_second_query(q, k, v):
    return (q @ k.mT).softmax(-1)[..., ::2, :] @ v


@look_alike("different offset", (B, H, M, D), (B, H, 4, D), (B, H, 2, E))
def half_of_the_weights_of_a_row(q, k, v):
    return (q @ k.mT).softmax(-1)[..., :2] @ v
