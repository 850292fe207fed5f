"""Kernels of traced calls are compiled while the rest of a program is: what a call asks for is known from its fakes."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch import ahead
from einops_fast.backends.torch.attention.ops import (
    attention_backward,
    attention_forward,
    constants,
)
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.ops.linear_cross_entropy import linear_cross_entropy_in_one, scaled
from einops_fast.backends.triton.launching import rehearsing
from einops_fast.runtime import background
from einops_fast.runtime.plan_cache import clear_plans

SPEC = AttentionSpec((2, 3), (2, 3), (2, 3), (2, 3), 64, 64, 32, 32, "bfloat16", 0.2, causal=True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the names of kernels that are asked for, a list for each call."""
    names: list[list[str]] = []

    def compile_elsewhere(launches: Sequence[Any]) -> Future[Any]:
        names.append([each.call.function.__name__ for each in launches])
        done: Future[Any] = Future()
        done.set_result(None)
        return done

    monkeypatch.setattr(rehearsing, "compile_elsewhere", compile_elsewhere)
    monkeypatch.setattr(background, "available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(TorchMemory, "processors", lambda self, device: ((9, 0), 132))
    monkeypatch.setattr(TorchMemory, "device_name", lambda self, device: "H100")
    monkeypatch.setattr(TorchMemory, "on_device", lambda self, device: nullcontext())
    clear_plans()
    return names


def traced(lengths: int | None = 64, device: str = "cuda") -> None:
    """Trace a call and its gradients without values."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        q, k, v = (torch.empty(2, 3, lengths, 32, dtype=torch.bfloat16, device=device) for _ in range(3))
        arrays = (q, k, v, *[None] * 11)
        out, lse = attention_forward(*arrays, *constants(SPEC))
        attention_backward(
            out, lse, torch.empty_like(out), None, *arrays, [True, True, True, False, False], *constants(SPEC)
        )


def test_kernels_of_both_ways_are_asked_for_once(asked: list[list[str]]) -> None:
    traced()
    traced()
    ahead.wait()
    assert not ahead.pending
    assert len(asked) == 2
    forward, backward = asked
    assert len(forward) == 1
    assert len(backward) >= 1
    assert not set(forward) & set(backward)


def test_kernels_of_other_operators_are_asked_for(asked: list[list[str]]) -> None:
    """A model's last layer and its loss: their kernels lie in chunks of logits."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, matrix = (torch.empty(rows, 64, dtype=torch.bfloat16, device="cuda") for rows in (512, 1001))
        target = torch.zeros(512, dtype=torch.int64, device="cuda")
        numbers = -100, 0.0, 0.0, "mean", 0, True, True, False
        loss, d_x, *_ = linear_cross_entropy_in_one.traced(x, matrix, None, target, None, *numbers)
        scaled.traced(d_x, loss)
    ahead.wait()
    assert [sorted({*each}) for each in asked] == [
        ["cross_entropy_gradient_kernel", "cross_entropy_kernel"], ["scale_kernel"],
    ]  # fmt: skip


def test_sizes_that_change_are_left_to_the_call(asked: list[list[str]]) -> None:
    """Also where only the longest sequence is a symbol, which can't be hashed."""
    symbol = ShapeEnv().create_unbacked_symint()
    with FakeTensorMode():
        q = torch.empty(2, 3, 64, 32, dtype=torch.bfloat16, device="cuda")
        ahead.compile_ahead(lambda *given: None, (q, q, q), (symbol,))
    assert not ahead.pending
    assert not asked


def test_plans_that_are_cleared_are_asked_for_again(asked: list[list[str]]) -> None:
    traced()
    clear_plans()
    traced()
    ahead.wait()
    assert len(asked) == 4


def test_what_goes_wrong_is_left_to_the_call(asked: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(launches: Sequence[Any]) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(rehearsing, "compile_elsewhere", fail)
    traced()
    ahead.wait()
    assert not ahead.pending
