"""Whether an attention is right: its error, and that of its gradients, against float64, head by head.

The reference is plain attention and takes nothing of ours. Errors are relative to the size of the reference
in tiles of positions: with causality or a window some positions are far larger than others, and an error among the
small ones would drown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isnan, sqrt
from typing import Any

from einops_fast.profiles.attention.cases import AttentionCase

TILE = 64  # Positions that are compared together


@dataclass(frozen=True)
class Extras:
    """What a case needs beside its operands."""

    mask: Any = None  # `(batch, q_len, kv_len)`, True where a key is seen
    ends: Any = None  # where packed sequences begin, and the end of the last


def canonical(case: AttentionCase, array: Any) -> Any:
    """Return a view with the axes batch, heads, positions, features; a bias has no batch."""
    if array.ndim == 3 and "b" in case.layout:
        return array
    if "b" not in case.layout:
        return array.permute([case.layout.index(letter) for letter in "htd"]).unsqueeze(0)
    return array.permute([case.layout.index(letter) for letter in "bhsd"])


def seen(case: AttentionCase, q_len: int, kv_len: int, like: Any) -> Any:
    """Return which keys causality and window leave, ``(q_len, kv_len)``; ``None`` for all."""
    if not case.causal and case.window is None:
        return None
    ones = like.new_ones(1, dtype=bool).expand(q_len, kv_len)
    before, after = case.window or (kv_len, kv_len)
    return ones.tril(0 if case.causal else after).triu(-before)


def reference(case: AttentionCase, operands: Sequence[Any], cotangents: Sequence[Any], extras: Extras) -> list[Any]:
    """Return the result and, given its cotangent, gradients in float64, with the axes of :func:`canonical`."""
    from torch.autograd import grad

    backward = bool(cotangents)
    arrays = [canonical(case, each.detach()) for each in operands]
    double = arrays[0].new_zeros(0).double()
    found = [double.new_zeros((*arrays[0].shape[:3], case.v_head_dim))]
    if backward:
        [cotangent] = (canonical(case, each) for each in cotangents)
        found += [double.new_zeros(each.shape) for each in arrays]
    for at, heads, group, queries, keys in _pieces(case, len(arrays[0])):
        places = [(at, heads, queries), (at, group, keys), (at, group, keys), (heads, queries, keys)]
        piece = [each[place].double().requires_grad_(backward) for each, place in zip(arrays, places, strict=False)]
        mask = None if extras.mask is None else extras.mask[at]
        q, k, v = piece[:3]
        bias = piece[3] if case.bias else None
        out = attend(case, q, k, v, bias, (seen(case, q.shape[-2], k.shape[-2], q), mask))
        found[0][at, heads, queries] = out.detach()
        if backward:
            gradients = grad(out, piece, cotangent[at, heads, queries].double())
            for total, place, gradient in zip(found[1:], places, gradients, strict=False):
                total[place] += gradient
    return found


def _pieces(case: AttentionCase, batch: int) -> Iterator[tuple[int, slice, int, slice, slice]]:
    """Yield for each head of keys in each sequence where it lies."""
    share = case.heads // case.kv_heads
    starts = [sum(case.lengths[:at]) for at in range(len(case.lengths))]
    sequences = [slice(start, start + length) for start, length in zip(starts, case.lengths, strict=True)]
    for at in range(batch):
        for where in sequences or [slice(None)]:
            for group in range(case.kv_heads):
                yield at, slice(group * share, (group + 1) * share), group, where, where


def attend(case: AttentionCase, q: Any, k: Any, v: Any, bias: Any, masks: Sequence[Any]) -> Any:
    """Return plain attention of heads that share one of keys, whose arrays have no axis of heads.

    Each of the masks that isn't ``None`` is True where a key is seen.
    """
    from torch import einsum

    scores = einsum("...rid,...jd->...rij", q, k) * (1 / sqrt(case.head_dim))
    if case.softcap:
        scores = (scores / case.softcap).tanh() * case.softcap
    if bias is not None:
        scores = scores + bias
    for mask in masks:
        if mask is not None:
            scores = scores.masked_fill(~mask, -inf)
    return einsum("...rij,...je->...rie", scores.softmax(-1), v)


def largest_error(case: AttentionCase, results: Sequence[Any], references: Sequence[Any]) -> float:
    """Return the largest error of result and gradients in a tile, relative to the size of the reference there."""
    worst = 0.0
    for result, expected in zip(results, references, strict=True):
        array = canonical(case, result.detach())
        if array.shape != expected.shape:
            return inf
        worst = max(worst, _in_tiles(array.double() - expected, expected))
    return inf if isnan(worst) else worst


def _in_tiles(difference: Any, expected: Any) -> float:
    from torch.nn.functional import pad

    def sizes(array: Any) -> Any:
        squares = array.square().sum(-1)
        squares = pad(squares, (0, -squares.shape[-1] % TILE))
        return squares.reshape(*squares.shape[:-1], -1, TILE).sum(-1).sqrt()

    size = sizes(expected)
    # Where next to nothing is expected, an error of next to nothing is none.
    value = float((sizes(difference) / size.clamp_min(1e-3 * float(size.square().mean().sqrt()))).max())
    return inf if isnan(value) else value
