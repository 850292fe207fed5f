"""Derivatives of the kernels, first and second, against differences of results in float64."""

from typing import Any

import pytest
import torch
from attention_problems import DEVICE, randn, whole_calls

from einops_fast import attention, attention_backend

P = "b i h d, b j g d, b j g e -> b i h e"
CASES: dict[str, dict[str, Any]] = {
    "bias and sinks of shared keys": {"bias": (2, 3, 4), "sinks": (2,), "causal": "bottom_right"},
    "softcap": {"softcap": 1.5, "sinks": (2,)},
    "shared bias": {"bias": (1, 3, 4), "softcap": 1.5, "window": (2, 1)},
}

pytestmark = pytest.mark.skipif(DEVICE != "cpu", reason="constants of the kernels are float32 on a GPU")


@pytest.mark.parametrize("case", CASES)
def test_derivatives(case: str) -> None:
    options = dict(CASES[case])
    shapes = {"q": (1, 3, 2, 3), "k": (1, 4, 1, 3), "v": (1, 4, 1, 2)}
    shapes |= {name: options.pop(name) for name in ("bias", "sinks") if name in options}
    axes = {"bias": "h i j", "sinks": "h"}
    leaves = [randn(*shape, dtype="float64", seed=at).requires_grad_() for at, shape in enumerate(shapes.values())]

    def call(*arrays: Any) -> Any:
        given = dict(zip(shapes, arrays, strict=True))
        further = {name: (axes[name], given[name]) for name in axes if name in given}
        return attention(P, given["q"], given["k"], given["v"], return_lse=True, **further, **options)

    with whole_calls(), attention_backend("triton"):
        assert torch.autograd.gradcheck(call, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
