"""Operands of several dtypes, and autocast: the same by kernels and by torch's functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ops_cases import CASES, tensors_of
from ops_problems import DEVICE, assert_near, gradients, leaf, native_norm, randn, where

from einops_fast import attention, fast_einsum, ops, scaled_dot_product_attention

TARGET = torch.arange(4, device=DEVICE)

HALF, WIDE = torch.bfloat16, torch.float32

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, vector: ops.softmax(x, mask=vector),
    "layer_norm": lambda x, vector: ops.layer_norm(x, weight=vector, bias=vector),
    "layer_norm with a bias": lambda x, vector: ops.layer_norm(x, bias=vector),
    "rms_norm": lambda x, vector: ops.rms_norm(x, weight=vector),
    "rms_norm with a bias": lambda x, vector: ops.rms_norm(x, bias=vector),
    "bias_gelu": ops.bias_gelu,
    "smelu": lambda x, vector: ops.dropout_bias_activation(x, vector, "smelu"),
    "cross_entropy": lambda x, vector: ops.cross_entropy(x, TARGET, weight=vector.detach().abs()),
    "z_loss": lambda x, vector: ops.cross_entropy(x, TARGET, weight=vector.detach().abs(), z_loss=0.1),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("dtypes", [(HALF, WIDE), (torch.float16, WIDE), (WIDE, HALF), (torch.float64, WIDE)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectors_of_another_dtype(name: str, dtypes: tuple[Any, Any], by_kernels: bool) -> None:
    x, vector = (leaf(each.to(dtype)) for each, dtype in zip((randn(4, 9), randn(9, seed=1)), dtypes, strict=True))
    exact = [leaf(each.double()) for each in (x, vector)]
    with where(by_kernels):
        found = FUNCTIONS[name](x, vector)
        (gradient,) = torch.autograd.grad(found.sum(), x)
    assert found.dtype == gradient.dtype == x.dtype
    expected = FUNCTIONS[name](*exact)
    assert_near(found, expected, expected.to(x.dtype))
    wanted = torch.autograd.grad(expected.sum(), exact[0])[0]
    assert_near(gradient, wanted, wanted.to(x.dtype), 4.0)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("rms", [True, False])
@pytest.mark.parametrize(("half", "wide"), [(HALF, WIDE), (torch.float16, WIDE), (torch.float16, torch.float64)])
def test_wider_residual(half: Any, wide: Any, rms: bool, by_kernels: bool) -> None:
    """The sum is as wide as that; so is the gradient that goes there.

    Triton's interpreter can't convert float64 to bfloat16.
    """
    x, weight, bias = (leaf(randn(*shape, seed=at).to(half)) for at, shape in enumerate(((7, 33), (33,), (33,))))
    tensors = [x, leaf(randn(7, 33, seed=3).to(wide)), weight, bias]
    exact = [leaf(each.double()) for each in tensors]
    with where(by_kernels):
        results = ops.dropout_add_layer_norm(*tensors, rms=rms)
        backs = [randn(7, 33, seed=at).to(each.dtype) for at, each in enumerate(results, 4)]
        found = [*results, *torch.autograd.grad(results, tensors, backs)]
    assert [each.dtype for each in found] == [half, wide, half, wide, half, half]
    summed = exact[0] + exact[1]
    right = [native_norm(rms, summed, *exact[2:]), summed]
    right += torch.autograd.grad(right, exact, [each.double() for each in backs])
    right = [each.detach() for each in right]
    for got, wanted in zip(found, right, strict=True):
        scale = 1 / max(float(wanted.abs().max()), 1.0)
        assert_near((got.double() * scale).to(got.dtype), wanted * scale, wanted * scale + 1e-6)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_autocast(name: str, dtype: str, by_kernels: bool) -> None:
    """Results are as wide as torch's on a GPU, gradients as their tensors, and errors no larger than torch's."""
    case = CASES[name]
    tensors = [leaf(each) for each in tensors_of(case.takes, 6, 8, dtype=dtype)]
    with torch.autocast(DEVICE, HALF):
        native = gradients(case.native, tensors)
        with where(by_kernels):
            found = gradients(case.ours, tensors)
    assert found[0].dtype == {"bias_gelu": tensors[0].dtype, "linear": HALF}.get(name, WIDE)
    assert [each.dtype for each in found[-len(tensors) :]] == [each.dtype for each in tensors]
    exact = gradients(case.native, [leaf(each.double()) for each in tensors], rounded=dtype)
    for got, wanted, theirs in zip(found, exact, native, strict=True):
        assert_near(got, wanted, theirs.to(got.dtype), 4.0)


@pytest.mark.parametrize("by_kernels", [True, False])
def test_bias_of_another_dtype(by_kernels: bool) -> None:
    """Of a layer with a loss, as of the layer alone."""
    x, matrix, bias = randn(4, 9).float(), randn(5, 9, seed=1).float(), leaf(randn(5, seed=2))
    with where(by_kernels):
        loss = ops.linear_cross_entropy(x, matrix, TARGET, bias)
        (gradient,) = torch.autograd.grad(loss, bias)
    assert (loss.dtype, gradient.dtype) == (WIDE, torch.float64)
    expected = ops.linear_cross_entropy(x.double(), matrix.double(), TARGET, bias)
    assert_near(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, bias)[0], rtol=1e-5, atol=1e-6)
    assert ops.softmax(x, dtype=float).dtype == torch.float64  # as torch and NumPy understand it


@pytest.mark.parametrize("by_kernels", [True, False])
def test_all_dropped(by_kernels: bool) -> None:
    x = torch.tensor([[torch.nan, torch.inf, -torch.inf, 1.0]], device=DEVICE)
    with where(by_kernels):
        found = ops.dropout_bias_activation(x, p=1.0)
        _, summed = ops.dropout_add_layer_norm(x, torch.ones_like(x), p=1.0)
        finite = leaf(torch.ones(2, 3, device=DEVICE))
        assert not torch.autograd.grad(ops.dropout_bias_activation(finite, p=1.0).sum(), finite)[0].any()
    assert not found.any()
    assert torch.equal(summed, torch.ones_like(x))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_arrays_of_the_other_byte_order(dtype: str) -> None:
    """They are worked on as those of the machine's own, which the result has."""

    def calls(x: Any, mask: Any, target: Any) -> list[Any]:
        return [
            ops.softmax(x, mask=mask),
            ops.log_softmax(x, causal=True),
            ops.layer_norm(x, weight=x[0], bias=x[1]),
            ops.rms_norm(x),
            ops.cross_entropy(x, target, weight=abs(x[0])),
            attention("i d, j d, j e -> i e", x, x, x, bias=mask),
            scaled_dot_product_attention(x, x, x, attn_mask=mask),
            fast_einsum("i j, k j -> i k", x, x),
        ]

    values, other = randn(6, 6).cpu().double().numpy().astype(dtype), np.dtype(dtype).newbyteorder()
    target = np.arange(6)
    expected = calls(values, values, target)
    for at, found in enumerate(calls(values.astype(other), values.astype(other), target.astype(">i8"))):
        assert found.dtype == expected[at].dtype
        np.testing.assert_array_equal(found, expected[at])
