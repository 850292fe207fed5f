"""Operators under checkpointing, where dropout is drawn again, compiled, and asked for several gradients at a time."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from ops_cases import CASES, first_result, tensors_of
from ops_problems import DEVICE, kernels, leaf, randn, where
from torch.utils.checkpoint import checkpoint

from einops_fast import ops


def _twice(x: Any, residual: Any) -> Any:
    """Two kernels that drop, and one that keeps what it dropped from."""
    found, summed = ops.dropout_add_layer_norm(ops.dropout_bias_activation(x, None, "silu", 0.3), residual, p=0.5)
    return found.sigmoid() + summed


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_is_drawn_again_in_checkpoints(reentrant: bool) -> None:
    tensors = [leaf(randn(6, 21)), leaf(randn(6, 21, seed=1))]
    back = randn(6, 21, seed=2)

    def backward(found: Any) -> list[Any]:
        for each in tensors:
            each.grad = None
        found.backward(back)
        return [found.detach(), *[each.grad for each in tensors]]

    with kernels():
        torch.manual_seed(3)
        plain = backward(_twice(*tensors))
        torch.manual_seed(3)
        again = backward(checkpoint(_twice, *tensors, use_reentrant=reentrant))
        torch.manual_seed(3)
        found = checkpoint(_twice, *tensors, use_reentrant=reentrant)
        torch.rand(5, device=DEVICE)  # other numbers are drawn in between
        later = backward(found)
    for each in (again, later):
        assert all(map(torch.equal, each, plain))


def operands(name: str, rows: int = 6, dtype: str = "float32") -> list[Any]:
    return [leaf(each) for each in tensors_of(CASES[name].takes, rows, 8, dtype=dtype)]


def check_same(found: Any, expected: Any, tensors: list[Any]) -> None:
    """The results, and the gradients of their sums."""
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(each.sum(), tensors, allow_unused=True) for each in (found, expected)]
    torch.testing.assert_close(*[[each for each in of if each is not None] for of in gradients])


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_compiled_under_autocast(name: str, inside: bool) -> None:
    """Autocast may be on where a compiled function is called, or be in it: the graph has our operator all the same."""
    operator, function = CASES[name].operator, first_result(CASES[name].ours)
    called: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def casted(*tensors: Any) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16):
            return function(*tensors)

    torch.compiler.reset()
    tensors = operands(name)
    compiled = torch.compile(casted if inside else function, fullgraph=True, backend=backend)
    with kernels():
        with nullcontext() if inside else torch.autocast(DEVICE, torch.bfloat16):
            found = compiled(*tensors)
        check_same(found, casted(*tensors), tensors)
    assert f"einops_fast.{operator}.default" in called


@pytest.mark.parametrize(
    ("name", "by_kernels"), [*((name, True) for name in CASES), ("linear_cross_entropy", False), ("losses", False)]
)
def test_compiled(name: str, by_kernels: bool) -> None:
    """For the size of the first call, and then for any."""
    function = first_result(CASES[name].ours)
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    with where(by_kernels):
        for rows in (6, 9):
            tensors = operands(name, rows)
            check_same(compiled(*tensors), function(*tensors), tensors)


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_batch_of_gradients(name: str, by_kernels: bool) -> None:
    """Of several at a time, torch calls the operator for each; what was kept for gradients isn't written over."""
    tensors = operands(name, dtype="float64")
    with where(by_kernels):
        result = first_result(CASES[name].ours)(*tensors)
        first = torch.autograd.grad(result.sum(), tensors, retain_graph=True, allow_unused=True)
        wanted = [each for each, gradient in zip(tensors, first, strict=True) if gradient is not None]
        seeds = randn(3, *result.shape, seed=2)
        batch = torch.autograd.grad(result, wanted, seeds, is_grads_batched=True, retain_graph=True)
        one_by_one = [torch.autograd.grad(result, wanted, seed, retain_graph=True) for seed in seeds]
    torch.testing.assert_close(batch, tuple(map(torch.stack, zip(*one_by_one, strict=True))))
