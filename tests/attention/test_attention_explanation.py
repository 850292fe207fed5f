"""What is predicted and said of an attention without computing it: FLOPs, bytes, times, and who can do it."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_spec import SPEC

from einops_fast import OperandError, attention, attention_backend, explain_attention
from einops_fast.attention.memory import score_memory
from einops_fast.attention.options import Options
from einops_fast.attention.prediction import attention_bytes, attention_flops, fused_seconds, unfused_seconds
from einops_fast.backends.gpus import gpu_ceilings

Q = np.ones((2, 3, 4))
PATTERN = "b i d, b j d, b j e -> b i e"


def test_flops_count_what_is_seen():
    assert attention_flops(SPEC) == SPEC.flops == 4 * 16 * 1000 * 1000 * 64
    assert attention_flops(replace(SPEC, gradients=True)) == 3.5 * SPEC.flops
    causal = attention_flops(replace(SPEC, causal=True))
    assert abs(causal / SPEC.flops - 0.5) < 0.01
    band = attention_flops(replace(SPEC, window=(50, 49)))
    assert abs(band / SPEC.flops - 0.1) < 0.01
    decode = replace(SPEC, q_len=1, causal=True, alignment="bottom_right")
    assert attention_flops(decode) == pytest.approx(decode.flops, rel=0.01)
    assert attention_flops(replace(SPEC, kv_len=0)) == 0
    assert attention_bytes(SPEC) == 4 * 16 * 1000 * 64 * 2


@pytest.mark.parametrize("cached", [1024, 65536])
def test_one_query_takes_as_long_as_its_keys_are_read(cached):
    """By fused kernels, whose tiles are full of the queries of heads that share keys; not where scores are written."""
    on = gpu_ceilings("NVIDIA H200")
    decode = replace(
        SPEC, batch=(128, 4, 8), q_batch=(128, 4, 8), k_batch=(128, 4, 1), v_batch=(128, 4, 1), q_len=1, kv_len=cached,
        head_dim=128, v_head_dim=128,
    )  # fmt: skip
    assert decode.group == 8
    assert replace(decode, k_batch=(9999, 4, 1), page_size=16).group == 8
    read = attention_bytes(decode) / on.bandwidth
    for efficiency in (0.5, 0.8):
        assert read <= fused_seconds(decode, on, efficiency) <= read + 2 * on.call
    assert unfused_seconds(decode, on) > 4 * read


def test_explanation_says_all_of_it():
    found = explain_attention(PATTERN, Q, Q, Q, causal=True, window=(2, None), bias=np.ones((3, 3)), softcap=5.0)
    assert (found.implementation, found.device) == ("math", "cpu")
    assert found.seconds == found.predicted["math"] > 0
    assert "predicted to take" in str(found)
    assert found.answers["math"] == "can"
    assert found.answers["cudnn"] == "it takes torch arrays only"
    text = str(found)
    for part in ("by math: ", "causality (top_left)", "window (2, None)", "softcap 5", "a bias", "of scores at a time"):
        assert part in text
    with score_memory(8):
        assert found.score_bytes == 8
    with pytest.raises(ValueError, match="no 'casual'; did you mean 'causal'"):
        explain_attention(PATTERN, Q, Q, Q, casual=True)
    with pytest.raises(OperandError, match="cpu: it takes torch arrays only"), attention_backend("cpu"):
        explain_attention(PATTERN, Q, Q, Q)


def test_options_of_attention_have_one_default():
    parameters = inspect.signature(attention).parameters
    assert {name: parameters[name].default for name in Options._fields} == Options._field_defaults


def test_explanation_of_tensors(torch):
    q = torch.ones(2, 3, 4, 8, requires_grad=True)
    found = explain_attention(q, q, q, layout="bshd")
    assert found.implementation == "cpu"
    assert found.spec.gradients
    assert found.answers["flash"] == "it is for tensors on NVIDIA GPUs"
    assert found.flops == 3.5 * found.spec.flops
    nested = torch.nested.nested_tensor([torch.ones(2, 4, 8), torch.ones(5, 4, 8)], layout=torch.jagged)
    found = explain_attention(nested, nested, nested, layout="bshd")
    assert (found.implementation, found.spec.varlen, found.spec.q_len) == ("math", True, 5)


def test_explanation_predicts_in_a_block_too(torch):
    q = torch.ones(2, 300, 4, 8)
    with attention_backend("math", "cpu"):
        found = explain_attention(q, q, q, layout="bshd")
    assert found.predicted.keys() == {"math", "cpu"}
    assert found.seconds == found.predicted["math"] > found.predicted["cpu"] > 0


@pytest.mark.parametrize("causal", [False, "bottom_right"])
def test_explanation_counts_packed_sequences_as_long_as_they_are(causal):
    q, k = np.ones((30, 2, 8), "f"), np.ones((40, 2, 8), "f")
    lengths = {"cu_seqlens_q": np.array([0, 10, 10, 30]), "cu_seqlens_kv": np.array([0, 5, 15, 40])}
    found = explain_attention(q, k, k, layout="thd", **lengths, causal=causal)
    parts = [
        explain_attention(q[:i], k[:j], k[:j], layout="thd", causal=causal, cu_seqlens_q=np.array([0, i]),
                          cu_seqlens_kv=np.array([0, j])).flops
        for i, j in ((10, 5), (0, 10), (20, 25))
    ]  # fmt: skip
    assert found.flops == sum(parts)
    assert causal or found.flops == 4 * 2 * 8 * (10 * 5 + 20 * 25)
    assert found.moved_bytes == 4 * (2 * q.size + 2 * k.size)
    assert found.lengths_known
    assert "as the longest" not in str(found)
    assert "if each sequence were as long as the longest" in str(replace(found, lengths_known=False))


def test_the_table_in_the_documentation_is_what_the_implementations_say():
    pytest.importorskip("torch")
    from einops_fast.attention.features import feature_table

    text = (Path(__file__).parents[2] / "docs" / "reference" / "attention.md").read_text(encoding="utf-8")
    table = feature_table()
    assert table in text, "update the table with: python -m einops_fast.attention.features"
