"""The operators where only a GPU can show it: CUDA graphs, torch.compile, models whose modules are replaced."""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch
from graphs import captured
from ops_cases import CASES, first_result, tensors_of
from ops_problems import DEVICE, Function, leaf, randn

from einops_fast import nn, ops

pytestmark = pytest.mark.gpu

ROWS, COLUMNS = 48, 272

CLASSES = torch.arange(ROWS, device=DEVICE) % COLUMNS
MASK = randn(ROWS, COLUMNS, seed=4) > -1.0

OPERATORS: dict[str, tuple[Function, str]] = {
    **{name: (first_result(case.ours), case.takes) for name, case in CASES.items()},
    "masked softmax": (lambda x: ops.softmax(x, mask=MASK, temperature=0.7), ""),
    "bias_gelu, tanh": (lambda x, b: ops.bias_gelu(x, b, approximate="tanh"), "v"),
    "star_relu": (lambda x, b: ops.dropout_bias_activation(x, b, "star_relu"), "v"),
    "plain linear": (ops.linear, "mv"),
    "z_loss of rows": (lambda x: ops.cross_entropy(x, CLASSES, z_loss=0.1, reduction="none"), ""),
    "qkv_self_attention": (
        lambda x, w: ops.qkv_self_attention(x[None], 4, torch.cat([w[:256]] * 3), is_causal=True), "m",
    ),
}  # fmt: skip
"""Functions, and what they take beside rows."""

DROPPING: dict[str, Callable[[Any, Any, Any], Any]] = {
    "norm after dropout": lambda x, a, b: ops.dropout_add_layer_norm(x, torch.zeros_like(x), a, b, 0.5)[1],
    "activation": lambda x, a, b: ops.dropout_bias_activation(x, None, "none", 0.5),
}


def inputs(takes: str, dtype: str) -> list[Any]:
    """Rows, and what else a function takes; sums of as many products as a row has are no larger."""
    tensors = tensors_of(takes, ROWS, COLUMNS, dtype=dtype)
    return [leaf(each * COLUMNS**-0.5 if each.shape[0] == each.shape[-1] > ROWS else each) for each in tensors]


def both_ways(function: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    """The result and all gradients, for the same gradient of the result."""
    found = function(*tensors)
    back = torch.linspace(-1.0, 1.0, found.numel(), device=DEVICE).view(found.shape).to(found.dtype)
    gradients = torch.autograd.grad(found, tensors, back, allow_unused=True)
    return [found.detach(), *[each for each in gradients if each is not None]]


def near(found: Sequence[Any], expected: Sequence[Any], dtype: str) -> None:
    tolerance = {"float32": 2e-5, "bfloat16": 2e-2}[dtype]  # another way may be chosen when a graph is made
    for got, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance * float(wanted.abs().max() + 1e-6))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_captured_in_a_graph(name: str, dtype: str) -> None:
    function, takes = OPERATORS[name]
    tensors = inputs(takes, dtype)
    step = partial(both_ways, function, tensors)
    found, graph = captured(step)
    for seed in (11, 12):  # with what lies in the same memory later on
        with torch.no_grad():
            tensors[0].copy_(randn(ROWS, COLUMNS, dtype=dtype, seed=seed))
        graph.replay()
        torch.cuda.synchronize()
        near(found, step(), dtype)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled(name: str, dtype: str, mode: str) -> None:
    torch.compiler.reset()
    function, takes = OPERATORS[name]
    tensors = inputs(takes, dtype)
    expected = both_ways(function, tensors)
    compiled = torch.compile(function, fullgraph=True, mode=mode)
    for _ in range(3):  # CUDA graphs are captured at the second call
        torch.compiler.cudagraph_mark_step_begin()
        near([each.clone() for each in both_ways(compiled, tensors)], expected, dtype)


@pytest.mark.parametrize("mode", ["graph", "default", "reduce-overhead"])
@pytest.mark.parametrize("name", DROPPING)
def test_dropout(name: str, mode: str) -> None:
    """Each replay of a graph, and each call of what is compiled, drops others, and backward the same."""
    torch.compiler.reset()
    x, a, b = inputs("vv", "float32")
    with torch.no_grad():
        x.copy_(x.abs() + 1)
    function = DROPPING[name] if mode == "graph" else torch.compile(DROPPING[name], fullgraph=True, mode=mode)

    def step() -> tuple[Any, Any]:
        found = function(x, a, b)
        return found.detach(), torch.autograd.grad(found, x, torch.ones_like(found))[0]

    results, graph = captured(step) if mode == "graph" else (None, None)
    seen = []
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        if graph is not None:
            graph.replay()
            torch.cuda.synchronize()
        found, gradient = results or step()
        torch.testing.assert_close(found, gradient * x)
        assert set(gradient.unique().tolist()) == {0.0, 2.0}
        assert 0.4 < float((found != 0).float().mean()) < 0.6
        seen.append(found.clone())
    assert not any(torch.equal(one, other) for one, other in pairwise(seen))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama"])
def test_models(kind: str, dtype: str, compiled: bool) -> None:
    """By our kernels they miss what they are in float64 by no more than before, and are restored."""
    models = pytest.importorskip("injected_models")
    results = partial(models.results, use_cache=False)
    original = models.build(kind, dtype=getattr(torch, dtype))
    # transformers computes norms and losses in float32, also of float64.
    exact = [each.double() for each in results(copy.deepcopy(original).double())]
    native = [each.clone() for each in results(original)]
    report = nn.optimize(original)
    assert len(report.replaced) >= 10
    torch.compiler.reset()
    run = torch.compile(original, fullgraph=True) if compiled else original
    found = [each.clone() for each in results(run)]
    for got, theirs, wanted in zip(found, native, exact, strict=True):
        assert got.dtype == theirs.dtype
        missed, allowed = (float((each.double() - wanted).abs().max()) for each in (got, theirs))
        assert missed <= max(3 * allowed, (1e-4 if dtype == "float32" else 2e-2) * float(wanted.abs().max()))
    nn.restore(original)
    torch.testing.assert_close(results(original), native)
    replacement = import_module("einops_fast.nn.injection.replacement").Replacement
    assert not any(isinstance(each, replacement) for each in original.modules())
