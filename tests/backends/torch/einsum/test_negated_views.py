"""Views that stand for the negative of what is in memory, as ``z.conj().imag`` is: kernels have to get the values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attention_problems import attention, tiles
from ops_problems import kernels, leaf, randn

from einops_fast import ops
from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention.call import triton_attention


def negated(values: Any) -> Any:
    """The same values as such a view."""
    found = torch.complex(values, -values).conj().imag
    assert found.is_neg()
    return found


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, weight, bias: ops.softmax(x),
    "layer_norm": lambda x, weight, bias: ops.layer_norm(x, weight=weight, bias=bias),
    "sum": lambda x, weight, bias: ops.dropout_add_layer_norm(x, x * 2, weight, bias)[0],
    "activation": lambda x, weight, bias: ops.bias_gelu(x, bias),
    "linear": lambda x, weight, bias: ops.linear(x, weight[:, None] * bias, bias, activation="gelu"),
    "cross_entropy": lambda x, weight, bias: ops.cross_entropy(
        x, torch.arange(4, device=x.device), weight.detach().abs(), reduction="none"
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str) -> None:
    values = [randn(4, 6), randn(6, seed=1), randn(6, seed=2)]
    found: list[list[Any]] = []
    for same in (leaf, lambda each: leaf(negated(each))):
        x, weight, bias = (same(each) for each in values)
        with kernels():
            result = FUNCTIONS[name](x, weight, bias)
            back = same(randn(*result.shape, seed=3)).detach()
            found.append([result.detach(), *torch.autograd.grad(result, x, back)])
    for plain, of_view in zip(*found, strict=True):
        torch.testing.assert_close(of_view, plain)


def test_attention() -> None:
    spec, inputs = attention((2,), 5, 7, 8, dtype="float64", gradients=True)
    back = randn(2, 5, 8, seed=3)
    found: list[list[Any]] = []
    with tiles():
        for same in (leaf, lambda each: leaf(negated(each))):
            given = AttentionInputs(*map(same, (inputs.q, inputs.k, inputs.v)))
            result, logs = triton_attention(spec, given)
            wanted = torch.autograd.grad(result, [given.q, given.k, given.v], same(back).detach())
            found.append([result.detach(), logs.detach(), *wanted])
    for plain, of_view in zip(*found, strict=True):
        torch.testing.assert_close(of_view, plain)
