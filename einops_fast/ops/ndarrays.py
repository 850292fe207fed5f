"""The operators by the functions of a namespace like NumPy's: NumPy's own, CuPy's, MXNet's.

Sums of half precision are made in float32, as everywhere. MXNet records what is called, so there are gradients.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from einops_fast.dtypes import dtype_name
from einops_fast.errors import OperandError
from einops_fast.ops.axes import length, of_any_size


def functions(xp: Any) -> dict[str, Callable[..., Any]]:
    """Return the operators by name, for arrays of the namespace ``xp``: what gives a run of arrays and options."""
    return {
        "softmax": partial(_run_of, _softmax, 2, xp),
        "norm": partial(_run_of, _norm, 3, xp),
        "cross_entropy": partial(_run_of, _cross_entropy, 3, xp),
    }


def _run_of(function: Callable[..., Any], count: int, xp: Any, *arguments: Any) -> Callable[..., Any]:
    """Return what takes arrays, of which the arguments begin with so many, and computes a call."""
    return lambda *arrays: function(xp, *arrays, *arguments[count:])


def _wide(array: Any) -> Any:
    """In float32 at least; integers in float64."""
    kind = _name(array)
    if kind in ("float32", "float64"):
        return array
    return array.astype("float32" if kind in ("float16", "bfloat16") else "float64")


def _name(array: Any) -> str:
    return dtype_name(array.dtype)


def _result(found: Any, array: Any, dtype: str | None = None) -> Any:
    """In the dtype that was asked for, or the input's if that is floating-point."""
    wanted = dtype or (_name(array) if "float" in _name(array) else _name(found))
    return found if _name(found) == wanted else found.astype(wanted)


def _hidden(xp: Any, score: Any, seen: Any) -> Any:
    """``-inf`` where an element isn't seen."""
    if xp.__name__.startswith("mxnet"):
        # The gradient of its `where` is a product, and 0 * inf is NaN; and -inf added to NaN is NaN.
        strange = xp.logical_and(xp.logical_not(xp.isfinite(score)), xp.logical_not(seen))
        score = xp.where(strange, xp.zeros_like(score), score)
        return score + xp.log(seen.astype(score.dtype))
    return xp.where(seen, score, xp.asarray(float("-inf"), score.dtype))


def _constant(xp: Any, array: Any) -> Any:
    """Without a gradient, where there are any; MXNet's ``detach`` would leave what a hybridized block traces."""
    return sys.modules["mxnet"].npx.stop_gradient(array) if xp.__name__.startswith("mxnet") else array


def _spread(xp: Any, array: Any, axes: Collection[int], rank: int) -> Any:
    """The array, whose axes are these of ``rank``, with axes of length 1 in the place of the others."""
    for at in range(rank):
        array = array if at in axes else xp.expand_dims(array, at)
    return array


def _positions(xp: Any, array: Any, axis: int) -> Any:
    """Count along an axis, as an array that broadcasts with ``array``."""
    if xp.__name__.startswith("mxnet"):
        found = sys.modules["mxnet"].npx.arange_like(array, axis=axis).astype("int64")
    else:
        found = xp.arange(array.shape[axis])
    return _spread(xp, found, (axis,), array.ndim)


def _softmax(
    xp: Any, x: Any, mask: Any, dim: int, log: bool, queries: int | None, shift: int, scale: float, dtype: str | None
) -> Any:
    score = _wide(x)
    if not x.size and not of_any_size(x):
        return _result(score, x, dtype)
    if not x.shape[dim]:
        raise OperandError(
            f"MXNet traces the softmax of an input of shape {x.shape}, and has no largest element of none along axis "
            f"{dim}: call the block with elements first"
        )
    if scale != 1.0:
        score = score * scale
    seen = None
    if mask is not None:
        if _name(mask) in ("bool", "bool_"):
            seen = mask
        else:
            score = score + mask
    if queries is not None:
        last = _positions(xp, score, queries) + shift
        before = _positions(xp, score, dim) <= last
        seen = before if seen is None else xp.logical_and(before, seen)
    masked = mask is not None or queries is not None
    if seen is not None:
        score = _hidden(xp, score, seen)
    most = _constant(xp, score).max(axis=dim, keepdims=True)
    if masked:
        # In a row where nothing takes part, -inf less the lowest number remains -inf.
        most = xp.maximum(most, float(np.finfo(_name(score)).min))
    moved = score - most
    weights = xp.exp(moved)
    total = weights.sum(axis=dim, keepdims=True)
    if masked:
        total = xp.where(total == 0, xp.ones_like(total), total)
    return _result(moved - xp.log(total) if log else weights / total, x, dtype)


def _norm(xp: Any, x: Any, weight: Any, bias: Any, dim: int, count: int, eps: float | None, centred: bool) -> Any:
    h = _wide(x)
    axes = tuple(range(dim, dim + count))
    if centred:
        h = h - h.mean(axis=axes, keepdims=True)
    if eps is None:
        eps = float(np.finfo(np.float64 if _name(h) == "float64" else np.float32).eps)
    found = h / xp.sqrt((h * h).mean(axis=axes, keepdims=True) + eps)
    if weight is not None:
        found = found * _spread(xp, weight, axes, x.ndim)
    if bias is not None:
        found = found + _spread(xp, bias, axes, x.ndim)
    return _result(found, x)


def _cross_entropy(
    xp: Any, x: Any, target: Any, weight: Any, dim: int, ignore_index: int, smoothing: float, z_loss: float,
    reduction: str, inplace: bool,
) -> Any:  # fmt: skip
    if "float" in _name(target):
        raise OperandError("probabilities as targets are there for tensors of torch only")
    classes = length(x, dim, target.dtype)
    counts = target != ignore_index
    known = xp.logical_and(target >= 0, target < classes)
    if xp is np and not (known | ~counts).all():
        raise IndexError(f"target has class {target[counts & ~known][0]}, but there are {classes}, from 0 on")
    # What is in a row that doesn't count, were it NaN, must not matter.
    score = _wide(x)
    score = xp.where(xp.expand_dims(counts, dim), score, xp.zeros_like(score))
    number = xp.minimum(xp.maximum(target, 0), classes - 1)
    most = _constant(xp, score).max(axis=dim, keepdims=True)
    log = most + xp.log(xp.exp(score - most).sum(axis=dim, keepdims=True))
    lse = log.squeeze(dim)
    losses = lse - _picked(xp, score, number, dim)
    weights = counts.astype(score.dtype)
    less: Any = log - score if smoothing else None
    if weight is not None:
        weight = weight.astype(score.dtype)
        losses, weights = losses * weight[number], weights * weight[number]
        if smoothing:
            less = less * _spread(xp, weight, (dim,), x.ndim)
    if smoothing:
        losses = (1 - smoothing) * losses + smoothing * less.mean(axis=dim)
    if z_loss:
        losses = losses + z_loss * lse * lse
    # 0 / 0 is NaN where a target is no class, as by our kernels: to raise, one would have to wait for a GPU.
    fits = xp.logical_or(known, xp.logical_not(counts))
    losses = losses * xp.logical_and(counts, known) / fits.astype(score.dtype)
    if reduction == "none":
        return _result(losses, x)
    total = losses.sum()
    return _result(total if reduction == "sum" else total / weights.sum(), x)


def _picked(xp: Any, score: Any, number: Any, dim: int) -> Any:
    """The score of each row's class."""
    if xp.__name__.startswith("mxnet"):
        pick = import_module("mxnet").npx.pick
        if score.ndim == 1:  # it has no indices without axes
            return pick(score.reshape(1, -1), number.reshape(1), axis=1).reshape(())
        return pick(score, number, axis=dim)
    return xp.take_along_axis(score, xp.expand_dims(number, dim), dim).squeeze(dim)
