"""The calls that are put into a graph."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from einops_fast.attention.arguments import read_call
from einops_fast.attention.attend import attend, attend_traced
from einops_fast.attention.options import Options
from einops_fast.backends.torch.types import is_traced

ABSORBS = -1e9
"""A number beside which scores and biases are rounded away."""


def call_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    bias: Any,
    sinks: Any,
    pattern: str,
    sequence: tuple[str, str],
    axes: tuple[str, str, str],
    causal: str | bool,
    window: tuple[int | None, int | None] | None,
    alignment: str | None,
    numbers: tuple[float | None, float, float],
    empty: str,
    drowned: bool,
    return_lse: bool,
    dtype: torch.dtype,
) -> Any:
    """Call attention as a program spells it. There is a parameter for each argument that a graph's node may have.

    Args:
        pattern, sequence, axes: letters of the operands and the result, of queries and keys, of mask, bias and sinks.
        causal, window, alignment, return_lse: as in :func:`einops_fast.attention`.
        numbers: scale, softcap and the probability that a weight is dropped.
        empty: what rows without a key hold: ``'nan'``, ``'mean'`` of all values, or ``''`` where there is none.
        drowned: whether to take the mean of all values by itself in rows whose scores one large negative bias rounds
            away. Gradients made of weights ``exp(score - lse)`` would be wrong: so is ``lse`` rounded.
        dtype: of the result.
    """
    scale, softcap, dropout_p = numbers
    options = Options(causal, alignment, window, softcap, scale, dropout_p, bool(empty) or return_lse)
    more = {name: None if array is None else (letters, array) for name, letters, array in
            zip(("mask", "bias", "sinks"), axes, (mask, bias, sinks), strict=True)}  # fmt: skip
    request, arrays = read_call((pattern, q, k, v), None, sequence, options, more)
    # While another compiler looks at the graph, tensors have no values, and nothing may be chosen by measurement.
    result: Any = (attend_traced if is_traced() else attend)(request, arrays)
    lse: Any = None
    if options.return_lse:
        result, lse = result
    terms, _, output = pattern.partition(" -> ")
    of_q, of_k, of_v = [term.split() for term in terms.split(", ")]
    order = output.split()
    if empty:
        # The axis of features is the one that only the values and the result have.
        features = next(axis for axis in reversed(of_v) if axis not in of_q and axis not in of_k)
        nobody = torch.isneginf(lse).unsqueeze(order.index(features))
        result = result.masked_fill(nobody, torch.nan) if empty == "nan" else result
    if drowned or empty == "mean":
        mean = _without(sequence[1], v.mean(of_v.index(sequence[1])), of_v, order).to(result.dtype)
        result = torch.where(nobody, mean, result) if empty == "mean" else result
    if drowned:
        lowest, highest = bias.detach().aminmax(dim=axes[1].split().index(sequence[1]))
        alike = (lowest == highest) & (highest <= ABSORBS) & (lowest > -torch.inf)
        result = torch.where(_without(sequence[1], alike, axes[1].split(), order), mean, result)
    return (result.to(dtype), lse) if return_lse else result.to(dtype)


def _without(removed: str, tensor: Any, axes: list[str], order: list[str]) -> Any:
    """Return a tensor of these axes but one that was removed, as it is broadcast to a result in another order."""
    left = [axis for axis in axes if axis != removed]
    tensor = tensor.permute([left.index(axis) for axis in order if axis in left])
    for at, axis in enumerate(order):
        if axis not in left:
            tensor = tensor.unsqueeze(at)
    return tensor


def call_linear_cross_entropy(
    x: Any,
    matrix: Any,
    target: Any,
    bias: Any,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    dtype: torch.dtype,
) -> Any:
    """Call cross entropy of a linear layer as one operator, which makes gradients in the forward pass.

    There is a parameter for each argument that a graph's node may have; they are those of
    :func:`einops_fast.ops.linear_cross_entropy`, and the dtype of the result.
    """
    module = import_module("einops_fast.backends.torch.ops.linear_cross_entropy")
    loss = module.RowLoss(weight, ignore_index, label_smoothing, 0.0)
    found = module.losses_in_one((x.flatten(0, -2), matrix, bias), target.reshape(-1), loss, reduction).to(dtype)
    return found.view_as(target) if reduction == "none" else found
