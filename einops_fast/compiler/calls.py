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
        drowned: whether to leave the scores out, and what all keys share of the bias, in rows whose scores large
            negative biases round away. Gradients made of weights ``exp(score - lse)`` would be wrong: so is ``lse``
            rounded.
        dtype: of the result.
    """
    terms, _, output = pattern.partition(" -> ")
    of_q, of_k, of_v = [term.split() for term in terms.split(", ")]
    order, keys = output.split(), sequence[1]
    if drowned:
        of_bias = axes[1].split()
        own = [axis for axis in of_bias if axis != keys]
        highest = bias.detach().amax(of_bias.index(keys), keepdim=True)
        alone = (highest <= ABSORBS) & (highest > -torch.inf)
        bias = bias - torch.where(alone, highest, 0.0)  # lies in memory as it did, and so do its gradients
        shared, alone = [each.squeeze(of_bias.index(keys)) for each in (highest, alone)]
        of_q = [axis for axis in own if axis not in of_q] + of_q
        q = torch.where(_spread(alone, own, of_q), 0.0, q)
        pattern = ", ".join([" ".join(of_q), *terms.split(", ")[1:]]) + f" -> {output}"
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
    # The axis of features is the one that only the values and the result have.
    features = next(axis for axis in reversed(of_v) if axis not in of_q and axis not in of_k)
    if empty:
        nobody = torch.isneginf(lse).unsqueeze(order.index(features))
        instead: Any = torch.nan
        if empty == "mean":
            left = [axis for axis in of_v if axis != keys]
            instead = _spread(v.mean(of_v.index(keys)), left, order).to(result.dtype)
        result = torch.where(nobody, instead, result)
    if drowned and return_lse:
        rows = [axis for axis in order if axis != features]
        lse = lse + _spread(torch.where(alone, shared, 0.0), own, rows)
    return (result.to(dtype), lse) if return_lse else result.to(dtype)


def _spread(tensor: Any, axes: list[str], order: list[str]) -> Any:
    """Return a tensor of these axes as it is broadcast to one of others, in another order."""
    tensor = tensor.permute([axes.index(axis) for axis in order if axis in axes])
    for at, axis in enumerate(order):
        if axis not in axes:
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
