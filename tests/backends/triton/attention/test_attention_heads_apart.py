"""Gradients of keys that several heads share: each head's of its own, and then summed up, where that pays."""

from typing import Any

import pytest
from attention_problems import attention, check

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention import gradients as torch_attention_gradients
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.backends.triton.attention.around.heads_apart import pays_apart


def spec_of(batch: int, kv_heads: int, share: int, length: int, head_dim: int, **options: Any) -> AttentionSpec:
    keys = batch, kv_heads, 1
    whole = batch, kv_heads, share
    return AttentionSpec(whole, whole, keys, keys, length, length, head_dim, head_dim, "bfloat16", 1.0, **options)


@pytest.mark.parametrize(
    ("spec", "pays"),
    [
        (spec_of(1, 8, 4, 4096, 128, causal=True), False),  # twice as many tiles as multiprocessors
        (spec_of(2, 8, 4, 4096, 128), False),
        (spec_of(1, 4, 7, 3000, 128, causal=True), True),  # 96 tiles
        (spec_of(1, 1, 8, 4096, 256, causal=True), True),  # 32
        (spec_of(1, 9, 8, 2048, 128), True),  # 144, which leaves most of a second round empty
        (spec_of(1, 1, 8, 64, 64), False),  # too little to do
        (spec_of(1, 1, 1, 4096, 64), False),  # nothing is shared
        (spec_of(1, 1, 8, 4096, 64, varlen=True), False),
        (spec_of(1, 1, 8, 0, 64), False),
    ],
)
def test_where_it_pays(spec: AttentionSpec, pays: bool) -> None:
    assert pays_apart(spec, 132) is pays


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {"batch": (2, 1, 3), "k_batch": (2, 1, 1), "causal": True},
        {"batch": (2, 3), "k_batch": (2, 1), "bias": (1, 3, 21, 37), "sinks": (1, 3)},
        {"batch": (2, 2, 3), "k_batch": (1, 2, 1), "softcap": 3.0},
    ],
)
def test_the_same_gradients(options: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention_gradients, "pays_apart", lambda spec, units: True)
    monkeypatch.setattr(torch_attention_runs, "_calls", {})
    spec, inputs = attention(dtype=dtype, **options)
    check(spec, inputs, tolerance=3e-3 if dtype == "float16" else 0.0)
