"""The kernels under checkpointing, where dropout is drawn again, and compiled under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
from ops_problems import DEVICE, kernels, leaf, randn, targets  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from einops_fast import ops  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")


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


TARGET = targets(6, classes=8)

OPERATORS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "softmax": lambda x, w, b: ops.softmax(x, mask=b > 0),
    "norm": lambda x, w, b: ops.layer_norm(x, weight=b, bias=b),
    "bias_activation": lambda x, w, b: ops.bias_gelu(x, b),
    "linear": lambda x, w, b: ops.linear(x, w, b, activation="gelu"),
    "cross_entropy": lambda x, w, b: ops.cross_entropy(x, TARGET),
    "linear_cross_entropy": lambda x, w, b: ops.linear_cross_entropy(x, w, TARGET, b),
}


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("name", OPERATORS)
def test_compiled_under_autocast(name: str, inside: bool) -> None:
    """Autocast may be on where a compiled function is called, or be in it: the graph has our operator all the same."""
    called: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    def casted(*tensors: Any) -> Any:
        with torch.autocast(DEVICE, torch.bfloat16):
            return OPERATORS[name](*tensors)

    torch.compiler.reset()
    tensors = [leaf(randn(*shape, dtype="float32", seed=1)) for shape in ((6, 8), (8, 8), (8,))]
    compiled = torch.compile(casted if inside else OPERATORS[name], fullgraph=True, backend=backend)
    with kernels():
        expected = casted(*tensors)
        if inside:
            found = compiled(*tensors)
        else:
            with torch.autocast(DEVICE, torch.bfloat16):
                found = compiled(*tensors)
        gradients = [torch.autograd.grad(each.sum(), tensors, allow_unused=True) for each in (found, expected)]
    assert f"einops_fast.{name}.default" in called
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*[[each for each in of if each is not None] for of in gradients])
