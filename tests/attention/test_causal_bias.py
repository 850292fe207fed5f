"""torch's `CausalBias` is a mask wherever attention takes one; it has no elements of its own."""

from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as native

from einops_fast import OperandError, ShapeError, attention, nn, ops, patched, scaled_dot_product_attention

MAKERS = pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])


def values(bias: Any) -> Any:
    shift = bias.seq_len_kv - bias.seq_len_q if bias.variant.name == "LOWER_RIGHT" else 0
    return torch.ones(bias.seq_len_q, bias.seq_len_kv, dtype=torch.bool).tril(shift)


@MAKERS
def test_functions_take_it(make: Any) -> None:
    q, k, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), make(5, 7)
    expected = native(q, k, k, attn_mask=values(bias))
    for mask in (bias, values(bias), bias, ("i j", bias)):  # also where a call of these words was kept
        found = attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, mask=mask)
        torch.testing.assert_close(found, expected)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(q, k, k, layout="bhsd", mask=bias), expected)


@MAKERS
@pytest.mark.parametrize("kind", ["qkv", "multihead", "bert", "gpt"])
def test_modules_take_it(kind: str, make: Any) -> None:
    x, bias = torch.randn(2, 5, 16), make(5, 5)
    modules = {
        "qkv": lambda: nn.QKVSelfAttention(16, 4),
        "multihead": lambda: nn.MultiHeadAttention("b i, b j -> b i", 16, 4),
        "bert": lambda: nn.BertSelfAttention(16, 4),
        "gpt": lambda: nn.GPTAttention(16, 4),
    }
    module: Any = modules[kind]().eval()
    name = {"qkv": "attn_mask", "multihead": "mask"}.get(kind, "attention_mask")
    seen = values(bias) if kind in ("qkv", "multihead") else values(bias)[None, None]
    found, expected = module(x, **{name: bias}), module(x, **{name: seen})
    torch.testing.assert_close(found, expected)


@MAKERS
def test_it_is_the_mask_of_a_softmax(make: Any) -> None:
    scores, bias = torch.randn(2, 4, 5, 7), make(5, 7)
    for function in (ops.softmax, ops.log_softmax, nn.Softmax(-1), nn.LogSoftmax(-1)):
        torch.testing.assert_close(function(scores, mask=bias), function(scores, mask=values(bias)))
    with pytest.raises(ShapeError, match="size 7"):
        ops.softmax(scores[..., :6], mask=bias)


@MAKERS
def test_it_is_no_bias_and_none_of_other_frameworks(make: Any) -> None:
    q = torch.randn(2, 4, 5, 8)
    with pytest.raises(OperandError, match="bias is a CausalBias: give it as mask"):
        attention(q, q, q, layout="bhsd", bias=make(5, 5))
    with pytest.raises(OperandError, match="torch"):
        attention(q.numpy(), q.numpy(), q.numpy(), layout="bhsd", mask=make(5, 5))
    with pytest.raises(OperandError, match="mask is of type Tensor"):
        ops.softmax(q.numpy(), mask=make(5, 8))


@MAKERS
@pytest.mark.parametrize("lengths", [(4, 4), (4, 6), (6, 4)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_torchs_function_is_matched(make: Any, lengths: tuple[int, int]) -> None:
    bias = make(*lengths)
    q, k = torch.rand(2, 3, lengths[0], 8), torch.rand(2, 3, lengths[1], 8)
    expected = native(q, k, k, attn_mask=bias).nan_to_num()  # of queries without keys
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, attn_mask=bias), expected)
    with patched("torch.sdpa"):
        found = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=bias)
    torch.testing.assert_close(found.nan_to_num(), expected)


def test_it_has_to_fit() -> None:
    bias, q = causal_upper_left(4, 6), torch.rand(1, 5, 8)
    with pytest.raises(ShapeError, match="of 4 queries and 6 keys, but query has 5 and key has 5"):
        scaled_dot_product_attention(q, q, q, attn_mask=bias)
    with pytest.raises(OperandError, match="is_causal"):
        scaled_dot_product_attention(q[:, :4], torch.rand(1, 6, 8), torch.rand(1, 6, 8), attn_mask=bias, is_causal=True)
    for given in (bias, ("i j", bias)):
        with pytest.raises(ShapeError, match="'i'"):
            attention("b i d, b j d, b j e -> b i e", q, q, q, mask=given)
