"""Rows of a million elements and three, which nothing divides: by every operator that works along rows, both ways."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from ops_cases import ROWS, tensors_of
from ops_problems import DEVICE, assert_near, gradients, kernels, leaf

from einops_fast.backends.triton.rows.cross_entropy import plan as cross_entropy_plan
from einops_fast.backends.triton.rows.rows import RowTiling
from einops_fast.backends.triton.rows.softmax import plan as softmax_plan
from einops_fast.runtime.plan_cache import clear_plans

COLUMNS = 1_000_003

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
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "layer_norm", "rms_norm", "cross_entropy"])
def test_a_million_and_three(name: str, dtype: str, tiles: None) -> None:
    if name.endswith("norm") and DEVICE == "cpu":
        pytest.skip("takes Triton's interpreter half a minute")
    case = ROWS[name]
    tensors = [leaf(each) for each in tensors_of(case.takes, 2, COLUMNS, dtype=dtype)]
    with kernels():
        found = gradients(case.ours, tensors)
    wanted = gradients(case.native, [leaf(each.double()) for each in tensors], rounded=dtype)
    theirs = gradients(case.native, tensors)
    for got, each, other in zip(found, wanted, theirs, strict=True):
        # What is next to nothing, as 1 by a million is, has to be right for what it is.
        scale = 1 / float(each.detach().abs().max())
        assert_near(got.detach().double().mul(scale).to(got.dtype), each * scale, other * scale, 3.0)
