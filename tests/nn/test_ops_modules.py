"""The modules made of the operators: drop-in for torch's, with the same state."""

import doctest
from importlib import import_module
from inspect import signature
from typing import Any

import pytest
import torch
from ops_problems import DEVICE, gradients, kernels, leaf, randn, where

from einops_fast import EinsumError, ShapeError, SubscriptsError, nn

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
    with where(by_kernels):
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


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "LayerNorm", "RMSNorm"])
def test_arguments_are_torch_s(name: str) -> None:
    theirs, ours = (signature(getattr(each, name)).parameters for each in (torch.nn, nn))
    assert [(each.name, each.default) for each in theirs.values()] == [
        (each.name, each.default) for each in ours.values() if each.name != "z_loss"
    ]


@pytest.mark.parametrize("name", ["Softmax", "LogSoftmax"])
def test_softmax_without_an_axis(name: str) -> None:
    """As torch's modules where these take the last axis; of more axes they take another one."""
    for x in (randn(4), randn(3, 4)):
        with pytest.warns(UserWarning, match="Implicit dimension"):
            expected = getattr(torch.nn, name)()(x)
        torch.testing.assert_close(getattr(nn, name)()(x), expected)
    with pytest.raises(ShapeError, match=f"^{name} has no dim, which an input of 3 axes needs"):
        getattr(nn, name)()(randn(2, 3, 4))
    assert getattr(nn, name)(pattern="b i j")(randn(2, 3, 4)).shape == (2, 3, 4)


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


MAKE: dict[str, Any] = {
    "BertSelfAttention": lambda **where: nn.BertSelfAttention(8, 2, **where),
    "GPTAttention": lambda **where: nn.GPTAttention(8, 2, **where),
    "CausalSelfAttention": lambda **where: nn.CausalSelfAttention(2, 8, **where),
    "Conv1D": lambda **where: nn.Conv1D(8, 2, **where),
    "FusedDropoutBias": lambda **where: nn.FusedDropoutBias(0.1, 4, **where),
    "MultiHeadAttention": lambda **where: nn.MultiHeadAttention("b i, b j -> b i", 8, 2, **where),
    "QKVSelfAttention": lambda **where: nn.QKVSelfAttention(8, 2, **where),
}


@pytest.mark.parametrize("name", MAKE)
def test_device_and_dtype(name: str) -> None:
    for parameter in MAKE[name](device="meta", dtype=torch.float64).parameters():
        assert (parameter.device.type, parameter.dtype) == ("meta", torch.float64)


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (EinsumError, "'foo' isn't one of", lambda: nn.FusedLinear(3, 4, activation="foo")),
        (EinsumError, "probability", lambda: nn.DropoutAddLayerNorm(7, p=2)),
        (EinsumError, "probability", lambda: nn.QKVSelfAttention(8, 2, dropout=2)),
        (EinsumError, "^num_heads .* not 0", lambda: nn.QKVSelfAttention(8, 0)),
        (EinsumError, "^num_heads .* not 0", lambda: nn.MultiHeadAttention(num_heads=0)),
        (EinsumError, "^num_heads .* not 0", lambda: nn.CausalSelfAttention(0, 8)),
        (EinsumError, "has no .foo", lambda: nn.QKVSelfAttention(8, 2, foo=1)),
        (EinsumError, "^causal .* not 'x'", lambda: nn.QKVSelfAttention(8, 2, is_causal="x")),
        (EinsumError, "^embed_dim .* not 8.0", lambda: nn.QKVSelfAttention(8.0, 2)),
        (EinsumError, "^head_dim .* not -3", lambda: nn.MultiHeadAttention(head_dim=-3)),
        (EinsumError, "^kv_dim .* not 'x'", lambda: nn.MultiHeadAttention(kv_dim="x")),
        (SubscriptsError, "^the pattern .* not None", lambda: nn.MultiHeadAttention(None)),
        (EinsumError, "^attention_probs_dropout_prob .* not 2", lambda: nn.BertSelfAttention(8, 2, 2)),
        (EinsumError, "^attn_pdrop .* not 2", lambda: nn.GPTAttention(8, 2, attn_pdrop=2)),
        (EinsumError, "^scaling .* not 'a'", lambda: nn.GPTAttention(8, 2, scaling="a")),
        (ShapeError, r"last axis, not \(4, 5\)", lambda: nn.DropoutAddLayerNorm((4, 5), elementwise_affine=False)),
        (EinsumError, "temperature", lambda: nn.LogSoftmax(-1, temperature=0)),
        (SubscriptsError, "^axis 'x' has a name", lambda: nn.Softmax("x")),
        (EinsumError, "^dim .* not 1.5", lambda: nn.Softmax(1.5)),
        (EinsumError, "^dtype .* not torch.int32", lambda: nn.Softmax(dtype=torch.int32)),
        (EinsumError, "^normalized_shape .* not True", lambda: nn.RMSNorm(True)),
        (EinsumError, "^normalized_shape .* not '4'", lambda: nn.DropoutAddLayerNorm("4")),
        (EinsumError, "^eps .* not 'x'", lambda: nn.LayerNorm(4, "x")),
        (EinsumError, "^eps .* not 'x'", lambda: nn.RMSNorm(4, "x")),
        (EinsumError, "^in_features .* not True", lambda: nn.FusedLinear(True, 3)),
        (EinsumError, "^out_features .* not -1", lambda: nn.FusedLinear(4, -1)),
        (EinsumError, "^bias_shape .* not -1", lambda: nn.FusedDropoutBias(0.1, (-1,))),
        (EinsumError, "^z_loss .* not -1", lambda: nn.CrossEntropyLoss(z_loss=-1)),
    ],
)
def test_wrong_options_are_refused_at_once(error: Any, message: str, make: Any) -> None:
    with pytest.raises(error, match=message):
        make()


def test_layers_of_no_size_are_torch_s() -> None:
    for sizes in ((0, 3), (3, 0)):
        theirs = torch.nn.utils.skip_init(torch.nn.Linear, *sizes)
        ours = torch.nn.utils.skip_init(nn.FusedLinear, *sizes)
        torch.nn.init.ones_(ours.bias), torch.nn.init.ones_(theirs.bias)
        x = torch.ones(2, sizes[0])
        assert torch.equal(ours(x), theirs(x))
    assert nn.LayerNorm(0)(torch.ones(2, 0)).shape == nn.RMSNorm(0)(torch.ones(2, 0)).shape == (2, 0)
    assert nn.Softmax("i", pattern="bij")(torch.zeros(2, 4, 3))[0, 0, 0] == 0.25  # letters, or one axis of this name


def test_norm_of_another_size() -> None:
    assert nn.FusedDropoutBias(0.1, torch.tensor(7).numpy()[()]).bias.shape == (7,)  # a number of NumPy's
    with pytest.raises(ShapeError, match=r"axis 1 of input of shape \(4, 5\) has size 5, .* 7"):
        nn.DropoutAddLayerNorm(7, elementwise_affine=False)(torch.ones(4, 5))
    for module in (nn.BertSelfAttention(8, 2), nn.GPTAttention(8, 2), nn.CausalSelfAttention(2, 8)):
        with pytest.raises(ShapeError, match=r"^axis 2 of .* has size 5, .* 8 features"):
            module(torch.ones(1, 4, 5))
    with pytest.raises(ShapeError, match=r"^axis 2 of key .* has size 5, .* 8 features"):
        nn.MultiHeadAttention(embed_dim=8)(torch.ones(1, 4, 8), torch.ones(1, 4, 5))


EXAMPLES = "layers causal multihead bert gpt self_attention injection.optimize"


@pytest.mark.parametrize("module", EXAMPLES.split())
def test_examples(module: str) -> None:
    found = doctest.testmod(import_module(f"einops_fast.nn.{module}"), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0
    assert found.attempted
