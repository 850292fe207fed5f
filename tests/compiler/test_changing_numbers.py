"""Numbers of Python's that change from call to call: those of modules do with ``dynamic=True``, and once they did."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from written_attention import operands

import einops_fast
from einops_fast import fusions

pytestmark = pytest.mark.usefixtures("nothing_compiled")


class Numbers(nn.Module):
    """A program and the numbers that it reads."""

    def __init__(self, program: Callable[..., Any]) -> None:
        super().__init__()
        self.program, self.dropout = program, nn.Dropout(0.25)
        self.p, self.scale, self.cap, self.fill = 0.25, 0.3, 5.0, -1e9

    def forward(self, *given: Any) -> Any:
        return self.program(self, *given)


def by_module(own, q, k, v):
    return own.dropout((q @ k.mT).softmax(-1)) @ v


def by_function(own, q, k, v):
    return F.dropout((q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1), own.p, own.training) @ v


def beside_a_mask(own, q, k, v):
    scores = own.scale * (q @ k.mT)
    return F.dropout(torch.where(mask_of(scores), scores, own.fill).softmax(-1), p=own.p, training=own.training) @ v


def within_a_softcap(own, q, k, v):
    scores = own.cap * torch.tanh((q @ k.mT) / own.cap)
    return own.dropout(scores.masked_fill(~mask_of(scores), own.fill).softmax(-1)) @ v


def in_float32(own, q, k, v):
    return own.dropout(((q @ k.mT).float() * own.scale + own.p).softmax(-1)).to(v.dtype) @ v


def of_scores(own, q, k, v):
    return (q @ k.mT / (own.scale * own.cap)).softmax(-1) @ v


def mask_of(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


PROGRAMS = (by_module, by_function, beside_a_mask, within_a_softcap, in_float32, of_scores)


def is_as_written(compiled: Any, model: Any, given: Any) -> None:
    found, expected = compiled(*given), model(*given)
    close = 1e-5 if found.dtype == torch.float32 else 3e-2
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    own, wanted = [torch.autograd.grad(each.float().sin().sum(), given) for each in (found, expected)]
    torch.testing.assert_close(own, wanted, rtol=10 * close, atol=2 * close)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_number_that_changes_is_read_anew(program: Any, dynamic: bool | None, dtype: torch.dtype) -> None:
    model, given = Numbers(program), operands(dtype=dtype)
    with fusions() as log:
        compiled = einops_fast.compile(model, then="eager", dynamic=dynamic)
        compiled(*given)
        model.eval()
        is_as_written(compiled, model, given)
        for numbers in ((0.5, 1.5, 2.0, -2e4), (0.1, 0.7, 9.0, -1e10)):
            model.p, model.scale, model.cap, model.fill = numbers
            is_as_written(compiled, model, given)
        model.train()
        model.p = model.dropout.p = 0.0
        is_as_written(compiled, model, given)
    assert log.fused, str(log)
    assert not log.missed, str(log)


@pytest.mark.parametrize("then", ["eager", "inductor"])
@pytest.mark.parametrize("dynamic", [True, None])
def test_weights_are_dropped_as_often_as_a_module_says_now(dynamic: bool | None, then: str) -> None:
    model = Numbers(by_module)
    q = k = torch.zeros(2, 3, 40, 8)
    v = torch.ones(2, 3, 40, 8)
    compiled = einops_fast.compile(model, then=then, dynamic=dynamic)
    for p in (0.25, 0.6, 0.9):
        model.dropout.p = p
        with fusions() as log:
            found = compiled(q, k, v)
        assert len(log.fused) == 1, str(log)
        assert not log.missed, str(log)
        # Forty weights, each of them dropped or made larger.
        assert float(found[..., 0].std()) == pytest.approx(math.sqrt(p / (1 - p) / 40), rel=0.3)
        assert float(found.mean()) == pytest.approx(1, abs=0.3)
    model.dropout.p = 1.0
    assert compiled(q, k, v).count_nonzero() == 0
    model.eval()
    torch.testing.assert_close(compiled(q, k, v), v)


def test_a_scale_that_changes_is_not_compiled_anew() -> None:
    """As where a temperature falls from step to step."""
    model, given = Numbers(of_scores), operands()
    compiled = einops_fast.compile(model, then="eager", dynamic=True)
    with fusions() as log:
        for scale in (0.3, 0.4, 0.5):
            model.scale = scale
            is_as_written(compiled, model, given)
    assert len(log.fused) == 1


@pytest.mark.parametrize("dynamic", [True, None])
def test_numbers_of_a_library_call_may_change(dynamic: bool | None) -> None:
    def program(own: Any, q: Any, k: Any, v: Any) -> Any:
        mask = mask_of(q @ k.mT)
        return F.scaled_dot_product_attention(q, k, v, mask, own.p if own.training else 0.0, scale=own.scale)

    model, given = Numbers(program).eval(), operands()
    compiled = einops_fast.compile(model, then="eager", dynamic=dynamic)
    with fusions() as log:
        for scale in (0.3, 0.7, 1.5):
            model.scale = scale
            is_as_written(compiled, model, given)
    assert len(log.fused) == 3, str(log)
    model.train()
    with fusions() as log:
        compiled(*given)
    assert len(log.fused) == 1, str(log)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_that_a_tensor_holds_is_known_in_the_call_alone(dtype: torch.dtype) -> None:
    def program(q: Any, k: Any, v: Any, scale: Any) -> Any:
        return ((q @ k.mT).float() * scale.item()).softmax(-1).to(v.dtype) @ v

    with torch._dynamo.config.patch(capture_scalar_outputs=True), fusions() as log:
        compiled = einops_fast.compile(program, then="eager")
        for scale in (0.3, 0.9):
            given = [*operands(dtype=dtype), torch.tensor(scale)]
            torch.testing.assert_close(compiled(*given), program(*given), rtol=1e-2, atol=1e-2)
    assert len(log.fused) == (dtype == torch.float32), str(log)
    assert [each.reason for each in log.missed] == ["dtype"] * (dtype != torch.float32)
