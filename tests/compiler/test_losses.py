"""Cross entropy of a linear layer is fused where there are many logits, which nobody else needs."""

from typing import Any

import fused_programs
import pytest
import torch
import torch.nn.functional as F
from fused_programs import Program

from einops_fast.compiler import losses
from einops_fast.compiler.report import FusionLog

B, T, D, V = 2, 7, 8, 50


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_MANY", 100)


def operands(dtype: Any = torch.float32) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(0)
    target = torch.randint(0, V, (B, T), generator=generator)
    target[0, 3] = -100
    made = [torch.randn(shape, generator=generator) for shape in ((B, T, D), (V, D), (V,))]
    return (*[each.to(dtype).requires_grad_() for each in made], target)


FUSED: dict[str, Program] = {
    "rows": lambda x, w, b, y: F.cross_entropy(F.linear(x, w).view(-1, V), y.view(-1)),
    "bias": lambda x, w, b, y: F.cross_entropy(F.linear(x, w, b).flatten(0, 1), y.flatten(), reduction="sum"),
    "product": lambda x, w, b, y: F.cross_entropy((x @ w.t()).transpose(1, 2), y, reduction="none").square().sum(),
    "einsum": lambda x, w, b, y: F.cross_entropy(torch.einsum("btd,vd->btv", x, w).reshape(-1, V), y.reshape(-1)),
    "options": lambda x, w, b, y: F.cross_entropy(
        F.linear(x, w).permute(0, 2, 1), y.clamp(min=3), b.detach().exp(), ignore_index=3, label_smoothing=0.1
    ),
    "shifted": lambda x, w, b, y: F.cross_entropy(
        F.linear(x, w)[..., :-1, :].contiguous().view(-1, V), y[..., 1:].contiguous().view(-1)
    ),
    "every_other_row": lambda x, w, b, y: F.cross_entropy(
        F.linear(x, w, b)[:, ::2].reshape(-1, V).float(), y[:, ::2].reshape(-1)
    ),
}

LEFT: dict[str, tuple[Program, str]] = {
    "logits_used": (
        lambda x, w, b, y: (lambda z: F.cross_entropy(z.view(-1, V), y.view(-1)) + z.mean())(F.linear(x, w)),
        "value used elsewhere",
    ),
    "rows_transposed": (
        lambda x, w, b, y: F.cross_entropy(F.linear(x, w).transpose(0, 1).reshape(-1, V), y.view(-1)),
        "different loop order",
    ),
    "batch_for_classes": (
        lambda x, w, b, y: F.cross_entropy(torch.einsum("btd,vd->vbt", x, w), torch.zeros(V, T, dtype=torch.long)),
        "different loop order",
    ),
    "scaled": (lambda x, w, b, y: F.cross_entropy(2 * F.linear(x, w).view(-1, V), y.view(-1)), ""),
    "some_classes": (lambda x, w, b, y: F.cross_entropy(F.linear(x, w)[..., :40].reshape(-1, 40), y.view(-1) % 40), ""),
    "rows_turned": (lambda x, w, b, y: F.cross_entropy(F.linear(x, w).roll(1, 1).view(-1, V), y.view(-1)), ""),
    "probabilities": (
        lambda x, w, b, y: F.cross_entropy(F.linear(x, w).view(-1, V), torch.linspace(0, 1, V).expand(B * T, V)),
        "",
    ),
    "written_operand": (lambda x, w, b, y: written_meanwhile(x, w, y), "mutation"),
    "bias_of_rows": (
        lambda x, w, b, y: F.cross_entropy(
            torch.baddbmm(x.mean(-1, keepdim=True), x, w.t().expand(B, D, V)).view(-1, V), y.view(-1)
        ),
        "different loop order",
    ),
}


def written_meanwhile(x: Any, w: Any, y: Any) -> Any:
    hidden = torch.ones(B, T, D, dtype=w.dtype)
    logits = F.linear(hidden, w.detach())
    hidden.mul_(2)
    return F.cross_entropy(logits.view(-1, V), y.view(-1)) + x.sum() + w.sum()


def check(program: Program, dtype: Any = torch.float32, **options: Any) -> FusionLog:
    return fused_programs.check(program, operands(dtype), close=2e-4 if dtype == torch.float32 else 2e-2, **options)


@pytest.mark.parametrize("name", FUSED)
def test_a_loss_is_fused(name: str) -> None:
    log = check(FUSED[name])
    assert [each.what for each in log.fused] == ["linear cross entropy"], str(log)
    assert log.fused[0].sizes == {"a": B, "b": T, "c": D, "d": V}
    assert log.fused[0].saved == 2 * 4 * B * T * V


@pytest.mark.parametrize("name", LEFT)
def test_another_one_is_left_alone(name: str) -> None:
    program, reason = LEFT[name]
    log = check(program)
    assert not log.fused, str(log)
    assert [each.reason for each in log.missed] == ([reason] if reason else []), str(log)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_loss_in_float32_stays_one(dtype: Any) -> None:
    def program(x: Any, w: Any, b: Any, y: Any) -> Any:
        return F.cross_entropy(F.linear(x, w, b).view(-1, V).float(), y.view(-1))

    assert len(check(program, dtype).fused) == 1


def test_few_logits_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    log = check(FUSED["rows"])
    assert not log.fused
    assert [each.reason for each in log.missed] == ["not worth it"]
