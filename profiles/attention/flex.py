"""torch's FlexAttention as its users call it: what a case asks for as modifiers, and a mask of blocks made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from einops_fast.profiles.attention.cases import AttentionCase
from einops_fast.profiles.attention.check import Extras, canonical
from einops_fast.profiles.frameworks import Unavailable

__all__ = ["flex_way"]


def flex_way(case: AttentionCase, given: Extras, torch: Any, backward: bool) -> Callable[..., Any]:
    """Return what computes the case, with the axes of :func:`canonical`; its first call compiles.

    Raises:
        Unavailable: the gradient of a bias is wanted, which it adds up atomically in the dtype of the bias.
    """
    if backward and case.bias:
        raise Unavailable("FlexAttention adds up the gradient of a bias atomically, in the dtype of the bias")
    from torch.nn.attention.flex_attention import flex_attention

    def flex(*arguments: Any, **options: Any) -> Any:
        return flex_attention(*arguments, **options)

    # The compiler counts how often it compiles a piece of code, and gives up at some time: each case has its own.
    flex.__code__ = flex.__code__.replace()
    compiled = torch.compile(flex, fullgraph=True, dynamic=False)
    blocks: list[Any] = []

    def call(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        q, k, v = (canonical(case, each) for each in (q, k, v))
        if not blocks:
            blocks.append(_block_mask(case, given, torch, q))
        scores = _score_modifier(case, torch, bias)
        grouped = case.heads != case.kv_heads
        return compiled(q, k, v, score_mod=scores, block_mask=blocks[0], enable_gqa=grouped)

    return call


def _score_modifier(case: AttentionCase, torch: Any, bias: Any) -> Callable[..., Any] | None:
    """Return what changes a score: softcap and bias; ``None`` if there are neither."""
    softcap = case.softcap
    if not softcap and bias is None:
        return None

    def modify(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        return score if bias is None else score + bias[h, i, j]

    return modify


def _block_mask(case: AttentionCase, given: Extras, torch: Any, q: Any) -> Any:
    """Return which blocks of keys are seen, by causality, window, mask and packed sequences; ``None`` for all."""
    from torch.nn.attention.flex_attention import create_block_mask

    if not case.causal and case.window is None and given.mask is None and given.ends is None:
        return None
    before, after = case.window or (case.kv_len, case.kv_len)
    after = 0 if case.causal else after
    mask, sequence = given.mask, None
    if given.ends is not None:
        # Self-attention: queries and keys of a sequence lie at the same positions.
        sequence = torch.searchsorted(
            given.ends[1:].contiguous(), torch.arange(case.q_len, device=q.device), right=True
        )

    def seen(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = (i - j <= before) & (j - i <= after)
        if mask is not None:
            found = found & mask[b, i, j]
        return found if sequence is None else found & (sequence[i] == sequence[j])

    batch = None if mask is None else case.batch
    return create_block_mask(seen, batch, None, case.q_len, case.kv_len, str(q.device))
