"""What the kernels for long rows are checked with, whichever way they go through these."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from ops_problems import assert_near, kernels, leaf, randn

from einops_fast import ops

torch: Any = pytest.importorskip("torch")


def apart(x: Any) -> Any:
    """The same with rows apart, and two axes that count them."""
    return x.new_full((x.shape[0], x.shape[1] + 1, x.shape[2] + 16), torch.nan)[:, :-1, :-16].copy_(x)


def native_norm(rms: bool, x: Any, weight: Any = None, bias: Any = None) -> Any:
    """By torch's functions, in the type of ``x``."""
    weight, bias = (None if each is None else each.to(x.dtype) for each in (weight, bias))
    if not rms:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)
    found = torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5)
    return found if bias is None else found + bias


def check_softmax(name: str, columns: int, dtype: str) -> None:
    """A softmax or its logarithm, and the gradient."""
    native = partial(getattr(torch, name), dim=-1)
    x = leaf(apart(randn(2, 4, columns, dtype=dtype) * 3))
    back = randn(2, 4, columns, dtype=dtype, seed=7)
    with kernels():
        found = getattr(ops, name)(x)
        (gradient,) = torch.autograd.grad(found, x, back)
    exact = leaf(x.double())
    expected = native(exact)
    by_torch = native(x)
    assert_near(found, expected, by_torch)
    (native_gradient,) = torch.autograd.grad(by_torch, x, back)
    assert_near(gradient, torch.autograd.grad(expected, exact, back.double())[0], native_gradient, 3.0)


def check_special_values(name: str, columns: int) -> None:
    """The same of NaN, infinities and large numbers, and of a whole part of a row that adds nothing."""
    x = randn(8, columns, dtype="float32")
    inf = torch.inf
    x[0, 3], x[1, columns - 56], x[2], x[3, :256], x[4, 0], x[5], x[6, 5] = (
        torch.nan,
        inf,
        -inf,
        -inf,
        -inf,
        -3.4e38,
        -inf,
    )
    x[4, 1:] = 3e38
    with kernels():
        found = getattr(ops, name)(x)
    torch.testing.assert_close(found, getattr(torch, name)(x, -1), equal_nan=True)


def check_hidden_gradient(columns: int) -> None:
    """The mask is read by another kernel, and shows in the result."""
    x, hidden = leaf(randn(5, columns, dtype="float32")), randn(5, columns, seed=3) > 1
    back = randn(5, columns, dtype="float32", seed=7)
    with kernels():
        (found,) = torch.autograd.grad(ops.log_softmax(x, mask=~hidden, temperature=0.7), x, back)
    exact = leaf(x.double())
    expected = torch.log_softmax((exact / 0.7).masked_fill(hidden, -torch.inf), -1)
    (expected,) = torch.autograd.grad(expected, exact, back.double().masked_fill(hidden, 0.0))
    assert_near(found, expected)
