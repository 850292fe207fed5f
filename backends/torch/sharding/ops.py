"""Row operators on DTensors: what they reduce is whole on each rank, and ranks share the other axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from string import ascii_lowercase
from typing import Any

import torch
import torch.nn.functional as F
from torch.distributed.tensor import Replicate

from einops_fast.backends.torch.operator import result_dtype
from einops_fast.backends.torch.ops.cross_entropy import RowLoss
from einops_fast.backends.torch.ops.fused import FUNCTIONS as OF_PARTS
from einops_fast.backends.torch.sharding.local import locally, share
from einops_fast.backends.torch.sharding.placing import ANY, Placing, place, sizes_of
from einops_fast.ops.dispatch import computed
from einops_fast.runtime.tiers import Run

_RESULT = "Z"
"""The label of the features that a linear layer makes."""


def _softmax(x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, *numbers: Any) -> Run:
    labels = ascii_lowercase[: x.ndim]

    def options(placing: Placing) -> tuple[Any, ...]:
        # Positions are counted in the whole array.
        first = 0 if queries is None else share(placing.mesh, placing.sharing(labels[queries]), x.shape[queries])[0]
        return dim, log, queries, shift + first, *numbers

    terms = labels, _last(labels, mask)
    return lambda *arrays: _shared("softmax", options, arrays, "input mask", terms, (labels,), labels[dim])


def _norm(x: Any, weight: Any, bias: Any, dim: int, count: int, *numbers: Any) -> Run:
    labels, options = ascii_lowercase[: x.ndim], (dim, count, *numbers)
    rows = labels[dim : dim + count]
    return lambda *arrays: _shared("norm", options, arrays, "input weight bias", (labels, rows, rows), (labels,), rows)


def _dropout_add_norm(x: Any, residual: Any, weight: Any, bias: Any, dim: int, p: float, *numbers: Any) -> Run:
    labels, options = ascii_lowercase[: x.ndim], (dim, 0.0, *numbers)
    terms, names = (labels, _last(labels, residual), labels[dim], labels[dim]), "input residual weight bias"

    def run(x: Any, *others: Any) -> Any:
        arrays = F.dropout(x, p) if p else x, *others  # as torch drops elements of DTensors
        return _shared("dropout_add_norm", options, arrays, names, terms, (labels, labels), labels[dim])

    return run


def _bias_activation(x: Any, bias: Any, activation: str, p: float) -> Run:
    labels, options = ascii_lowercase[: x.ndim], (activation, 0.0)

    def run(x: Any, bias: Any) -> Any:
        found = _shared("bias_activation", options, (x, bias), "input bias", (labels, labels[-1]), (labels,))
        return F.dropout(found, p) if p else found

    return run


def _linear(x: Any, weight: Any, bias: Any, activation: str) -> Run:
    labels = ascii_lowercase[: x.ndim]
    summed, output = labels[-1], labels[:-1] + _RESULT
    terms = labels, _RESULT + summed, _RESULT

    def run(x: Any, weight: Any, bias: Any) -> Any:
        placing = place((x, weight), terms[:2], output, labels + _RESULT, ("input", "weight"), linear=True)
        if not any(label in ("", summed) for label in placing.labels):
            arrays = x, weight, bias
            return _shared("linear", (activation,), arrays, "input weight bias", terms, (output,), summed)
        # Imported here because fast_einsum is made of backends.
        from einops_fast.einsum import fast_einsum

        found = fast_einsum(f"{labels},{terms[1]}->{output}", x, weight)  # a sum that is pending
        plain = bias is None and activation == "none"
        return found if plain else _bias_activation(found, bias, activation, 0.0)(found, bias)

    return run


def _cross_entropy(x: Any, target: Any, weight: Any, dim: int, *numbers: Any) -> Run:
    *of_loss, reduction, _ = numbers  # gradients aren't written over what other calls may have, too
    labels = ascii_lowercase[: x.ndim]
    rows = labels.replace(labels[dim], "")
    terms = labels, labels if target.is_floating_point() else rows, ANY

    def options(asked: str) -> tuple[Any, ...]:
        return dim, *of_loss, asked, False

    names = "input target weight"
    return lambda *arrays: _loss("cross_entropy", options, arrays, names, terms, rows, numbers[0], reduction)


def _linear_cross_entropy(x: Any, matrix: Any, target: Any, bias: Any, weight: Any, *numbers: Any) -> Run:
    *of_loss, reduction, chunk = numbers
    rows = ascii_lowercase[: target.ndim]
    terms, names = (rows + ANY, ANY * 2, rows, ANY, ANY), "input linear_weight target bias weight"

    def options(asked: str) -> tuple[Any, ...]:
        return *of_loss, asked, chunk

    return lambda *arrays: _loss("linear_cross_entropy", options, arrays, names, terms, rows, numbers[0], reduction)


FUNCTIONS: dict[str, Callable[..., Run]] = {
    "bias_activation": _bias_activation,
    "linear": _linear,
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": _linear_cross_entropy,
    "softmax": _softmax,
    "norm": _norm,
    "dropout_add_norm": _dropout_add_norm,
}
"""By name: each takes arrays and options as that of plain tensors does, and returns what computes such arrays."""


def _last(labels: str, array: Any) -> str:
    """Return the labels of an array that is broadcast to one with these."""
    return "" if array is None else labels[len(labels) - array.ndim :]


def _shared(
    function: str | Callable[..., Any], options: Any, arrays: Sequence[Any], names: str, terms: Sequence[str],
    outputs: Sequence[str], whole: str = "",
) -> Any:  # fmt: skip
    """Return what ranks make of their parts of the arrays that aren't ``None``.

    Args:
        function: takes parts, or the name of the function for plain tensors.
        options: of that, or a function of the placing that returns them.
        arrays, names, terms: each array, what it is called, and its labels.
        outputs: labels of the results.
        whole: labels that ranks don't share.
    """
    given = [each for each in zip(arrays, terms, names.split(), strict=True) if each[0] is not None]
    there, terms, called = zip(*given, strict=True)
    sizes = sizes_of(terms, [array.shape for array in there])
    placing = place(there, terms, outputs[0], sizes.keys() - {ANY, *whole}, called)
    asked = options(placing) if callable(options) else options

    def of_rank(*parts: Any) -> Any:
        remaining = iter(parts)
        every = tuple([None if array is None else next(remaining) for array in arrays])
        return function(*every) if callable(function) else computed(OF_PARTS[function], every, *asked)

    return locally(of_rank, there, placing, [(output, [sizes[label] for label in output]) for output in outputs])


def _loss(
    name: str, options: Callable[[str], tuple[Any, ...]], arrays: Sequence[Any], names: str, terms: Sequence[str],
    rows: str, ignore_index: int, reduction: str,
) -> Any:  # fmt: skip
    """Return the losses of rows, or their sum or mean, which each rank gets."""
    at, whole = names.split().index("target"), "".join(set(terms[0]) - set(rows))
    target = arrays[at]
    if reduction == "none":
        return _shared(name, options("none"), arrays, names, terms, (rows,), whole)
    outputs = ("",) if reduction == "sum" or target.is_floating_point() else ("", "")

    def of_rank(*parts: Any) -> Any:
        if reduction == "mean" and parts[0].dtype == torch.float16:  # whose numbers may be less than the sum
            total = computed(OF_PARTS[name], parts, *options("none")).sum(dtype=torch.float32)
        else:
            total = computed(OF_PARTS[name], parts, *options("sum"))
        exact = torch.float64 if total.dtype == torch.float64 else torch.float32
        loss = RowLoss(parts[-1], ignore_index, 0.0, 0.0)
        return total if len(outputs) == 1 else (total, loss.divisor(parts[at], exact))

    found = _shared(of_rank, (), arrays, names, terms, outputs, whole)
    total, *counts = [
        each.redistribute(placements=[Replicate()] * each.device_mesh.ndim)
        for each in (found if isinstance(found, tuple) else (found,))
    ]
    if reduction == "sum":
        return total
    sizes = dict(zip(terms[at], target.shape, strict=True))
    count = counts[0] if counts else prod([sizes[label] for label in rows])
    return (total / count).to(result_dtype(arrays[0]))
