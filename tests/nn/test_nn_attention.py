"""Self-attention from one packed projection, and the modules beside it that transformers and xFormers have."""

from importlib import import_module
from typing import Any
from unittest import mock

import pytest
import torch
from ops_problems import DEVICE, gradients, kernels, leaf, randn

from einops_fast import EinsumError, OperandError, ShapeError, nn, ops

F = torch.nn.functional


def by_torch(x: Any, weight: Any, bias: Any, heads: int, kv_heads: int, mask: Any, causal: bool) -> Any:
    """By torch's function; a mask beside ``causal`` is boolean."""
    if causal:
        ends = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril()
        mask = (
            ends if mask is None else mask & ends if mask.dtype == torch.bool else mask.masked_fill(~ends, -torch.inf)
        )
    size = weight.shape[0] // (heads + 2 * kv_heads)
    packed = F.linear(x, weight, bias).unflatten(-1, (-1, size)).transpose(-3, -2)
    q, k, v = packed.split((heads, kv_heads, kv_heads), -3)
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(-3, -2).flatten(-2)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("masked", "causal"), [(None, False), (None, True), ("bool", True), ("float64", False)])
def test_packed_as_torch(kv_heads: int, masked: str | None, causal: bool) -> None:
    x, weight = leaf(randn(2, 5, 12)), leaf(randn(3 * (4 + 2 * kv_heads), 12, seed=1))
    bias = leaf(randn(3 * (4 + 2 * kv_heads), seed=2))
    mask = None if masked is None else randn(2, 1, 5, 5, seed=3)
    if masked == "bool":
        mask = (mask > 0) | torch.eye(5, dtype=torch.bool, device=DEVICE)
    found = gradients(
        lambda x, w, b: ops.qkv_self_attention(x, 4, w, b, mask, is_causal=causal, num_kv_heads=kv_heads),
        [x, weight, bias],
    )
    expected = gradients(lambda x, w, b: by_torch(x, w, b, 4, kv_heads, mask, causal), [x, weight, bias])
    torch.testing.assert_close(found, expected)


def test_packed_is_not_copied() -> None:
    seen: list[Any] = []
    attention = import_module("einops_fast.ops.self_attention").attention

    def watched(pattern: str, *arrays: Any, **options: Any) -> Any:
        seen.extend(arrays)
        return attention(pattern, *arrays, **options)

    with mock.patch("einops_fast.ops.self_attention.attention", watched):
        ops.qkv_self_attention(randn(2, 5, 12), 4, randn(24, 12), num_kv_heads=2)
    assert len({array.untyped_storage().data_ptr() for array in seen}) == 1
    assert [array.storage_offset() for array in seen] == [0, 12, 18]


@pytest.mark.parametrize(
    ("error", "message", "arguments", "options"),
    [
        (ShapeError, "multiple of 6", (randn(2, 5, 8), 2, randn(20, 8)), {}),
        (ShapeError, "isn't a multiple of num_kv_heads 2", (randn(2, 5, 8), 3, randn(21, 8)), {"num_kv_heads": 2}),
        (ShapeError, "input has shape", (randn(8), 2, randn(24, 8)), {}),
        (ShapeError, r"^axis 1 of in_proj_weight .* size 9, .*axis 2 of input", (randn(2, 5, 8), 2, randn(24, 9)), {}),
        (ShapeError, "^axis 0 of in_proj_bias .* 24", (randn(2, 5, 8), 2, randn(24, 8), randn(8)), {}),
        (ShapeError, "^axis 0 of attn_mask .* 4, .* 5", (randn(2, 5, 8), 2, randn(24, 8)), {"attn_mask": randn(4, 5)}),
        (OperandError, "^attn_mask .* not int64", (randn(2, 5, 8), 2, randn(24, 8)), {"attn_mask": randn(5, 5).long()}),
        (OperandError, "needs in_proj_weight", (randn(2, 5, 8), 2, None), {}),
    ],
)
def test_packed_refuses(error: Any, message: str, arguments: Any, options: Any) -> None:
    with pytest.raises(error, match=message):
        ops.qkv_self_attention(*arguments, **options)


@pytest.mark.parametrize("bias", [True, False])
def test_as_multihead_attention(bias: bool) -> None:
    theirs = torch.nn.MultiheadAttention(12, 3, bias=bias, batch_first=True).double().to(DEVICE)
    for at, parameter in enumerate(theirs.parameters()):
        parameter.data = randn(*parameter.shape, seed=at)
    ours = nn.QKVSelfAttention(12, 3, bias=bias).double().to(DEVICE)
    ours.load_state_dict(theirs.state_dict())
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    x, hidden = leaf(randn(2, 5, 12)), torch.triu(torch.ones(5, 5, dtype=torch.bool, device=DEVICE), 1)
    expected = gradients(lambda x, *_: theirs(x, x, x, attn_mask=hidden)[0], [x, *theirs.parameters()])
    torch.testing.assert_close(gradients(lambda x, *_: ours(x, ~hidden), [x, *ours.parameters()]), expected)
    ours.is_causal = True
    torch.testing.assert_close(gradients(lambda x, *_: ours(x), [x, *ours.parameters()]), expected)


def test_fused_dropout_bias() -> None:
    module = nn.FusedDropoutBias(0.25, (6,), "squared_relu").double().to(DEVICE)
    assert [*module.state_dict()] == ["bias"]
    module.bias.data = randn(6, seed=1)
    x = leaf(randn(400, 6))
    with kernels():
        dropped = module(x)
        found = gradients(lambda x, *_: module.eval()(x), [x, module.bias])
    expected = gradients(lambda x, b: F.relu(x + b).square(), [x, module.bias])
    torch.testing.assert_close(found, expected)
    kept = dropped != 0
    assert 0.68 < float(kept.sum() / (expected[0] != 0).sum()) < 0.82
    torch.testing.assert_close(dropped[kept], (expected[0] / 0.75)[kept])
    assert not [*nn.FusedDropoutBias(0.1, None).parameters()]
    for wrong in ((1.5, 6, None), (0.1, (2, 3), None), (0.1, 6, "tanh")):
        with pytest.raises(EinsumError):
            nn.FusedDropoutBias(*wrong)


def test_modules_refuse_what_they_would_ignore() -> None:
    x = randn(1, 3, 8, dtype="float32")
    for module in (nn.BertSelfAttention(8, 2).to(DEVICE), nn.GPTAttention(8, 2).to(DEVICE)):
        with pytest.raises(EinsumError, match="output_attentions"):
            module(x, output_attentions=True)
        with pytest.raises(EinsumError, match="encoder_hidden_states"):
            module(x, encoder_hidden_states=x)
    for wrong in (nn.BertSelfAttention, nn.GPTAttention, nn.QKVSelfAttention):
        with pytest.raises(ShapeError, match="isn't a multiple"):
            wrong(9, 2)
    with pytest.raises(ShapeError, match="isn't a multiple"):
        nn.CausalSelfAttention(2, 9)


@pytest.mark.parametrize("module", ["BertSelfAttention", "GPTAttention"])
def test_all_weights_are_dropped(module: str) -> None:
    """A probability of 1 leaves nothing, and nothing of the gradient of what was dropped."""
    drops = "attention_probs_dropout_prob" if module == "BertSelfAttention" else "attn_pdrop"
    attention = getattr(nn, module)(8, 2, **{drops: 1.0}).train()
    whole = getattr(nn, module)(8, 2, **{drops: 1.0}).eval()
    x = torch.randn(3, 5, 8, requires_grad=True)
    found = attention(x)[0]
    lone = attention(torch.zeros(3, 5, 8))[0]
    torch.testing.assert_close(found, lone)
    (gradient,) = torch.autograd.grad(found.sum(), x)
    assert not gradient.any()
    assert whole(x)[0].std(1).any()


def test_a_mask_of_other_axes_is_refused() -> None:
    with pytest.raises(EinsumError, match=r"a mask has four axes .*not shape \(2, 3\)"):
        nn.BertSelfAttention(4, 2)(torch.randn(2, 3, 4), torch.zeros(2, 3))
