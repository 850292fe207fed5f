"""torch's `CausalBias` is a mask wherever attention takes one; it has no elements of its own."""

from typing import Any

import pytest
import torch
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from einops_fast import OperandError, attention, nn, ops, scaled_dot_product_attention

MAKERS = pytest.mark.parametrize("make", [causal_lower_right, causal_upper_left])


def values(bias: Any) -> Any:
    shift = bias.seq_len_kv - bias.seq_len_q if bias.variant.name == "LOWER_RIGHT" else 0
    return torch.ones(bias.seq_len_q, bias.seq_len_kv, dtype=torch.bool).tril(shift)


@MAKERS
def test_functions_take_it(make: Any) -> None:
    q, k, bias = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 7, 8), make(5, 7)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, k, attn_mask=values(bias))
    for mask in (bias, values(bias), bias, ("i j", bias)):  # also where a call of these words was kept
        found = attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, mask=mask)
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, bias), expected)
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
def test_it_is_neither_a_bias_nor_a_mask_of_a_softmax(make: Any) -> None:
    q = torch.randn(2, 4, 5, 8)
    with pytest.raises(OperandError, match="bias is a CausalBias: give it as mask"):
        attention(q, q, q, layout="bhsd", bias=make(5, 5))
    with pytest.raises(OperandError, match="mask is a CausalBias"):
        ops.softmax(torch.randn(2, 4, 5, 5), mask=make(5, 5))
