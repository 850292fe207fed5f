"""Tensors that one call takes twice, or that depend on each other: gradients that are kept for more are the same."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from attention_problems import whole_calls
from ops_problems import DEVICE, assert_near, leaf, randn, where

from einops_fast import attention, fast_einsum, ops

F = torch.nn.functional

TARGET = torch.arange(5, device=DEVICE)
HALF = torch.arange(30, device=DEVICE).view(5, 6) % 5 > 1


def _tied(x: Any, matrix: Any, vector: Any, reduction: str = "mean") -> Any:
    return ops.linear_cross_entropy(F.embedding(TARGET, matrix) * 2, matrix, TARGET.flip(0), vector, chunk=2,
                                    reduction=reduction).sum()  # fmt: skip


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, matrix, vector: ops.linear(
        ops.linear(x, matrix, vector, activation="gelu"), matrix, vector, activation="gelu"
    ),
    "layer_norm": lambda x, matrix, vector: ops.layer_norm(ops.layer_norm(x, weight=vector, bias=vector), bias=vector),
    "rms_norm": lambda x, matrix, vector: ops.rms_norm(ops.rms_norm(x, weight=vector), weight=vector),
    "rms_norm with a bias": lambda x, matrix, vector: ops.rms_norm(x, weight=vector, bias=vector),
    "residual": lambda x, matrix, vector: ops.dropout_add_layer_norm(x * vector, x.flip(0), vector, vector)[0],
    "bias_gelu": lambda x, matrix, vector: ops.bias_gelu(ops.bias_gelu(x, vector), vector),
    "softmax": lambda x, matrix, vector: ops.softmax(ops.softmax(x, mask=vector), mask=vector),
    "log_softmax": lambda x, matrix, vector: ops.log_softmax(x, mask=HALF, temperature=2.0).nan_to_num(neginf=0.0),
    "cross_entropy": lambda x, matrix, vector: ops.cross_entropy(ops.softmax(x + vector), TARGET),
    "cross_entropy, smoothed": lambda x, matrix, vector: ops.cross_entropy(
        x, TARGET, label_smoothing=0.1, z_loss=0.1, reduction="none"
    ),
    "linear_cross_entropy": _tied,
    "losses": lambda *tensors: _tied(*tensors, reduction="none"),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str, by_kernels: bool) -> None:
    tensors = [leaf(randn(5, 6)), leaf(randn(6, 6, seed=1)), leaf(randn(6, seed=2))]

    def function(*tensors: Any) -> Any:
        return FUNCTIONS[name](*tensors).pow(3).sum()

    with where(by_kernels):
        plain = torch.autograd.grad(function(*tensors), tensors, allow_unused=True)
        kept = torch.autograd.grad(function(*tensors), tensors, allow_unused=True, create_graph=True)
        used = [each for each, gradient in zip(tensors, plain, strict=True) if gradient is not None]

        def of_used(*given: Any) -> Any:
            these = iter(given)
            return function(*(next(these) if any(each is one for one in used) else each for each in tensors))

        assert torch.autograd.gradgradcheck(of_used, used, fast_mode=True)
    for first, again in zip(plain, kept, strict=True):
        assert (first is None) == (again is None)
        if first is not None:
            assert_near(again, first)


@pytest.mark.parametrize("by_kernels", [True, False])
def test_attention(by_kernels: bool) -> None:
    pattern = "b h i d, b h j d, b h j e -> b h i e"
    x = leaf(randn(1, 2, 5, 4))
    with whole_calls() if by_kernels else nullcontext():
        plain, kept = (
            torch.autograd.grad(attention(pattern, x, x * 2, x.sin()).square().sum(), x, create_graph=again)[0]
            for again in (False, True)
        )
    assert_near(kept, plain)


def test_einsum() -> None:
    x, matrix = leaf(randn(5, 6)), leaf(randn(6, 6, seed=1))
    plain, kept = (
        torch.autograd.grad(
            fast_einsum("ij,jk->ik", fast_einsum("ij,jk->ik", x, matrix), matrix).square().sum(),
            [x, matrix],
            create_graph=again,
        )
        for again in (False, True)
    )
    assert_near(kept, plain)
