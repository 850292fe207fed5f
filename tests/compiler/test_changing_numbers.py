"""Numbers of Python that change from call to call, and the name, modes and options of the backend."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fused_programs import attend, operands
from torch import nn

import einops_fast
from einops_fast import EinsumError, fusions, patched

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


def in_a_product(own, q, k, v):
    """As BLOOM's: a bias of distances, which the product is added to."""
    rows, keys = [each.flatten(0, -3) for each in (q, k)]
    bias = torch.arange(k.shape[-2]).to(q.dtype).expand(rows.shape[0], 1, -1)
    scores = bias.baddbmm(rows, keys.mT, beta=own.p, alpha=own.scale)
    return scores.view(*q.shape[:-1], -1).softmax(-1) @ v


def with_a_part_of_a_bias(own, q, k, v):
    """As MPT's, made for longer sequences."""
    bias = torch.arange(-40.0, 0).to(q.dtype)[None]
    return (own.scale * (q @ k.mT) + bias[:, max(0, bias.size(1) - k.size(-2)) :]).softmax(-1) @ v


def mask_of(scores):
    return torch.ones(scores.shape[-2:], dtype=torch.bool).tril()


PROGRAMS = (
    by_module, by_function, beside_a_mask, within_a_softcap, in_float32, of_scores, in_a_product, with_a_part_of_a_bias,
)  # fmt: skip


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


def test_the_next_backend_may_be_among_the_options() -> None:
    with fusions() as log:
        einops_fast.compile(attend, options={"then": "eager"})(*operands())
    assert len(log.fused) == 1
    with pytest.raises(EinsumError, match=r"then='aot_eager', but options has then='eager'"):
        einops_fast.compile(attend, then="aot_eager", options={"then": "eager"})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of inductor, by their arguments; a stand-in records them and compiles nothing."""
    given: list[Any] = []

    def inductor(*options: Any) -> Any:
        def compiled(module: Any, inputs: Any) -> Any:
            given.append(options)
            return module.forward

        return compiled

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", inductor)
    return given


def test_a_mode_reaches_inductor(given: list[Any]) -> None:
    with fusions() as log:
        einops_fast.compile(attend, mode="max-autotune", options={"shape_padding": True})(*operands())
    assert len(log.fused) == 1
    assert given == [("max-autotune", {"shape_padding": True}, None)]
    with pytest.raises(Exception, match=r"takes no options and no mode, but got mode='max-autotune'"):
        einops_fast.compile(attend, then="eager", mode="max-autotune")(*operands())


def test_torch_compile_is_patched_and_put_back(given: list[Any]) -> None:
    native = torch.compile
    with fusions() as log:
        with patched("torch.compile"):
            assert torch.compile is native
            torch.compile(attend, mode="max-autotune-no-cudagraphs")(*operands())
            torch._dynamo.reset()
            torch.compile(attend, backend="eager")(*operands())  # others are left alone

            @torch.compile(dynamic=False)
            def decorated(q: Any, k: Any, v: Any) -> Any:
                return attend(q, k, v)

            decorated(*operands())
        torch._dynamo.reset()
        torch.compile(attend, backend="eager")(*operands())
    assert len(log.fused) == 2
    assert given == [("max-autotune-no-cudagraphs", {}, None), (None, {}, None)]


def test_the_backend_has_a_name_where_it_is_installed() -> None:
    from torch._dynamo import list_backends

    if "einops_fast" not in list_backends(exclude_tags=None):
        pytest.skip("the package that is installed is an older one")
    with fusions() as log:
        torch.compile(attend, backend="einops_fast", options={"then": "eager"})(*operands())
    assert len(log.fused) == 1


def test_options_that_another_backend_does_not_take_are_refused() -> None:
    with pytest.raises(EinsumError, match="the backend 'eager' takes no options and no mode, but got max_autotune"):
        einops_fast.compile(attend, then="eager", options={"max_autotune": True})


@pytest.mark.parametrize(
    "wrong", [{"mode": "fastest"}, {"options": {"fastest": True}}, {"options": {"max_autotune": "yes"}}], ids=str
)
def test_what_inductor_has_not_is_refused_before_a_first_call(wrong: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError) as native:
        torch.compile(attend, **wrong)
    with patched("torch.compile"):
        for call in (lambda: torch.compile(attend, **wrong), lambda: torch.compile(**wrong)(attend)):
            with pytest.raises(RuntimeError) as error:
                call()
            assert str(error.value) == str(native.value)
        torch.compile(attend, options={"guard_filter_fn": lambda guards: [True for _ in guards]})  # Dynamo's own
    with pytest.raises(RuntimeError, match=re.escape(str(native.value)[:40])):
        einops_fast.compile(attend, **wrong)
    with pytest.raises(Exception, match="Invalid backend: 'fastest'"):
        einops_fast.compile(attend, then="fastest")
