"""Hopper's own kernel for few queries: on such a GPU, or, where there is none, its source executed by NumPy."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from attention_problems import attention, cached, check, oracle, randn, rms, run
from hopper_attention import MARKS, ON_GPU, hopper_kernels

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention import call as torch_attention
from einops_fast.backends.triton.attention import plan as attention_plan
from einops_fast.backends.triton.attention.decode import plan as hopper_decode_plan

pytestmark = MARKS

RAN = "hopper_decode_kernel"
"""What tells that the kernel ran."""

RUNS = 2 if ON_GPU else 3
"""How often it does where a result is checked."""

LENGTH, WINDOW, GROUP = (1037, 300, 4) if ON_GPU else (70, 20, 3)
"""Keys, those of them in a window, and heads that share keys: several blocks, which are small on a CPU."""


@pytest.fixture(params=[132] if ON_GPU else [1, 5])
def ran(request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """What ran, on poisoned memory; on a CPU by so many programs."""
    with (
        hopper_kernels(request.param) as names,
        # Here blocks are so small that few keys are many of them.
        mock.patch.object(attention_plan, "suits_short", return_value=False),
        mock.patch.object(hopper_decode_plan, "_BLOCKS", hopper_decode_plan._BLOCKS if ON_GPU else (16,)),
        mock.patch.object(hopper_decode_plan, "_AHEAD", hopper_decode_plan._AHEAD if ON_GPU else 0),
    ):
        yield names


def checked(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, Any]:
    """The result is as exact as half precision's weights and results allow; the same bits come again."""
    if not ON_GPU:
        check(spec, inputs, gradients=False, tolerance=3e-3)
    found, again = run(spec, inputs, gradients=False), run(spec, inputs, gradients=False)
    for name, value in found.items():
        assert torch.equal(again[name], value), name
    if ON_GPU:
        out, lse = oracle(spec, inputs)
        infinite = lse == -float("inf")
        assert torch.equal(found["lse"] == -float("inf"), infinite)
        logs = found["lse"].double().masked_fill(infinite, 0) - lse.masked_fill(infinite, 0)
        assert float(logs.abs().max()) <= 1e-4 * max(1.0, float(lse.masked_fill(infinite, 0).abs().max()))
        # A weight and the result are rounded once each.
        eps = torch.finfo(inputs.q.dtype).eps
        assert rms(found["out"], out) <= eps * float(out.square().mean().sqrt()) + 1e-12
    return found


GROUPED: dict[str, Any] = {"batch": (2, 2, GROUP), "k_batch": (2, 2, 1)}

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "one query": {"q_len": 1},
    "one key": {"kv_len": 1, "causal": True, "alignment": "bottom_right"},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "causal, top left": {"causal": True},
    "window": {"window": (WINDOW, 3), "alignment": "bottom_right"},
    "softcap, sinks": {"softcap": 3.0, "sinks": (1, 2, GROUP)},
    "heads of their own": {"batch": (3, 2), "k_batch": (3, 2)},
    "no batch": {"batch": (), "k_batch": ()},
    "values of all": {"v_batch": (1, 2, 1)},
    "order": {"order": (0, 3, 1, 2, 4)},
}
FEATURES = [(64, 64), (80, 96), (128, 128), (192, 128), (256, 256)]
if ON_GPU:
    CASES |= {
        "long": {"q_len": 1, "kv_len": 30011},
        "heads of their own": {"batch": (3, 8), "k_batch": (3, 8), "q_len": 16},
        "eight share": {
            "batch": (2, 4, 8), "k_batch": (2, 4, 1), "q_len": 4, "causal": True, "alignment": "bottom_right",
        },
        "many": {"batch": (30, 7, 2), "k_batch": (30, 7, 1), "kv_len": 200},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "features"),
    [(case, features) for case in CASES for features in (FEATURES if ON_GPU else [(16, 16)])]
    + ([] if ON_GPU else [("plain", (24, 40))]),
)
def test_results(case: str, features: tuple[int, int], ran: list[Any]) -> None:
    options = {**GROUPED, "q_len": 5, "kv_len": LENGTH, **CASES[case]}
    dtype = "bfloat16" if ON_GPU and features[0] != 80 else "float16"
    checked(*attention(head_dim=features[0], v_head_dim=features[1], dtype=dtype, **options))
    assert ran == [RAN] * RUNS


def grouped(lengths: tuple[int, ...], kv_len: int, **options: Any) -> tuple[AttentionSpec, AttentionInputs]:
    """Keys of a cache that heads share."""
    count = len(lengths)
    shapes: dict[str, Any] = {"batch": (count, 2, GROUP), "k_batch": (count, 2, 1)}
    shapes |= {"head_dim": 128, "dtype": "bfloat16"} if ON_GPU else {"dtype": "float16"}
    return cached(lengths, kv_len=kv_len, **{**shapes, **options})


LENGTHS = [(0, 1000, 1, 333, 0, 1200), (5000,), (1, 2, 3)] if ON_GPU else [(0, 70, 1, 33, 0, 99)]


@pytest.mark.parametrize("options", [{"q_len": 1}, {"q_len": 3, "causal": True}, {"q_len": 8, "window": (9, None)}])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_lengths_of_sequences(lengths: tuple[int, ...], options: dict[str, Any], ran: list[Any]) -> None:
    """Some of which are empty, or (on a CPU) longer than there is room; what is beyond them is never looked at."""
    if not ON_GPU and options["q_len"] == 8:
        options = {**options, "q_len": 5}
    spec, inputs = grouped(lengths, max(lengths) if ON_GPU else 70, sinks=(1, 2, GROUP), **options)
    expected = checked(spec, inputs)
    for at, length in enumerate(lengths):
        inputs.k[at, :, :, length:] = inputs.v[at, :, :, length:] = float("nan")
    found = run(spec, inputs, gradients=False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert ran == [RAN] * (RUNS + 1)


@pytest.mark.parametrize(
    ("page_size", "features", "block"),
    [(page, features, 0) for page in (16, 48, 64, 256) for features in (64, 128, 256)]
    if ON_GPU
    else [(page, 16, block) for page in (16, 32, 48) for block in (16, 32)],
)
def test_pages(page_size: int, features: int, block: int, ran: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if block:
        monkeypatch.setattr(hopper_decode_plan, "_BLOCKS", (block,))
    count = -(-1000 // page_size) if ON_GPU else 96 // page_size
    lengths = (count * page_size, 7, 0, 777) if ON_GPU else (96, 7)
    options = {"q_len": 2, "causal": True, "head_dim": features, "page_size": page_size, "spare": count}
    spec, inputs = grouped(lengths, count * page_size, **options)
    checked(spec, inputs)
    assert ran == [RAN] * RUNS


def test_any_strides(ran: list[Any]) -> None:
    features = 64 if ON_GPU else 16
    spec, inputs = attention(**GROUPED, q_len=3, kv_len=LENGTH, head_dim=features, dtype="float16", sinks=(2, 1, GROUP))
    expected = run(spec, inputs, gradients=False)
    given = []
    for axes in ((0, 3, 1, 2, 4), (3, 1, 0, 2, 4)):
        back = [axes.index(at) for at in range(5)]
        given += [(name, getattr(inputs, name).permute(axes).contiguous().permute(back)) for name in ("q", "k", "v")]
    memory = randn(2, 2, 1, LENGTH + 100, features + 24, dtype="float16")
    inner = memory[:, :, :, 8 : LENGTH + 8, 8 : features + 8]
    inner[:] = inputs.k
    for name, moved in (*given, ("k", inner)):
        found = run(spec, AttentionInputs(**{**vars(inputs), name: moved}), gradients=False)
        assert all(torch.equal(found[each], value) for each, value in expected.items())
    assert ran == [RAN] * 8


@pytest.mark.skipif(not ON_GPU, reason="nothing is queued")
def test_odd_addresses_take_the_other_kernels(ran: list[Any]) -> None:
    spec, inputs = attention((2, 2), 2, 500, 64, dtype="float16")
    expected = run(spec, inputs, gradients=False)
    odd = torch.empty(inputs.v.numel() + 1, dtype=inputs.v.dtype, device="cuda")[1:].view_as(inputs.v).copy_(inputs.v)
    found = run(spec, AttentionInputs(inputs.q, inputs.k, odd), gradients=False)
    assert ran == [RAN, ""]
    for each, value in expected.items():
        torch.testing.assert_close(found[each], value, atol=2e-3, rtol=2e-3)


@pytest.mark.skipif(not ON_GPU, reason="there are no graphs")
@pytest.mark.usefixtures("ran")
def test_captured_in_a_graph_and_on_two_streams() -> None:
    """Counters of a graph are its own, and each stream has its own."""
    spec, inputs = attention((4, 4), 1, 5000, 64, dtype="bfloat16")
    expected = torch_attention.triton_attention(spec, inputs)[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = torch_attention.triton_attention(spec, inputs)[0]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    found = []
    for _ in range(20):
        graph.replay()
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(torch_attention.triton_attention(spec, inputs)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(each, expected) for each in (*found, captured))
