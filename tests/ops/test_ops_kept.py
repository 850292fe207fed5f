"""What computes a call is kept for calls like it, and for no others."""

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from ops_cases import CASES, ROWS, Case, first_result, tensors_of
from ops_problems import leaf

from einops_fast import ops
from einops_fast.errors import EinsumError, OperandError
from einops_fast.ops import dispatch
from einops_fast.runtime.plan_cache import clear_plans

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
