"""Biases so low that they stand for masks: of a row that sees nothing else, all keys weigh the same."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_problems import SMALL, attention, run, tiles
from hopper_attention import MARKS, ON_GPU, hopper_kernels, kernels_of

from einops_fast.attention.reference import Math
from einops_fast.attention.spec import AttentionInputs

LOW = {"float32": (-1e9, -1e30, torch.finfo(torch.float32).min), "float64": (-1e30, torch.finfo(torch.float64).min)}


def problem(low: float, dtype: str, bias_dtype: str, **options: Any) -> tuple[Any, Any]:
    """Row 1 sees keys by a low bias only, row 2 none, row 3 some, row 4 a few by a low bias and no others."""
    spec, inputs = attention((1, 2), dtype=dtype, **{"q_len": 5, "kv_len": 40, "bias": (1, 2, 5, 40), **options})
    inputs.bias = inputs.bias.to(getattr(torch, bias_dtype))
    inputs.bias[..., 1, :] = low
    inputs.bias[..., 2, :] = -math.inf
    inputs.bias[..., 3, 4:] = low
    inputs.bias[..., 4, :] = -math.inf
    inputs.bias[..., 4, :7] = low
    return spec, inputs


def check(spec: Any, inputs: Any, tolerance: float, gradients: bool = True) -> None:
    found = run(spec, inputs, gradients)
    doubles = AttentionInputs(*(None if each is None else each.double() for each in vars(inputs).values()))
    # So low that they have no digits for products in float64 either.
    doubles.bias = torch.where((doubles.bias < -1e5) & doubles.bias.isfinite(), -1e300, doubles.bias)
    expected = run(replace(spec, dtype="float64"), doubles, gradients, Math().run)
    low, others = [1, 4], [0, 2, 3, *range(5, spec.q_len)]
    assert ((found["lse"][..., low] < -1e5) & found["lse"][..., low].isfinite()).all()
    for name, value in found.items():
        exact = expected[name]
        if name == "lse":
            # As low as it is, it tells no more than that.
            value, exact = value[..., others], exact[..., others]
        assert torch.equal(value == -math.inf, exact == -math.inf), name
        value, exact = (each.detach().double().masked_fill(exact == -math.inf, 0.0) for each in (value, exact))
        # The logarithm of so low a sum has few digits left for the weights.
        most = tolerance if name in ("out", "lse") else max(0.1, tolerance)
        assert float((value - exact).abs().max()) <= most * max(1.0, float(exact.abs().max())), name


@pytest.mark.parametrize(("dtype", "low"), [(dtype, low) for dtype, lows in LOW.items() for low in lows])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "sinks": None}, {"bias": (1, 1, 5, 40)}], ids=str)
def test_rows_of_low_biases(dtype: str, low: float, options: dict[str, Any]) -> None:
    with tiles():
        check(*problem(low, dtype, dtype, **options), 3e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("parts", [1, 2])
def test_few_queries(parts: int) -> None:
    # Parts are put together by their logarithms.
    tolerance = 3e-5 if parts == 1 else 0.05
    with tiles(replace(SMALL, packed=True, parts=parts)):
        check(*problem(torch.finfo(torch.bfloat16).min, "float32", "bfloat16"), tolerance, gradients=False)


@pytest.mark.parametrize("bias", [(1, 2, 140, 200), (1, 1, 140, 200), (1, 2, 140, 1)])
@pytest.mark.parametrize("bias_dtype", ["bfloat16", "float32"] if ON_GPU else ["float32"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"] if ON_GPU else ["float16"])
class TestHopper:
    pytestmark = MARKS

    def test_rows_of_low_biases(self, bias: tuple[int, ...], bias_dtype: str, dtype: str) -> None:
        low = torch.finfo(getattr(torch, bias_dtype)).min
        options = {"q_len": 140, "kv_len": 200, "head_dim": 64 if ON_GPU else 16, "bias": bias}
        spec, inputs = problem(low, dtype, bias_dtype, **options)
        with hopper_kernels() as ran:
            check(spec, inputs, 2e-2 if ON_GPU else 3e-3)
        assert ran == kernels_of(spec)
