"""Attention modules on a GPU: results and gradients, in a CUDA graph, compiled by Inductor."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from graphs import captured

from einops_fast import attention_backend
from einops_fast.nn import CausalSelfAttention, MultiHeadAttention

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

MODULES: dict[str, Any] = {
    "causal": lambda: CausalSelfAttention(4, 256, bias=True, is_causal=True),
    "pattern": lambda: MultiHeadAttention("b i, b j -> b i", 256, 4, num_kv_heads=2, causal=True),
    "words": lambda: MultiHeadAttention("query batch, key batch -> query batch", 256, 4, window=(30, 30)),
}


def _made(name: str, dtype: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return MODULES[name]().to("cuda", dtype), torch.randn(8, 128, 256, device="cuda").to(dtype)


def _all(module: Any, x: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    found = module(x)
    return [found, *torch.autograd.grad(found.float().square().sum(), [x, *module.parameters()])]


def _check(found: list[Any], expected: list[Any], tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        one, other = one.double(), other.double()
        error = float((one - other).square().mean().sqrt())
        # The gradient of the bias of keys is 0, up to rounding.
        assert error <= tolerance * max(1.0, float(other.square().mean().sqrt())), error


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("name", MODULES)
def test_results_and_gradients(name: str, dtype: str) -> None:
    module, x = _made(name, getattr(torch, dtype))
    with attention_backend("math"):
        expected = _all(deepcopy(module).double(), x.double())
    _check(_all(module, x), expected, 3e-2 if dtype == "bfloat16" else 5e-3)


@pytest.mark.parametrize("name", MODULES)
def test_captured_in_a_graph(name: str) -> None:
    module, x = _made(name, torch.bfloat16)
    x.requires_grad_()

    def step() -> Any:
        module.zero_grad(set_to_none=True)
        x.grad = None
        found = module(x)
        found.float().square().sum().backward()
        return found

    found, graph = captured(step)
    for seed in range(2):
        torch.manual_seed(seed)
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        results = [found, x.grad, *[each.grad for each in module.parameters()]]
        results = [each.detach().clone() for each in results]
        _check(results, _all(module, x), 2e-2)


@pytest.mark.parametrize("name", MODULES)
def test_compiled_by_inductor(name: str) -> None:
    module, x = _made(name, torch.bfloat16)
    torch.compiler.reset()
    _check(_all(torch.compile(module, fullgraph=True), x), _all(module, x), 3e-2)


@pytest.mark.parametrize("name", MODULES)
def test_dropout_is_another_one_each_time(name: str) -> None:
    module, x = _made(name, torch.bfloat16)
    module.dropout = 0.5
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))
