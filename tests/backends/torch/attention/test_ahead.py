"""Kernels of traced calls are compiled while the rest of a program is: what a call asks for is known from its fakes."""

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention import ahead, runs
from einops_fast.backends.torch.attention.ops import (
    attention_backward,
    attention_forward,
    constants,
)
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
    monkeypatch.setattr(runs, "_device", lambda device: ((9, 0), 132))
    monkeypatch.setattr(ahead, "_MEMORY", type("Memory", (), {"on_device": staticmethod(lambda device: nullcontext())}))
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
