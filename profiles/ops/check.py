"""Whether an operator is right: errors of its results and gradients against float64, some rows at a time.

The definitions are written out here and take nothing of ours. What dropout has dropped is read off the gradients: there
a dropped element has none. So with dropout, too, every element is compared; and how many were dropped is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isnan, pi, prod, sqrt
from typing import Any

from einops_fast.profiles.ops.cases import EPS, OpCase
from einops_fast.profiles.timing.accuracy import EPSILON
from einops_fast.profiles.ways import Inputs

__all__ = ["allowed_error", "dropout_wrong", "dropped_share", "errors", "model_errors", "relative_error"]

CHUNK = 1 << 24
"""Elements of the widest array that are compared at a time."""

PER_ROW = {"dropout_add_ln": 2, "dropout_add_layer_norm": 2}
"""How many operands have rows, if not one; they come first, and the others are parameters."""

Values = Sequence[Any]


def errors(case: OpCase, given: Inputs, results: Values, gradients: Values) -> tuple[float, float]:
    """The largest error of the results and of the gradients, relative to the size of what is expected around it.

    Args:
        case: what was computed.
        given: of what.
        results: of one call.
        gradients: of the operands, of the same call.
    """
    per_row = [place < PER_ROW.get(case.op, 1) for place in range(len(given.operands))]
    if any(found.shape != each.shape for found, each in zip(gradients, given.operands, strict=True)):
        return inf, inf
    arrays = [_rows(case, each) if rowwise else each for each, rowwise in zip(given.operands, per_row, strict=True)]
    found = [_rows(case, each) for each in results]
    found_gradients = [_rows(case, each) if rowwise else each for each, rowwise in zip(gradients, per_row, strict=True)]
    cotangents = [_rows(case, each) for each in given.cotangents]
    shared = [
        None if rowwise else array.detach().double().requires_grad_()
        for array, rowwise in zip(arrays, per_row, strict=True)
    ]
    sums = [None if each is None else each.detach() * 0 for each in shared]
    error = partial(relative_error, whole_rows=bool(case.heads))
    loss: Any = 0.0
    worst, worst_gradient = 0.0, 0.0
    count = len(arrays[0])
    step = max(1, CHUNK * count // max(prod(case.shape), case.rows * case.width))
    for start in range(0, count, step):
        part = slice(start, start + step)
        pieces = [
            array[part].detach().double().requires_grad_() if each is None else each
            for array, each in zip(arrays, shared, strict=True)
        ]
        extras = [target[part] for target in given.constants]
        if case.p:
            extras = [_kept(case, pieces, [each[part] for each in found], [each[part] for each in found_gradients[:2]])]
        outcome = DEFINITIONS[case.op](case, *pieces, *extras)
        expected = _gradients(outcome, pieces, [each[part].double() for each in cotangents])
        if given.constants:
            loss = loss + outcome[0].detach()
        else:
            for result, right in zip(found, outcome, strict=True):
                worst = _worse(worst, error(result[part], right.detach()))
        for place, gradient in enumerate(expected):
            if per_row[place]:
                worst_gradient = _worse(worst_gradient, error(found_gradients[place][part], gradient))
            else:
                sums[place] += gradient
    if given.constants:
        worst = relative_error(found[0].reshape(1), loss.reshape(1))
    for place, total in enumerate(sums):
        if total is not None:
            worst_gradient = _worse(worst_gradient, error(found_gradients[place], total))
    return worst, worst_gradient


def model_errors(
    results: Values, gradients: Values, expected: Values, expected_gradients: Values
) -> tuple[float, float]:
    """The same for a module: of each array as a whole, as errors pass through many layers."""
    sizes = [float(each.square().mean().sqrt()) for each in expected_gradients]
    # Softmax doesn't change with a bias of the keys: its gradient is a rounding error of 0.
    pairs = zip(gradients, expected_gradients, sizes, strict=True)
    kept = [(found, right) for found, right, size in pairs if size > 1e-9 * max(sizes)]
    worst = [_norm_error(found, right) for found, right in zip(results, expected, strict=True)]
    return max(worst), max(_norm_error(found, right) for found, right in kept)


def allowed_error(case: OpCase, dtype: str, native: float | None = None, *, gradient: bool = False) -> float:
    """The largest error that counts as right: three times that of torch's own functions, or what is plain.

    Results, steps between, and those of gradients again, are each rounded to the dtype, and sums are kept in float32 at
    best, which loses about ``sqrt(terms)`` roundings.

    Args:
        case: what is computed.
        dtype: of the operands.
        native: the error of torch's own functions; ``None`` if these are judged, which may round more often.
        gradient: of the gradients; those of parameters are sums over the rows.
    """
    terms = max(case.features, case.width, case.rows if gradient else 0)
    accumulator = min(EPSILON[dtype], EPSILON["float32"])
    plain = (8 if gradient else 4) * EPSILON[dtype] + 4 * accumulator * sqrt(terms)
    return max(plain, 3 * native) if native is not None else min(0.2, 4 * plain)


def dropped_share(case: OpCase, gradient: Any, other: Any) -> str:
    """What is wrong with how many elements were dropped; empty if nothing is.

    Args:
        case: what was computed.
        gradient: of the input, of which elements were dropped.
        other: of what was added to it. Where that is 0, too, it is so by itself, as the sum of two gradients may be.
    """
    counted = other != 0
    count = int(counted.sum())
    share = float((counted & (gradient == 0)).sum()) / max(count, 1)
    # Six standard deviations, and what 16 bits resolve.
    if abs(share - case.p) > 6 * sqrt(case.p * (1 - case.p) / count) + 2.0**-16:
        return f"wrong: {share:.4f} of all elements were dropped, not {case.p}"
    return ""


def dropout_wrong(first: Any, second: Any, expected: Any, *, linear: bool) -> str:
    """What is wrong with the results of two calls of a module with dropout; empty if nothing is.

    Args:
        first: a result.
        second: of the same call again.
        expected: the result without dropout.
        linear: it is what the others are on average.
    """
    if first.detach().equal(second.detach()):
        return "wrong: nothing was dropped, or the same twice"
    expected = expected.detach().double()
    share = float((first.detach().double() * expected).sum() / expected.square().sum())
    # Without 1 / (1 - p) it would be off by p.
    if linear and abs(share - 1) > 0.05:
        return f"wrong: with dropout the result is {share:.2f} of what it is without"
    return ""


def _rows(case: OpCase, array: Any) -> Any:
    """With the axis first along which pieces are independent: attention goes over positions."""
    if array.dim() < 2 or case.heads:
        return array
    return array.reshape(-1, array.shape[-1])


def _gradients(results: Values, pieces: Values, cotangents: Values) -> Sequence[Any]:
    from torch.autograd import grad

    found: Sequence[Any] = grad(results, pieces, cotangents or None)
    return found


def _worse(first: float, second: float) -> float:
    return inf if isnan(second) else max(first, second)


def relative_error(found: Any, expected: Any, *, whole_rows: bool = False) -> float:
    """The largest difference relative to what is expected there and, on average, in its row.

    Args:
        found: what was computed.
        expected: what is right.
        whole_rows: take the sizes of rows instead of elements: for attention, whose errors pass through products.
    """
    if found.shape != expected.shape:
        return inf
    if whole_rows and expected.dim() > 1:
        differences = (found.detach().double() - expected.detach()).norm(dim=-1)
        sizes = expected.detach().double().norm(dim=-1)
        value = float((differences / sizes.clamp_min(1e-3 * float(sizes.mean()))).max())
        return inf if isnan(value) else value
    size = expected.detach().double().abs()
    scale = size + size.mean(-1, keepdim=True)
    value = float(((found.detach().double() - expected.detach()).abs() / scale.clamp_min(1e-300)).max())
    return inf if isnan(value) else value


def _norm_error(found: Any, expected: Any) -> float:
    if found.shape != expected.shape:
        return inf
    value = float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())
    return inf if isnan(value) else value


def _kept(case: OpCase, pieces: Values, results: Values, gradients: Values) -> Any:
    """Which elements weren't dropped."""
    import torch

    kept = gradients[0] != 0
    unclear = (~kept & (gradients[1] == 0)).detach()
    if unclear.any():
        # A gradient may also be 0 by itself. Then the sum tells, or what it makes of the norm.
        x, residual, weight, _ = (each.detach() for each in pieces)
        change = x / (1 - case.p)
        if case.op == "dropout_add_layer_norm":
            moved = results[1].detach().double() - residual
        else:
            moved = results[0].detach().double() - DEFINITIONS[case.op](case, *pieces, kept)[0].detach()
            h = torch.where(kept, change, 0.0) + residual
            change = change / (h.var(-1, correction=0, keepdim=True) + EPS).sqrt() * weight
        kept |= unclear & (moved.abs() > change.abs() / 2)
    return kept


# By definition


def _softmax(case: OpCase, x: Any) -> Values:
    weights = (x - x.detach().amax(-1, keepdim=True)).exp()
    return (weights / weights.sum(-1, keepdim=True),)


def _log_softmax(case: OpCase, x: Any) -> Values:
    return (x - x.logsumexp(-1, keepdim=True),)


def _layer_norm(case: OpCase, x: Any, weight: Any, bias: Any) -> Values:
    centred = x - x.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias,)


def _rms_norm(case: OpCase, x: Any, weight: Any) -> Values:
    return (x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight,)


def _dropout_add_norm(case: OpCase, x: Any, residual: Any, weight: Any, bias: Any, kept: Any) -> Values:
    h = x * kept / (1 - case.p) + residual
    norm = _layer_norm(case, h, weight, bias)
    return (*norm, h) if case.op == "dropout_add_layer_norm" else norm


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + (x / sqrt(2)).erf())


def _cross_entropy(case: OpCase, x: Any, target: Any) -> Values:
    return ((x.logsumexp(-1) - x.gather(-1, target[:, None])[:, 0]).sum() / case.rows,)


def _linear(case: OpCase, x: Any, weight: Any, bias: Any) -> Values:
    activations: dict[str, Callable[[Any], Any]] = {
        "": lambda y: y,
        "gelu": _gelu,
        "gelu_tanh": lambda y: 0.5 * y * (1 + (sqrt(2 / pi) * (y + 0.044715 * y**3)).tanh()),
        "silu": lambda y: y / (1 + (-y).exp()),
        "squared_relu": lambda y: y.clamp_min(0).square(),
    }
    return (activations[case.activation](x @ weight.T + bias),)


def _attention(case: OpCase, x: Any, weight: Any, bias: Any) -> Values:
    batch, positions, features = x.shape
    q, k, v = (x @ weight.T + bias).reshape(batch, positions, 3, case.heads, -1).permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / sqrt(features // case.heads)
    [weights] = _softmax(case, scores)
    return ((weights @ v).transpose(1, 2).reshape(x.shape),)


DEFINITIONS: dict[str, Callable[..., Values]] = {
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "dropout_add_ln": _dropout_add_norm,
    "dropout_add_layer_norm": _dropout_add_norm,
    "bias_gelu": lambda case, x, bias: (_gelu(x + bias),),
    "cross_entropy": _cross_entropy,
    "linear_cross_entropy": lambda case, x, weight, target: _cross_entropy(case, x @ weight.T, target),
    "linear": _linear,
    "qkv_self_attn": _attention,
}
