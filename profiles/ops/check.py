"""Whether an operator is right: errors of its results and gradients against float64, some rows at a time.

Nothing here is ours: torch's own functions compute the reference. What dropout has dropped is read off the gradients:
there a dropped element has none. So with dropout, too, every element is compared; and how many were dropped is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, isnan, prod, sqrt
from typing import Any

from einops_fast.profiles.ops.cases import EPS, OpCase
from einops_fast.profiles.ops.ways import NATIVES
from einops_fast.profiles.timing.accuracy import rounded
from einops_fast.profiles.ways import Inputs

CHUNK = 1 << 24  # Elements of the widest array that are compared at a time

# How many operands have rows, if not one; they come first, and the others are parameters.
PER_ROW = {"dropout_add_ln": 2, "dropout_add_layer_norm": 2}

Values = Sequence[Any]


def errors(case: OpCase, given: Inputs, results: Values, gradients: Values) -> tuple[float, float]:
    """Return the largest error of results and of gradients, relative to the size of what is expected around it."""
    from torch.autograd import grad

    operands = given.operands
    if any(found.shape != each.shape for found, each in zip(gradients, operands, strict=True)):
        return inf, inf
    by_row = PER_ROW.get(case.op, 1)
    rows, row_gradients, found, cotangents = (
        [_rows(case, each) for each in arrays]
        for arrays in (operands[:by_row], gradients[:by_row], results, given.cotangents)
    )
    shared = [each.detach().double().requires_grad_() for each in operands[by_row:]]
    sums = [each.detach() * 0 for each in shared]
    error = partial(relative_error, whole_rows=bool(case.heads))
    loss: Any = 0.0
    values, slopes = [0.0], [0.0]
    count = len(rows[0])
    step = max(1, CHUNK * count // max(prod(case.shape), case.rows * case.width))
    for start in range(0, count, step):
        part = slice(start, start + step)
        pieces = [*(each[part].detach().double().requires_grad_() for each in rows), *shared]
        extras = [target[part] for target in given.constants]
        if case.p:
            extras = [_kept(case, pieces, [each[part] for each in found], [each[part] for each in row_gradients])]
        outcome = _expected(case, pieces, extras)
        expected = grad(outcome, pieces, [each[part].double() for each in cotangents] or None)
        if given.constants:
            loss = loss + outcome[0].detach()
        else:
            values += [error(result[part], right) for result, right in zip(found, outcome, strict=True)]
        slopes += [error(each[part], right) for each, right in zip(row_gradients, expected[:by_row], strict=True)]
        sums = [total + gradient for total, gradient in zip(sums, expected[by_row:], strict=True)]
    if given.constants:
        values = [error(found[0].reshape(1), loss.reshape(1))]
    slopes += [error(gradient, total) for gradient, total in zip(gradients[by_row:], sums, strict=True)]
    return max(values), max(slopes)


def allowed_error(case: OpCase, dtype: str, native: float | None = None, *, gradient: bool = False) -> float:
    """Return the largest error that counts as right: three times that of torch's own functions, or what is plain.

    Gradients of parameters are sums over the rows. Where ``native`` isn't known, torch's own functions are judged,
    which may round more often.
    """
    plain = rounded(dtype, max(case.features, case.width, case.rows if gradient else 0), 8 if gradient else 4)
    return max(plain, 3 * native) if native is not None else min(0.2, 4 * plain)


def dropped_share(case: OpCase, gradient: Any, other: Any) -> str:
    """Return what is wrong with how many elements were dropped, by the gradient of the input; empty if nothing is.

    Where that of what was added (``other``) is 0, too, it is so by itself, as the sum of two gradients may be.
    """
    counted = other != 0
    count = int(counted.sum())
    share = float((counted & (gradient == 0)).sum()) / max(count, 1)
    # Six standard deviations, and what 16 bits resolve.
    if abs(share - case.p) > 6 * sqrt(case.p * (1 - case.p) / count) + 2.0**-16:
        return f"wrong: {share:.4f} of all elements were dropped, not {case.p}"
    return ""


def _rows(case: OpCase, array: Any) -> Any:
    """With the axis first along which pieces are independent: attention goes over positions."""
    if array.dim() < 2 or case.heads:
        return array
    return array.reshape(-1, array.shape[-1])


def relative_error(found: Any, expected: Any, *, whole_rows: bool = False) -> float:
    """Return the largest difference relative to what is expected there and, on average, in its row.

    For attention, whose errors pass through products, ``whole_rows`` are compared instead of elements.
    """
    if found.shape != expected.shape:
        return inf
    expected = expected.detach().double()
    difference = found.detach().double() - expected
    if whole_rows and expected.dim() > 1:
        sizes = expected.norm(dim=-1)
        worst = float((difference.norm(dim=-1) / sizes.clamp_min(1e-3 * float(sizes.mean()))).max())
    else:
        scale = expected.abs() + expected.abs().mean(-1, keepdim=True)
        worst = float((difference.abs() / scale.clamp_min(1e-300)).max())
    return inf if isnan(worst) else worst


def _kept(case: OpCase, pieces: Values, results: Values, gradients: Values) -> Any:
    """Return which elements weren't dropped."""
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
            moved = results[0].detach().double() - _expected(case, pieces, [kept])[0].detach()
            h = torch.where(kept, change, 0.0) + residual
            change = change / (h.var(-1, correction=0, keepdim=True) + EPS).sqrt() * weight
        kept |= unclear & (moved.abs() > change.abs() / 2)
    return kept


# In float64


def _expected(case: OpCase, pieces: Values, extras: Values) -> tuple[Any, ...]:
    """Return the results of some rows: dropout as its definition has it, all else by torch's own functions."""
    from torch.nn import functional

    if case.p:
        x, residual, weight, bias = pieces
        h = x * extras[0] / (1 - case.p) + residual
        norm = functional.layer_norm(h, (case.features,), weight, bias, EPS)
        return (norm, h) if case.op == "dropout_add_layer_norm" else (norm,)
    results = NATIVES[case.op](case, functional)(*pieces, *extras)
    # A loss is the mean over all rows.
    return (results * (len(pieces[0]) / case.rows) if extras else results,)
