"""Modules of a program's own classes are replaced as its policies say."""

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from python_process import run_python

from einops_fast import EinsumError, attention, nn


class Attention(torch.nn.Module):
    """As programs write it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Any, return_weights: bool = False) -> Any:
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / 2).softmax(-1)
        found = self.out((weights @ v).transpose(1, 2).flatten(-2))
        return (found, weights) if return_weights else found


class Wider(Attention):
    """Not what the policy is for."""


calls: list[Any] = []


def fused(module: Any, x: Any, return_weights: bool = False) -> Any:
    if return_weights:
        return NotImplemented
    if not torch.compiler.is_compiling():
        calls.append(module)
    q, k, v = module.qkv(x).unflatten(-1, (3, 4, 4)).unbind(2)
    return module.out(attention(q, k, v, layout="bshd").flatten(-2))


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(Attention(), Wider(), Attention())


@pytest.fixture(autouse=True)
def policy() -> Iterator[None]:
    calls.clear()
    nn.register_policy(Attention, fused, "attention on views")
    yield
    nn.register_policy(Attention, None)


def test_modules_of_the_class_are_replaced_and_restored() -> None:
    made, x = model(), torch.randn(2, 5, 16)
    expected = made(x)
    report = nn.optimize(made)
    assert [(row.name, row.now) for row in report.replaced] == [
        ("0", "attention on views"),
        ("2", "attention on views"),
    ]
    assert isinstance(made[0], Attention)
    torch.testing.assert_close(made(x), expected)
    assert calls == [made[0], made[2]]
    torch.testing.assert_close(torch.compile(made, backend="aot_eager", fullgraph=True)(x), expected)
    assert nn.restore(made) == 2
    assert type(made[0]) is Attention


def test_calls_that_it_does_not_take_are_for_the_original() -> None:
    made, x = model()[0], torch.randn(2, 5, 16)
    nn.optimize(made)
    found, weights = made(x, return_weights=True)
    torch.testing.assert_close(found, made(x))
    assert weights.shape == (2, 4, 5, 5)
    assert len(calls) == 1


def test_another_forward_is_called_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    made, x = model()[0], torch.randn(2, 5, 16)
    nn.optimize(made)
    with monkeypatch.context() as patch:
        patch.setattr(Attention, "forward", lambda self, x: 2 * x)
        assert made(x).equal(2 * x)
    made(x)
    assert len(calls) == 1


@pytest.mark.parametrize("way", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))], ids=["copy", "pickle"])
def test_copies_are_replaced_where_the_policy_is_known(way: Any) -> None:
    made, x = model(), torch.randn(2, 5, 16)
    nn.optimize(made)
    copied = way(made)
    assert copied(x).equal(made(x))
    assert calls == [copied[0], copied[2], made[0], made[2]]
    nn.register_policy(Attention, None)
    assert type(way(made)[0]) is Attention
    torch.testing.assert_close(way(made)(x), made(x))


def test_a_forgotten_class_is_left_alone() -> None:
    nn.register_policy(Attention, None)
    assert nn.optimize(model()[:1]).replaced == ()


@pytest.mark.parametrize(("kind", "forward"), [(Attention(), fused), (int, fused), (Attention, "fused")])
def test_wrong_arguments_are_refused(kind: Any, forward: Any) -> None:
    with pytest.raises(EinsumError, match=r"kind is a class|forward is a function"):
        nn.register_policy(kind, forward)


def test_without_transformers() -> None:
    """Models that aren't transformers' don't need it."""
    script = """
import sys, torch
from einops_fast import nn
class BertSelfAttention(torch.nn.Module):
    pass
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = torch.nn.ModuleDict({"layer": layer, "own": BertSelfAttention(), "loss": torch.nn.CrossEntropyLoss()}).eval()
x = torch.randn(2, 3, 8)
expected = layer(x)
reasons = {row.name: row.now or row.reason for row in nn.optimize(model).rows}
torch.testing.assert_close(layer(x), expected)
torch.testing.assert_close(model["loss"](x[0], torch.arange(3)), torch.nn.CrossEntropyLoss()(x[0], torch.arange(3)))
assert reasons["layer.norm1"] == "ops.layer_norm", reasons
assert reasons["loss"] == "ops.cross_entropy", reasons
assert reasons["own"] == "not transformers' class of this name", reasons
assert "transformers" not in sys.modules
"""
    run_python("-c", script)
