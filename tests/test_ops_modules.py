"""The modules made of the operators: drop-in for torch's, with the same state."""

from __future__ import annotations

import doctest
from importlib import import_module
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytest.importorskip("triton")
from ops_problems import DEVICE, gradients, kernels, leaf, randn  # noqa: E402

from einops_fast import nn  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:(invalid|divide|overflow):RuntimeWarning")

PAIRS: dict[str, tuple[Any, Any]] = {
    "softmax": (lambda ours: ours.Softmax(dim=1), (2, 3, 5)),
    "log softmax": (lambda ours: ours.LogSoftmax(dim=-1), (2, 3, 5)),
    "layer norm": (lambda ours: ours.LayerNorm((3, 5), eps=1e-3), (2, 3, 5)),
    "layer norm without a bias": (lambda ours: ours.LayerNorm(5, bias=False), (2, 3, 5)),
    "rms norm": (lambda ours: ours.RMSNorm(5), (2, 3, 5)),
}


@pytest.mark.parametrize("by_kernels", [True, False])
@pytest.mark.parametrize("name", PAIRS)
def test_as_torch(name: str, by_kernels: bool) -> None:
    make, shape = PAIRS[name]
    theirs = make(torch.nn).double().to(DEVICE)
    for at, parameter in enumerate(theirs.parameters()):
        parameter.data = randn(*parameter.shape, seed=at)
    ours = make(nn).double().to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x = leaf(randn(*shape))
    expected = gradients(lambda x, *_: theirs(x), [x, *theirs.parameters()])
    if by_kernels:
        with kernels():
            found = gradients(lambda x, *_: ours(x), [x, *ours.parameters()])
    else:
        found = gradients(lambda x, *_: ours(x), [x, *ours.parameters()])
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)])
def test_loss_as_torch(shape: tuple[int, ...]) -> None:
    weight = randn(5).abs()
    target = torch.arange(24, device=DEVICE)[: randn(*shape).numel() // 5].view(
        shape[:1] * (len(shape) > 1) + shape[2:]
    )
    x, target = leaf(randn(*shape)), target % 5
    for options in ({}, {"weight": weight, "ignore_index": 1, "label_smoothing": 0.2}, {"reduction": "sum"}):
        theirs, ours = torch.nn.CrossEntropyLoss(**options), nn.CrossEntropyLoss(**options)
        expected = gradients(lambda x, loss=theirs: loss(x, target), [x])
        with kernels():
            found = gradients(lambda x, loss=ours: loss(x, target), [x])
        torch.testing.assert_close(found, expected)


def test_probabilities_as_targets() -> None:
    x, target = leaf(randn(4, 5, 3)), randn(4, 5, 3, seed=1).softmax(1)
    with kernels(queued=False):
        torch.testing.assert_close(nn.CrossEntropyLoss()(x, target), torch.nn.CrossEntropyLoss()(x, target))


def test_dropout_add_layer_norm() -> None:
    norm = nn.DropoutAddLayerNorm(7, p=0.5, prenorm=True).double().to(DEVICE)
    assert list(norm.state_dict()) == ["weight", "bias"]
    x = randn(30, 7)
    with kernels():
        _, summed = norm(x, torch.zeros_like(x))
        assert 0.3 < float((summed == 0).double().mean()) < 0.7
        found, summed = norm.eval()(x, x)
    assert torch.equal(summed, x + x)
    torch.testing.assert_close(found, torch.nn.functional.layer_norm(x + x, (7,)))


def test_fused_linear() -> None:
    layer = nn.FusedLinear(6, 5, activation="gelu").double().to(DEVICE)
    assert list(layer.state_dict()) == ["weight", "bias"]
    x = leaf(randn(3, 6))
    expected = gradients(
        lambda x, w, b: torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)), [x, *layer.parameters()]
    )
    with kernels():
        torch.testing.assert_close(gradients(lambda x, *_: layer(x), [x, *layer.parameters()]), expected)


@pytest.mark.parametrize("module", ["softmax", "norm", "loss", "linear"])
def test_examples(module: str) -> None:
    assert doctest.testmod(import_module(f"einops_fast.nn.{module}")).failed == 0
