"""Operators under checkpointing and torch.compile, on one tensor twice, and what is kept for calls that are alike."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from ops_cases import CASES, ROWS, Case, first_result, tensors_of
from ops_problems import DEVICE, assert_near, kernels, leaf, randn, where
from torch.nn.functional import embedding
from torch.utils.checkpoint import checkpoint

from einops_fast import ops
from einops_fast.errors import EinsumError, OperandError
from einops_fast.ops import dispatch
from einops_fast.runtime.plan_cache import clear_plans


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


F = torch.nn.functional
X, MATRIX, TARGET = torch.randn(4, 6), torch.randn(6, 6), torch.tensor([0, 1, 2, 3])
MASK = torch.rand(4, 6) > 0.5
MASK[:, 0] = True  # a row of a mask that hides everything is NaN to torch, and zeros to us

CALLS: dict[str, Case] = {
    **ROWS,
    "linear": CASES["linear"],
    "masked": Case("", lambda x: ops.softmax(x, mask=MASK), lambda x: x.masked_fill(~MASK, -torch.inf).softmax(-1)),
}


def _with(function: Any, others: list[Any], x: Any) -> Any:
    return function(x, *[each.to(x) for each in others])


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_are_read_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever differs from what was kept: layout, dtype, gradients, autocast, a transform, a trace."""
    case = CALLS[name]
    others = [each.float().cpu() for each in tensors_of(case.takes, 4, 6)[1:]]
    ours, native = (partial(_with, first_result(each), others) for each in (case.ours, case.native))
    clear_plans()
    for _ in range(3):
        torch.testing.assert_close(ours(X), native(X))
    reads: list[str] = []
    function_for = dispatch._of
    monkeypatch.setattr(dispatch, "_of", lambda framework: reads.append(framework) or function_for(framework))
    ours(X)
    assert not reads
    for x in (X.T.contiguous().T, X.double(), X[:2].repeat(2, 1)[1:3], leaf(X)):
        if x.shape == X.shape or name != "masked":
            torch.testing.assert_close(ours(x), native(x))
    x = leaf(X)
    for _ in range(3):
        found, wanted = (torch.autograd.grad(run(x).square().sum(), x)[0] for run in (ours, native))
        torch.testing.assert_close(found, wanted)
    assert not ours(X).requires_grad
    assert not torch.no_grad()(ours)(x).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(ours(X), native(X))
    tangent = torch.func.jvp(ours, (X,), (torch.ones_like(X),))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(native, (X,), (torch.ones_like(X),))[1])
    graph = torch.fx.experimental.proxy_tensor.make_fx(ours)(X).graph
    assert len(graph.nodes) > 2


def test_options_are_told_apart_by_type() -> None:
    clear_plans()
    for _ in range(3):
        ops.layer_norm(X, dim=1)
    with pytest.raises(EinsumError, match="dim is"):
        ops.layer_norm(X, dim=True)
    eps = torch.tensor(1e-5)
    for _ in range(3):
        ops.layer_norm(X, eps=eps)
    eps.fill_(10.0)
    torch.testing.assert_close(ops.layer_norm(X, eps=eps), F.layer_norm(X, (6,), eps=10.0))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_weight_of_classes_has_no_gradient(smoothing: float) -> None:
    """Kernels have none, and torch's function neither; it has one where targets are probabilities."""
    weight = torch.rand(6, requires_grad=True)
    for run in (
        lambda: ops.cross_entropy(X, TARGET, weight, label_smoothing=smoothing),
        lambda: ops.linear_cross_entropy(X, MATRIX, TARGET, weight=weight, label_smoothing=smoothing),
    ):
        for context in (nullcontext(), torch.no_grad()):
            with context:
                if torch.is_grad_enabled():
                    with pytest.raises(OperandError, match="weight has no gradient"):
                        run()
                else:
                    run()
    loss = ops.cross_entropy(X, X.softmax(1), weight, label_smoothing=smoothing)
    assert torch.autograd.grad(loss, weight)[0].isfinite().all()


ROW_TARGETS = torch.arange(5, device=DEVICE)
HALF = torch.arange(30, device=DEVICE).view(5, 6) % 5 > 1


def _tied(x: Any, matrix: Any, vector: Any, reduction: str = "mean") -> Any:
    return ops.linear_cross_entropy(embedding(ROW_TARGETS, matrix) * 2, matrix, ROW_TARGETS.flip(0), vector, chunk=2,
                                    reduction=reduction).sum()  # fmt: skip


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, matrix, vector: ops.linear(
        ops.linear(x, matrix, vector, activation="gelu"), matrix, vector, activation="gelu"
    ),
    "layer_norm": lambda x, matrix, vector: ops.layer_norm(ops.layer_norm(x, weight=vector, bias=vector), bias=vector),
    "rms_norm": lambda x, matrix, vector: ops.rms_norm(ops.rms_norm(x, weight=vector), weight=vector),
    "rms_norm with a bias": lambda x, matrix, vector: ops.rms_norm(x, weight=vector, bias=vector),
    "residual": lambda x, matrix, vector: ops.dropout_add_layer_norm(x * vector, x.flip(0), vector, vector)[0],
    "bias_gelu": lambda x, matrix, vector: ops.bias_gelu(ops.bias_gelu(x, vector), vector),
    "softmax": lambda x, matrix, vector: ops.softmax(ops.softmax(x, mask=vector), mask=vector),
    "log_softmax": lambda x, matrix, vector: ops.log_softmax(x, mask=HALF, temperature=2.0).nan_to_num(neginf=0.0),
    "cross_entropy": lambda x, matrix, vector: ops.cross_entropy(ops.softmax(x + vector), ROW_TARGETS),
    "cross_entropy, smoothed": lambda x, matrix, vector: ops.cross_entropy(
        x, ROW_TARGETS, label_smoothing=0.1, z_loss=0.1, reduction="none"
    ),
    "linear_cross_entropy": _tied,
    "losses": lambda *tensors: _tied(*tensors, reduction="none"),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str, by_kernels: bool) -> None:
    tensors = [leaf(randn(5, 6)), leaf(randn(6, 6, seed=1)), leaf(randn(6, seed=2))]

    def function(*tensors: Any) -> Any:
        return FUNCTIONS[name](*tensors).pow(3).sum()

    with where(by_kernels):
        plain = torch.autograd.grad(function(*tensors), tensors, allow_unused=True)
        kept = torch.autograd.grad(function(*tensors), tensors, allow_unused=True, create_graph=True)
        used = [each for each, gradient in zip(tensors, plain, strict=True) if gradient is not None]

        def of_used(*given: Any) -> Any:
            these = iter(given)
            return function(*(next(these) if any(each is one for one in used) else each for each in tensors))

        assert torch.autograd.gradgradcheck(of_used, used, fast_mode=True)
    for first, again in zip(plain, kept, strict=True):
        assert (first is None) == (again is None)
        if first is not None:
            assert_near(again, first)
