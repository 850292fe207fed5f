"""Masks, biases and windows of attention as programs spell them."""

import torch
from attention_spellings import HEADS_FIRST, HEADS_LAST, SQUARE, B, H, M, Mask, N, spelling


@spelling(*HEADS_FIRST, Mask((B, N)))
def mask_of_keys_with_new_axes(q, k, v, mask):
    scores = torch.einsum("bhid,bhjd->bhij", q, k)
    scores = scores.masked_fill(mask[:, None, None, :] == 0, -1e9)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((M, N)))
def where(q, k, v, mask):
    scores = torch.where(mask, q @ k.mT, torch.finfo(q.dtype).min)
    return scores.softmax(-1) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def mask_of_scores_and_weights(q, k, v, mask):
    scores = (q @ k.mT).masked_fill(~mask, -1e9)
    return scores.softmax(-1).masked_fill(mask.logical_not(), 0.0) @ v


@spelling(*HEADS_FIRST, Mask((B, 1, M, N)))
def mask_in_place(q, k, v, mask):
    scores = q @ k.mT
    scores.masked_fill_(~mask, float("-inf"))
    return scores.softmax(-1) @ v


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


@spelling(*SQUARE)
def causal_by_a_transposed_triangle(q, k, v):
    mask = (torch.triu(torch.ones(M, M)) == 1).transpose(0, 1)
    mask = mask.float().masked_fill(mask == 0, float("-inf")).masked_fill(mask == 1, 0.0)
    return (q @ k.mT + mask).softmax(-1) @ v


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


@spelling(*SQUARE)
def causal_gate_of_ones(q, k, v):
    b = torch.tril(torch.ones(M, M))[None, None, :M, :M]
    return ((1.0 - b) * -1e10 + b * (q @ k.mT)).softmax(-1) @ v


# ---- windows


@spelling(*SQUARE)
def window_as_what_is_added(q, k, v):
    far = torch.full((M, M), float("-inf"))
    mask = far.triu(1) + far.tril(-3)
    return (q @ k.mT + mask).softmax(-1) @ v


@spelling(*SQUARE)
def window_after_a_causal_mask(q, k, v):
    scores = (q @ k.mT).masked_fill(torch.ones(M, M).triu(1).bool(), -1e9)
    far = torch.ones(M, M).tril(-2) == 1
    return scores.masked_fill(far, -1e9).softmax(-1) @ v


@spelling(*HEADS_FIRST)
def window_at_the_end_of_more_keys(q, k, v):
    rows, columns = torch.arange(M)[:, None] + N - M, torch.arange(N)[None, :]
    mask = (columns <= rows + 1) & (columns >= rows - 1)
    return torch.where(mask, q @ k.mT, -1e9).softmax(-1) @ v


@spelling(*HEADS_LAST)
def window_over_transposed_scores(q, k, v):
    i, j = torch.arange(M)[None, :], torch.arange(N)[:, None]
    scores = torch.einsum("bihd,bjhd->bhji", q, k).masked_fill(i - j > 2, float("-inf"))
    return torch.einsum("bhji,bjhe->bihe", scores.softmax(2), v)


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


@spelling(*SQUARE, (M, M))
def shapes_of_the_scores(q, k, v, bias):
    scores = q @ k.mT
    mask = torch.ones_like(scores, dtype=torch.bool).tril()
    scores = scores + bias.flatten().view(M, M).expand_as(scores) + bias.reshape(-1, 1).reshape_as(scores[0, 0])
    return torch.where(mask, scores, torch.full_like(scores, float("-inf"))).softmax(-1) @ v
