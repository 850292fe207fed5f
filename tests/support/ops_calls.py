"""One call of every operator that has kernels, and the kernels it may run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

pytest.importorskip("triton")

from ops_problems import gradients, laid_out, leaf, randn  # noqa: E402

from einops_fast import ops  # noqa: E402


def target(x: Any) -> Any:
    return torch.arange(x.shape[0], device=x.device) * 7 % x.shape[1]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, weight, bias: ops.softmax(x),
    "log_softmax": lambda x, weight, bias: ops.log_softmax(x),
    "causal": lambda x, weight, bias: ops.log_softmax(x, causal=True),
    "layer_norm": lambda x, weight, bias: ops.layer_norm(x, weight=weight, bias=bias),
    "rms_norm": lambda x, weight, bias: ops.rms_norm(x, weight=weight, eps=1e-5),
    "sum": lambda x, weight, bias: ops.dropout_add_layer_norm(x, x * 2, weight, bias),
    "bias_gelu": lambda x, weight, bias: ops.bias_gelu(x, bias),
    "cross_entropy": lambda x, weight, bias: ops.cross_entropy(x, target(x), weight.abs() + 1, label_smoothing=0.1),
}


def operands(shape: tuple[int, ...], layout: str) -> list[Any]:
    rows = laid_out(randn(*shape, dtype="float32"), layout)
    return [rows, *(randn(shape[-1], dtype="float32", seed=at) for at in (1, 2))]


TAKES = {"softmax": 1, "log_softmax": 1, "causal": 1, "rms_norm": 2}
"""How many tensors a function needs, if not all three."""


def found(name: str, given: Sequence[Any]) -> list[Any]:
    """The result and the gradients."""
    used = [leaf(each) for each in given[: TAKES.get(name, 3)]]
    if name == "bias_gelu":
        return gradients(lambda x, bias: FUNCTIONS[name](x, None, bias), [used[0], used[2]])
    if name == "cross_entropy":
        return gradients(lambda x: FUNCTIONS[name](x, given[1], None), used[:1])
    return gradients(lambda *tensors: FUNCTIONS[name](*tensors, *(None,) * (3 - len(tensors))), used)
