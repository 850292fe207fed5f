"""Programs that write to tensors, keep gradients here and not there, or change settings: values stay as written."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_programs import check, random_operands

from einops_fast import compile, fusions
from einops_fast.compiler import library_attention, losses
from einops_fast.compiler.report import FusionLog


@torch.library.custom_op("einops_fast_tests::writes", mutates_args=("y",))
def writes(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x * 3)


@torch.library.custom_op("einops_fast_tests::reads", mutates_args=())
def reads(x: torch.Tensor) -> torch.Tensor:
    return x * 3 + 1


@reads.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


def raised(x: Any) -> None:
    x **= 2


def taken_modulo(x: Any) -> None:
    x %= 0.5


WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "method": lambda x, y: x.mul_(2),
    "operator": lambda x, y: raised(x),
    "another_operator": lambda x, y: taken_modulo(x),
    "function_with_an_option": lambda x, y: F.leaky_relu(x, 0.1, True),
    "out": lambda x, y: torch.add(y, 1, out=x),
    "several": lambda x, y: torch._foreach_mul_([x, y * 1], 2.0),
    "operator_of_a_library": writes,
    "operator_by_its_name": lambda x, y: torch.ops.einops_fast_tests.writes(y, x),
    "item": lambda x, y: x.__setitem__(0, 3.0),
    "copy": lambda x, y: x.copy_(y),
}

VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.mT,
    "data": lambda x: x.data,
    "split": lambda x: torch.split(x, 1)[1],
    "at_least": torch.atleast_2d,
    "on_the_host": lambda x: x.cpu(),
    "einsum": lambda x: torch.einsum("bhid->bhdi", x),
    "broadcast": lambda x: torch.broadcast_tensors(x, x)[0],
    "diagonal": lambda x: x.diagonal(0, 2, 3),
    "nothing_is_dropped": lambda x: F.dropout(x, 0.5, False),
}


def run(program: Any) -> FusionLog:
    return check(program, random_operands(*[(2, 3, 5, 4)] * 3, gradients=False), close=1e-5, fullgraph=False)


@pytest.mark.parametrize("name", [*WRITES, *VIEWS])
def test_queries_or_a_view_of_them_are_written_to(name: str) -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        q = torch.tanh(q)
        scores = q @ k.mT
        if name == "operator_of_a_library":
            writes(k, q)
        elif name in VIEWS:
            VIEWS[name](q).zero_()
        else:
            WRITES[name](q, k)
        return scores.softmax(-1) @ v + q.sum()

    log = run(program)
    assert [each.reason for each in log.missed] == ["mutation"], str(log)


@pytest.mark.parametrize("called", [reads, torch.ops.einops_fast_tests.reads])
def test_an_operator_of_a_library_that_only_reads_is_no_write(called: Any) -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        made = called(q)
        return scores.softmax(-1) @ v + made.sum() + q.sum()

    assert len(run(program).fused) == 1


def test_a_tensor_that_becomes_another_view_is_left_alone() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        q = torch.tanh(q)
        q.transpose_(0, 1)
        return (q.transpose(0, 1) @ k.mT).softmax(-1) @ v

    assert not run(program).fused


def tensors(gradients: bool = True) -> list[Any]:
    return random_operands(*[(1, 2, 5, 4)] * 3, gradients=gradients)


WITHOUT_GRADIENTS = {
    "scale": lambda q: q * 0.5,
    "transpose": lambda q: q.mT.contiguous().mT,
    "clone": lambda q: q.contiguous().clone(),
    "expand": lambda q: q[:, :1].expand(1, 2, 5, 4).reshape(1, 2, 5, 4),
}


@pytest.mark.parametrize("way", WITHOUT_GRADIENTS)
@pytest.mark.parametrize("at", range(3))
def test_gradients_that_are_switched_off_before(way: str, at: int) -> None:
    def program(*operands: Any) -> Any:
        given = list(operands)
        with torch.no_grad():
            given[at] = WITHOUT_GRADIENTS[way](given[at])
        q, k, v = given
        return (q @ k.mT).softmax(-1) @ v

    log = check(program, tensors())
    # Values times a number are read as they are.
    read = at == 2 and way == "scale"
    assert [each.reason for each in log.missed] == ["unsupported option"] * (not read)


RESULTS_WRITTEN: dict[str, Callable[[Any], Any]] = {
    "add_": lambda o: o.add_(1),
    "item": lambda o: o[..., 0].zero_(),
    "view": lambda o: o.transpose(1, 2).mul_(2),
}


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("way", RESULTS_WRITTEN)
def test_a_result_that_is_written_to(way: str, causal: bool, gradients: bool) -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        if causal:
            scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), -math.inf)
        found = scores.softmax(-1) @ v
        RESULTS_WRITTEN[way](found)
        return found

    log = check(program, tensors(gradients))
    assert len(log.fused) == (not gradients)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("heads", "shared"), [(8, 1), (8, 2), (4, 4)])
def test_fewer_queries_than_heads(heads: int, shared: int, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_attention, "_is_faster", lambda *given: True)
    q, k, v = (torch.randn(1, count, 3, 4) for count in (heads, shared, shared))
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), (q, k, v),
          dynamic=dynamic)  # fmt: skip
    wide = [each[:, :1].expand(1, heads, 3, 4) for each in (k, v)]
    check(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, *wide], dynamic=dynamic)


def test_scores_that_are_no_numbers() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        return (q @ k.mT).masked_fill(torch.eye(5, dtype=torch.bool), math.nan).softmax(-1) @ v

    with fusions() as log:
        assert compile(program, then="eager")(*tensors()).isnan().all()
    assert [each.reason for each in log.missed] == ["unsupported option"]


def test_a_loss_inside_of_a_functional_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_MANY", 0)
    target = torch.arange(5)

    def program(x: Any, matrix: Any) -> Any:
        return torch.func.grad(lambda x: F.cross_entropy(F.linear(x, matrix), target))(x)

    log = check(program, [torch.randn(5, 4), torch.randn(6, 4)])
    assert [each.reason for each in log.missed] == ["unsupported option"]
