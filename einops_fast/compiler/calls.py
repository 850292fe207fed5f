"""The calls that are put into a graph."""

from __future__ import annotations

from typing import Any

import torch

from einops_fast.attention import attention

__all__ = ["call_attention"]


def call_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    bias: Any,
    pattern: str,
    sequence: tuple[str, str],
    axes: tuple[str, str],
    causal: str | bool,
    numbers: tuple[float, float, float],
    empty: str,
    dtype: torch.dtype,
) -> Any:
    """Call attention as a program spells it. There is a parameter for each argument that a graph's node may have.

    Args:
        q, k, v: the operands.
        mask, bias: tensors, or ``None``.
        pattern: of the operands and the result, a letter for each axis.
        sequence: the letters of queries and keys.
        axes: those of mask and bias.
        causal: as in :func:`einops_fast.attention`.
        numbers: scale, softcap and the probability that a weight is dropped.
        empty: what rows without a key hold: ``'nan'``, ``'mean'`` of all values, or ``''`` where there is none.
        dtype: of the result.
    """
    scale, softcap, dropout_p = numbers
    result = attention(
        pattern,
        q,
        k,
        v,
        mask=None if mask is None else (axes[0], mask),
        bias=None if bias is None else (axes[1], bias),
        causal=causal,
        scale=scale,
        softcap=softcap,
        dropout_p=dropout_p,
        sequence=sequence,
        return_lse=bool(empty),
    )
    if not empty:
        return result.to(dtype)
    result, lse = result
    terms, _, output = pattern.partition(" -> ")
    of_q, of_k, of_v = [term.split() for term in terms.split(", ")]
    order = output.split()
    # The axis of features is the one that only the values and the result have.
    features = next(axis for axis in reversed(of_v) if axis not in of_q and axis not in of_k)
    nobody = (lse == -torch.inf).unsqueeze(order.index(features))
    if empty == "nan":
        return result.masked_fill(nobody, torch.nan).to(dtype)
    mean = v.mean(of_v.index(sequence[1]))
    left = [axis for axis in of_v if axis != sequence[1]]
    mean = mean.permute([left.index(axis) for axis in order if axis in left])
    for at, axis in enumerate(order):
        if axis not in left:
            mean = mean.unsqueeze(at)
    return torch.where(nobody, mean.to(result.dtype), result).to(dtype)
