"""The softmax between two contractions as programs spell it, normalized early or late, with its log-sum-exp or not."""

import math

import torch
import torch.nn.functional as F
from attention_spellings import HEADS_FIRST, HEADS_LAST, SQUARE, B, D, E, H, M, Mask, N, spelling


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


@spelling(*HEADS_FIRST)
def normalized_late_without_max(q, k, v):
    weights = torch.exp(q @ k.mT / 2)
    total = weights.sum(dim=-1)
    return (weights @ v) / total[..., None]


@spelling(*HEADS_LAST)
def normalized_late_with_heads_last(q, k, v):
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 0.5
    weights = torch.exp(scores - scores.max(dim=-1, keepdim=True)[0])
    total = weights.sum(-1)
    return torch.einsum("bhij,bjhe->bihe", weights, v) / total.transpose(1, 2).unsqueeze(-1)


@spelling(*HEADS_FIRST)
def normalized_late_by_a_reciprocal(q, k, v):
    weights = torch.exp(q @ k.mT)
    return (weights @ v) * (1.0 / weights.sum(-1, keepdim=True))


@spelling(*HEADS_FIRST, Mask((B, 1, 1, N)))
def normalized_late_with_a_mask(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, float("-inf"))
    weights = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    return torch.einsum("bhje,bhij->bihe", v, weights) / weights.sum(-1).mT[..., None]


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


@spelling(*SQUARE)
def parts_of_a_long_row(q, k, v):
    """As where a row is worked out in parts, which are joined later."""
    mask = torch.ones(M, M, dtype=torch.bool).tril()
    scores = (q @ k.mT).masked_fill(~mask, float("-inf"))
    largest = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)
    return (weights @ v) / total, largest + torch.log(total)


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
def regularized_by_the_logsumexp(q, k, v):
    scores = 4.0 * torch.tanh(q @ k.mT / 4.0)
    return scores.softmax(-1) @ v + scores.logsumexp(-1, keepdim=True).square() * 1e-2


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
