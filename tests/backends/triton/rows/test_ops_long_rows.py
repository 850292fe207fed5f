"""Rows of a million elements and three, which nothing divides: by every operator that works along rows, both ways."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from ops_problems import DEVICE, assert_near, cross_entropy, gradients, kernels, leaf, native_norm, randn

from einops_fast import ops
from einops_fast.backends.triton.rows.cross_entropy import plan as cross_entropy_plan
from einops_fast.backends.triton.rows.rows import RowTiling
from einops_fast.backends.triton.rows.softmax import plan as softmax_plan
from einops_fast.runtime.plan_cache import clear_plans

COLUMNS = 1_000_003

TARGET = torch.tensor([COLUMNS - 1, 5], device=DEVICE)

CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "softmax": (ops.softmax, partial(torch.softmax, dim=-1), 0),
    "log_softmax": (ops.log_softmax, partial(torch.log_softmax, dim=-1), 0),
    "layer_norm": (lambda x, w, b: ops.layer_norm(x, weight=w, bias=b), partial(native_norm, False), 2),
    "rms_norm": (lambda x, w: ops.rms_norm(x, weight=w, eps=1e-5), partial(native_norm, True), 1),
    "cross_entropy": (
        lambda x: ops.cross_entropy(x, TARGET, label_smoothing=0.1),
        lambda x: cross_entropy(x, TARGET, label_smoothing=0.1),
        0,
    ),
}

WIDE: dict[Any, tuple[str, ...]] = {
    softmax_plan: ("row_tilings",),
    cross_entropy_plan: ("loss_tilings",),
}


@pytest.fixture(params=["wide", pytest.param("chosen", marks=pytest.mark.gpu)])
def tiles(request: pytest.FixtureRequest) -> Iterator[None]:
    """As they are chosen; Triton's interpreter takes a few wide ones, as it is slow by the instruction."""
    clear_plans()
    with ExitStack() as patches:
        if request.param == "wide":
            if DEVICE == "cuda":
                pytest.skip("tiles that no GPU has registers for")
            wide = [RowTiling(1, 1 << 18, False)]
            for plan, names in WIDE.items():
                for name in names:
                    patches.enter_context(mock.patch.object(plan, name, return_value=wide))
        yield
    clear_plans()


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CASES)
def test_a_million_and_three(name: str, dtype: str, tiles: None) -> None:
    function, native, parameters = CASES[name]
    if name.endswith("norm") and DEVICE == "cpu":
        pytest.skip("takes Triton's interpreter half a minute")
    tensors = [leaf(randn(2, COLUMNS, dtype=dtype))]
    tensors += [leaf(randn(COLUMNS, dtype=dtype, seed=at + 1)) for at in range(parameters)]
    with kernels():
        found = gradients(function, tensors)
    exact = [leaf(each.double()) for each in tensors]
    expected = native(*exact)
    back = randn(*expected.shape, dtype=dtype, seed=7)
    wanted = [expected, *torch.autograd.grad(expected, exact, back.double())]
    theirs = gradients(native, tensors)
    for got, each, other in zip(found, wanted, theirs, strict=True):
        # What is next to nothing, as 1 by a million is, has to be right for what it is.
        scale = 1 / float(each.detach().abs().max())
        assert_near(got.detach().double().mul(scale).to(got.dtype), each * scale, other * scale, 3.0)
