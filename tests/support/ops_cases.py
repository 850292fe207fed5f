"""The operators along rows as cases: a call of ours, and the same by definition or by torch's functions."""

from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
from ops_problems import Function, cross_entropy, laid_out, native_norm, randn

from einops_fast import ops

F = torch.nn.functional


class Case(NamedTuple):
    """A call of rows and what it ``takes`` beside them: ``m``, a square matrix, and ``v``, vectors as long as a row."""

    operator: str  # torch's name of ours
    ours: Function
    native: Function  # in the dtype of the tensors
    takes: str = ""


def tensors_of(takes: str, *shape: int, dtype: str = "float64", layout: str = "contiguous", dim: int = -1) -> list[Any]:
    """Return rows of this layout along an axis, and what else a case ``takes``."""
    sizes = {"m": (shape[dim],) * 2, "v": (shape[dim],)}
    others = [randn(*sizes[each], dtype=dtype, seed=at) for at, each in enumerate(takes, 1)]
    return [laid_out(randn(*shape, dtype=dtype), layout), *others]


def first_result(function: Function) -> Function:
    """Return what gives the first result of a function, if it has several."""

    def run(*tensors: Any) -> Any:
        found = function(*tensors)
        return found[0] if isinstance(found, tuple) else found

    return run


def classes(x: Any) -> Any:
    """Return the number of a class for each row; each fifth one doesn't count."""
    row = torch.arange(prod(x.shape[:-1]), device=x.device)
    return torch.where(row % 5 == 4, -100, row * 7 % x.shape[-1]).view(x.shape[:-1])


def _causal(x: Any) -> Any:
    seen = torch.ones(x.shape[-2:], dtype=torch.bool, device=x.device).tril()
    return torch.softmax(x.masked_fill(~seen, -torch.inf), -1)


def _sum(x: Any, w: Any, b: Any) -> Any:
    summed = x + x.sin()
    return native_norm(False, summed, w, b), summed


ALONG: dict[str, Case] = {
    "softmax": Case("softmax", ops.softmax, partial(torch.softmax, dim=-1)),
    "log_softmax": Case("softmax", ops.log_softmax, partial(torch.log_softmax, dim=-1)),
    "layer_norm": Case(
        "norm",
        lambda x, w, b, dim=-1: ops.layer_norm(x, weight=w, bias=b, dim=dim),
        lambda x, w, b: native_norm(False, x, w, b),
        "vv",
    ),
    "rms_norm": Case(
        "norm",
        lambda x, w, dim=-1: ops.rms_norm(x, weight=w, eps=1e-5, dim=dim),
        lambda x, w: native_norm(True, x, w),
        "v",
    ),
    "sum": Case("norm", lambda x, w, b, dim=-1: ops.dropout_add_layer_norm(x, x.sin(), w, b, dim=dim), _sum, "vv"),
    "cross_entropy": Case(
        "cross_entropy",
        lambda x, dim=-1: ops.cross_entropy(x, classes(x.movedim(dim, -1)), label_smoothing=0.1, dim=dim),
        lambda x: cross_entropy(x, classes(x), label_smoothing=0.1),
    ),
}
"""Cases that take ``dim``."""

ROWS: dict[str, Case] = {
    **ALONG,
    "causal": Case("softmax", lambda x: ops.softmax(x, causal=True), _causal),
    "bias_gelu": Case("bias_activation", ops.bias_gelu, lambda x, b: F.gelu(x + b), "v"),
}
"""Cases whose kernels work along rows."""

CASES: dict[str, Case] = {
    **ROWS,
    "linear": Case(
        "linear", lambda x, m, b: ops.linear(x, m, b, activation="gelu"), lambda *each: F.gelu(F.linear(*each)), "mv"
    ),
    "linear_cross_entropy": Case(
        "linear_cross_entropy",
        lambda x, m, b: ops.linear_cross_entropy(x, m, classes(x), b, chunk=4),
        lambda x, m, b: cross_entropy(F.linear(x, m, b), classes(x)),
        "mv",
    ),
    "losses": Case(
        "linear_cross_entropy",
        lambda x, m, b: ops.linear_cross_entropy(x, m, classes(x), b, reduction="none", chunk=4),
        lambda x, m, b: cross_entropy(F.linear(x, m, b), classes(x), reduction="none"),
        "mv",
    ),
}
