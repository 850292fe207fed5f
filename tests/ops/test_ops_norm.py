"""layer_norm, rms_norm and dropout_add_layer_norm: kernels, torch's functions, other frameworks."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from ops_problems import (
    as_numpy,
    assert_near,
    check,
    gradients,
    kernels,
    laid_out,
    leaf,
    namespace,
    native_norm,
    randn,
    tiled,
)

from einops_fast import ops
from einops_fast.backends.triton.rows.norm import plan as norm_plan
from einops_fast.backends.triton.rows.rows import RowTiling

TILES = {
    "whole": RowTiling(4, 32, True),
    "pieces": RowTiling(4, 8, True, pieces=4),
    "looped": RowTiling(4, 16, False),
    "split": RowTiling(4, 16, False, 2),
}


def oracle(x: Any, weight: Any = None, bias: Any = None, dim: int = -1, rms: bool = False, eps: float = 1e-5) -> Any:
    """By the definition, in the dtype of ``x``."""
    if not rms:
        x = x - x.mean(dim, keepdim=True)
    found = x / ((x * x).mean(dim, keepdim=True) + eps).sqrt()
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    found = found if weight is None else found * weight.view(shape)
    return found if bias is None else found + bias.view(shape)


def norm(x: Any, weight: Any = None, bias: Any = None, dim: int = -1, rms: bool = False) -> Any:
    function = ops.rms_norm if rms else ops.layer_norm
    return function(x, weight=weight, bias=bias, eps=1e-5, dim=dim)


@pytest.fixture(params=TILES)
def tiles(request: pytest.FixtureRequest) -> Any:
    """Every way to run the kernels, on rows that their blocks don't divide."""
    tiling = TILES[request.param]
    of_gradient = [replace(tiling, programs=2)] if tiling.whole else []
    columns = [RowTiling(2, 16, False, 2)]
    with tiled(
        norm_plan, row_tilings=[tiling], gradient_tilings=of_gradient, sums_tilings=[tiling], column_tilings=columns
    ):
        yield


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("parameters", ["", "weight", "bias", "weight bias"])
def test_kernels(rms: bool, parameters: str, tiles: Any) -> None:
    x, weight, bias = leaf(randn(3, 2, 21) + 3), leaf(randn(21, seed=1)), leaf(randn(21, seed=2))
    tensors = [x, weight if "weight" in parameters else None, bias if "bias" in parameters else None]
    check(partial(norm, rms=rms), partial(oracle, rms=rms), tensors)


def test_several_axes() -> None:
    x, weight = leaf(randn(3, 4, 5)), leaf(randn(4, 5, seed=1))
    expected = gradients(lambda x, w: torch.nn.functional.layer_norm(x, (4, 5), w, None, 0.5), [x, weight])
    with kernels():
        for layout in ("contiguous", "reversed"):
            tensors = [leaf(laid_out(x, layout)), weight]
            assert_near(gradients(lambda x, w: ops.layer_norm(x, (4, 5), w, eps=0.5), tensors), expected)


def test_long_rows_far_from_0() -> None:
    columns = 33_001
    x, weight, bias = leaf(randn(2, columns) + 100), leaf(randn(columns, seed=1)), leaf(randn(columns, seed=2))
    with kernels():
        found = gradients(norm, [x, weight, bias])
    expected = gradients(oracle, [x, weight, bias])
    assert_near(found, expected, [each + 1e-9 for each in expected])


@pytest.mark.parametrize("rms", [False, True])
def test_nan_and_infinity_as_torch(rms: bool, tiles: Any) -> None:
    """Also through a sum, where infinities of both signs are NaN."""
    x, residual = randn(5, 21, dtype="float32"), randn(5, 21, dtype="float32", seed=1)
    x[0, 3], x[1, 20], x[2], residual[3, 4], x[4, 5], residual[4, 5] = (
        torch.nan, torch.inf, 0.0, torch.nan, torch.inf, -torch.inf,
    )  # fmt: skip
    # Written out: torch has two of RMS norm, of which one makes the whole row NaN.
    expected = partial(oracle, rms=True) if rms else partial(native_norm, False)
    with kernels():
        torch.testing.assert_close(norm(x, rms=rms), expected(x), equal_nan=True)
        found, summed = ops.dropout_add_layer_norm(x, residual, rms=rms)
    torch.testing.assert_close(summed, x + residual, equal_nan=True)
    torch.testing.assert_close(found, expected(x + residual), equal_nan=True)


def test_residual(tiles: Any) -> None:
    tensors = [leaf(randn(3, 2, 21)), leaf(randn(2, 1, seed=3)), leaf(randn(21, seed=1)), leaf(randn(21, seed=2))]
    check(ops.dropout_add_layer_norm, lambda x, r, w, b: (oracle(x + r, w, b), x + r), tensors)


def test_dropout(tiles: Any) -> None:
    """What is dropped follows from the sum: with it as a mask all else must come out."""
    x, residual = leaf(laid_out(randn(4, 7, 21) + 9, "reversed")), leaf(randn(4, 7, 21, seed=3))
    with kernels():
        torch.manual_seed(3)
        _, summed = ops.dropout_add_layer_norm(x, None, p=0.25)
        kept = (summed != 0).double() / 0.75
        torch.manual_seed(3)
        found = gradients(lambda x, r: ops.dropout_add_layer_norm(x, r, p=0.25), [x, residual])
    expected = gradients(lambda x, r: (oracle(x * kept + r), x * kept + r), [x, residual])
    assert_near(found, expected)
    assert abs(float(kept.mean()) - 1) < 0.1


@pytest.mark.parametrize("framework", ["numpy", "cupy", "mxnet"])
@pytest.mark.parametrize("rms", [False, True])
def test_other_frameworks(framework: str, rms: bool) -> None:
    xp = namespace(framework)
    x, weight, bias = randn(3, 5, 2), randn(5, seed=1), randn(5, seed=2)
    own = [xp.array(each.cpu().numpy()) for each in (x, weight, bias)]
    found = as_numpy(norm(*own, dim=1, rms=rms))
    expected = oracle(x, weight, bias, 1, rms)
    np.testing.assert_allclose(found, expected.cpu().numpy(), rtol=1e-5, atol=1e-5)
