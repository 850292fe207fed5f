"""Tensors that are written to after a program reads them and before attention would, by any name, through any view."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_programs import check, random_operands

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


def test_what_is_written_elsewhere_is_not_what_it_is_made_of() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        made = torch.empty_like(q)
        torch.add(q, k, out=made)
        return (q @ k.mT).softmax(-1) @ v + made.sum()

    assert len(run(program).fused) == 1


def test_a_tensor_that_becomes_another_view_is_left_alone() -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        q = torch.tanh(q)
        q.transpose_(0, 1)
        return (q.transpose(0, 1) @ k.mT).softmax(-1) @ v

    assert not run(program).fused
