"""The attention kernels where only a GPU can show it: half precision at full size, graphs, huge arrays."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from attention_problems import attention, check_low_precision, leaves, oracle, randn, rms, run
from graphs import captured

from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention import call as torch_attention

pytestmark = pytest.mark.gpu


CASES = [
    (2049, 2049, 64, 64, True, None),
    (1023, 2049, 128, 128, True, None),
    (513, 300, 80, 40, False, None),
    (129, 2049, 256, 256, True, None),
    (1000, 1000, 64, 64, True, (1, 3, 1000, 1000)),
    (300, 513, 33, 100, False, (2, 3, 300, 513)),
    (1, 2049, 128, 128, False, None),
]


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(case, dtype) for dtype in ("float16", "bfloat16") for case in CASES] + [(case, "float32") for case in CASES[:4]],
)
def test_error_is_that_of_the_precision(case: Sequence[Any], dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of float32, that of TF32."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    q_len, kv_len, head_dim, v_head_dim, causal, bias = case
    options = {"causal": causal, "alignment": "bottom_right", "bias": bias}
    spec, inputs = attention((2, 3), q_len, kv_len, head_dim, v_head_dim, dtype, **options)
    check_low_precision(spec, inputs)


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_precision_of_float32_is_what_was_asked_for(precision: str) -> None:
    spec, inputs = attention((1, 2), 257, 300, 64)
    expected = oracle(spec, inputs)[0]
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        found = torch_attention.triton_attention(spec, inputs)[0]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    low, high = {"ieee": (0.0, 1e-6), "tf32": (1e-6, 2e-3)}[precision]
    assert low <= rms(found, expected) <= high


def test_captured_in_a_graph() -> None:
    spec, inputs = attention((2, 4), 200, 300, 64, dtype="bfloat16", causal=True)
    leaf = leaves(inputs)
    d_out = randn(2, 4, 200, 64, dtype="bfloat16", seed=9)

    def step() -> tuple[Any, ...]:
        out, _ = torch_attention.triton_attention(spec, leaf)
        return (out.detach(), *torch.autograd.grad(out, [leaf.q, leaf.k, leaf.v], d_out))

    results, graph = captured(step, warm_up=1)
    with torch.no_grad():
        leaf.q.copy_(randn(2, 4, 200, 64, dtype="bfloat16", seed=10))
    graph.replay()
    for found, expected in zip(results, step(), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_by_inductor(dynamic: bool) -> None:
    spec, inputs = attention((2, 4), 100, 130, 64, causal=True, order=(0, 2, 1, 3))

    def model(q: Any, k: Any, v: Any) -> Any:
        return torch_attention.triton_attention(spec, AttentionInputs(q * 2, k, v))[0].relu()

    compiled = torch.compile(model, fullgraph=True, dynamic=dynamic)
    results = []
    for way in (model, compiled):
        leaf = leaves(inputs)
        out = way(leaf.q, leaf.k, leaf.v)
        results.append([out, *torch.autograd.grad(out.sum(), [leaf.q, leaf.k, leaf.v])])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_offsets_beyond_32_bits() -> None:
    """Rows that lie far apart, and a bias with more elements than 32 bits count."""
    spec, inputs = attention((1, 1), 40, 100, 64, dtype="float16", bias=(1, 1, 40, 100))
    expected = run(spec, inputs)
    for name in ("k", "v", "bias"):
        operand = getattr(inputs, name)
        stride = (1 << 31) // 30 // 8 * 8
        memory = torch.empty(stride * operand.shape[-2], dtype=operand.dtype, device=operand.device)
        far = memory.as_strided(operand.shape, (0, 0, stride, 1)).copy_(operand)
        found = torch_attention.triton_attention(spec, AttentionInputs(**{**vars(inputs), name: far}))[0]
        # Hopper's own kernels don't take such a bias; the general ones round elsewhere.
        torch.testing.assert_close(found, expected["out"], rtol=1e-3, atol=1e-3, msg=name)
        del memory, far


def test_results_of_one_run_are_those_of_the_next() -> None:
    spec, inputs = attention((2, 2, 4), 500, 700, 64, dtype="bfloat16", k_batch=(2, 2, 1), bias=(1, 2, 4, 1, 700))
    first, again = run(spec, inputs), run(spec, inputs)
    assert all(torch.equal(again[name], value) for name, value in first.items())
