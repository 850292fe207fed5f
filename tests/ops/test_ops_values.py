"""Values of GELU, and NaN and infinity through a sum and a norm, or through an epilogue."""

from typing import Any

import pytest
import torch
from finished_steps import finished, finished_step
from fused_steps import ON
from ops_problems import DEVICE, check, kernels, leaf, native_norm, randn

from einops_fast import ops
from einops_fast.backends.torch.ops.activation import activation_by_torch
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.ops.activation import ACTIVATIONS

inf, nan = torch.inf, torch.nan


@pytest.mark.parametrize("rms", [False, True])
def test_nan_and_infinity_through_sum_and_norm(rms: bool) -> None:
    x, residual = randn(6, 20, dtype="float32"), randn(6, 20, dtype="float32", seed=1)
    x[0, 1], x[1, 2], residual[2, 3], residual[3, 4], x[4, 5], residual[4, 5] = nan, inf, inf, nan, inf, -inf
    weight = randn(20, dtype="float32", seed=2)
    with kernels():
        found, summed = ops.dropout_add_layer_norm(x, residual, weight, rms=rms)
    torch.testing.assert_close(summed, x + residual, equal_nan=True)
    square = (x + residual) * (x + residual)
    # Written out: torch has two of RMS norm, of which one makes the whole row NaN.
    expected = (x + residual) * (square.mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    expected = expected if rms else native_norm(False, x + residual, weight)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_values_of_gelu(approximate: str, by_kernels: bool) -> None:
    """By their definitions, written out."""
    x, bias = leaf(randn(5, 37) * 2), leaf(randn(37, seed=1))

    def native(x: Any, bias: Any) -> Any:
        x = x + bias
        if approximate == "none":
            return x * (1 + torch.erf(x * 0.5**0.5)) / 2
        return x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))

    def function(x: Any, bias: Any) -> Any:
        return ops.bias_gelu(x, bias, approximate=approximate)

    check(function, native, [x, bias], by_kernels)
    other = ops.bias_gelu(x, bias, approximate={"none": "tanh", "tanh": "none"}[approximate])
    assert 1e-5 < float((other - function(x, bias)).abs().max()) < 1e-3


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity_through_an_epilogue(activation: str, dtype: str) -> None:
    x = torch.ones(9, 20, device=DEVICE)
    x[:, 0] = torch.tensor([nan, inf, -inf, 0.0, -0.0, 2.0, -2.0, 6e4, -6e4])
    weight, bias = torch.zeros(17, 20, device=DEVICE), torch.zeros(17, device=DEVICE)
    weight[:, 0] = 1
    tensors = [each.to(getattr(torch, dtype)) for each in (x, weight, bias)]
    way = kernel_candidates(finished_step(tensors, activation, True), dtype, ON)[0]
    found, before = finished(way, tensors, True)
    expected = torch.nn.functional.linear(*[each.double() for each in tensors])
    torch.testing.assert_close(before, expected.to(before.dtype), equal_nan=True)
    expected = activation_by_torch(expected, None, activation)
    if activation == "gelu":
        expected[1] = inf  # on some CPUs it is NaN
    torch.testing.assert_close(found, expected.to(found.dtype), equal_nan=True)
