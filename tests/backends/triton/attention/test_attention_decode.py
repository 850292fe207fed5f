"""Hopper's own kernel for few queries: it isn't interpreted, so all that runs it needs such a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from attention_oracle import oracle
from attention_problems import attention, hopper_calls, needs_hopper, randn, rms, run

torch: Any = pytest.importorskip("torch")

from einops_fast.attention.spec import AttentionInputs, AttentionSpec  # noqa: E402
from einops_fast.backends.torch.attention import call as torch_attention  # noqa: E402

pytestmark = needs_hopper


@pytest.fixture(autouse=True)
def queued() -> Iterator[list[bool]]:
    """Whether each of Hopper's kernels could be queued; memory is poisoned."""
    with hopper_calls() as found:
        yield found


def checked(spec: AttentionSpec, inputs: AttentionInputs) -> dict[str, Any]:
    """The result is as exact as half precision's weights and results allow; the same bits come again."""
    found, again = run(spec, inputs, gradients=False), run(spec, inputs, gradients=False)
    out, lse = oracle(spec, inputs)
    eps = torch.finfo(inputs.q.dtype).eps
    infinite = lse == -float("inf")
    assert torch.equal(found["lse"] == -float("inf"), infinite)
    logs = found["lse"].double().masked_fill(infinite, 0) - lse.masked_fill(infinite, 0)
    assert float(logs.abs().max()) <= 1e-4 * max(1.0, float(lse.masked_fill(infinite, 0).abs().max()))
    # A weight and the result are rounded once each.
    assert rms(found["out"], out) <= eps * float(out.square().mean().sqrt()) + 1e-12
    for name, value in found.items():
        assert torch.equal(again[name], value), name
    return found


CASES: dict[str, dict[str, Any]] = {
    "one query": {"q_len": 1},
    "one key": {"kv_len": 1, "causal": True, "alignment": "bottom_right"},
    "long": {"q_len": 1, "kv_len": 30011},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "causal, top left": {"causal": True},
    "window": {"window": (300, 3), "alignment": "bottom_right"},
    "softcap, sinks": {"softcap": 3.0, "sinks": (1, 2, 4)},
    "heads of their own": {"batch": (3, 8), "k_batch": (3, 8), "q_len": 16},
    "eight share": {"batch": (2, 4, 8), "k_batch": (2, 4, 1), "q_len": 4, "causal": True, "alignment": "bottom_right"},
    "no batch": {"batch": (), "k_batch": ()},
    "many": {"batch": (30, 7, 2), "k_batch": (30, 7, 1), "kv_len": 200},
    "values of all": {"v_batch": (1, 2, 1)},
    "order": {"order": (0, 3, 1, 2, 4)},
}


@pytest.mark.parametrize("features", [(64, 64), (80, 96), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize("case", CASES)
def test_results(case: str, features: tuple[int, int], queued: list[bool]) -> None:
    options = {"batch": (2, 2, 4), "k_batch": (2, 2, 1), "q_len": 5, "kv_len": 1037, **CASES[case]}
    dtype = "float16" if features[0] == 80 else "bfloat16"
    checked(*attention(head_dim=features[0], v_head_dim=features[1], dtype=dtype, **options))
    assert queued == [True] * 2


def cached(lengths: tuple[int, ...], kv_len: int, **options: Any) -> tuple[AttentionSpec, AttentionInputs]:
    count = len(lengths)
    shapes = {"batch": (count, 2, 4), "k_batch": (count, 2, 1), "head_dim": 128, "dtype": "bfloat16"}
    spec, inputs = attention(kv_len=kv_len, cache=True, **{**shapes, **options})
    inputs.cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    return spec, inputs


@pytest.mark.parametrize("options", [{"q_len": 1}, {"q_len": 3, "causal": True}, {"q_len": 8, "window": (100, None)}])
@pytest.mark.parametrize("lengths", [(0, 1000, 1, 333, 0, 1200), (5000,), (1, 2, 3)])
def test_lengths_of_sequences(lengths: tuple[int, ...], options: dict[str, Any], queued: list[bool]) -> None:
    room = max(lengths)
    spec, inputs = cached(lengths, room, sinks=(1, 2, 4), **options)
    expected = checked(spec, inputs)
    for at, length in enumerate(lengths):
        inputs.k[at, :, :, length:] = inputs.v[at, :, :, length:] = float("nan")
    found = run(spec, inputs, gradients=False)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert queued == [True] * 3


def test_many_sequences(queued: list[bool]) -> None:
    lengths = torch.randint(0, 300, (300,), generator=torch.Generator().manual_seed(0)).tolist()
    checked(*cached(tuple(lengths), 300, q_len=1, causal=True))
    assert queued == [True] * 2


@pytest.mark.parametrize("page_size", [16, 48, 64, 256])
@pytest.mark.parametrize("features", [64, 128, 256])
def test_pages(page_size: int, features: int, queued: list[bool]) -> None:
    count = -(-1000 // page_size)
    spec, inputs = cached((count * page_size, 7, 0, 777), count * page_size, q_len=2, causal=True, head_dim=features)
    total = 5 * count
    spec = replace(spec, page_size=page_size, k_batch=(total, 2, 1), v_batch=(total, 2, 1))
    order = torch.randperm(total, generator=torch.Generator().manual_seed(0))
    inputs.block_table = order[: 4 * count].view(4, count).int().cuda()
    # As a cache lies: tokens of a page, then heads.
    inputs.k, inputs.v = (
        randn(total, page_size, 2, 1, features, dtype="bfloat16", seed=seed).permute(0, 2, 3, 1, 4) for seed in (1, 2)
    )
    checked(spec, inputs)
    assert queued == [True] * 2


def test_any_strides(queued: list[bool]) -> None:
    shapes = {"batch": (2, 2, 4), "k_batch": (2, 2, 1), "head_dim": 64, "dtype": "float16"}
    spec, inputs = attention(**shapes, q_len=3, kv_len=500, sinks=(2, 1, 4))
    expected = run(spec, inputs, gradients=False)
    given = []
    for axes in ((0, 3, 1, 2, 4), (3, 1, 0, 2, 4)):
        back = [axes.index(at) for at in range(5)]
        given += [(name, getattr(inputs, name).permute(axes).contiguous().permute(back)) for name in ("q", "k", "v")]
    memory = randn(2, 2, 1, 600, 88, dtype="float16")
    memory[:, :, :, 8:508, 8:72] = inputs.k
    for name, moved in (*given, ("k", memory[:, :, :, 8:508, 8:72])):
        found = run(spec, AttentionInputs(**{**vars(inputs), name: moved}), gradients=False)
        assert all(torch.equal(found[each], value) for each, value in expected.items())
    assert all(queued)


def test_odd_addresses_take_the_other_kernels(queued: list[bool]) -> None:
    spec, inputs = attention((2, 2), 2, 500, 64, dtype="float16")
    expected = run(spec, inputs, gradients=False)
    odd = torch.empty(inputs.v.numel() + 1, dtype=inputs.v.dtype, device="cuda")[1:].view_as(inputs.v).copy_(inputs.v)
    found = run(spec, AttentionInputs(inputs.q, inputs.k, odd), gradients=False)
    assert queued == [True, False]
    for each, value in expected.items():
        torch.testing.assert_close(found[each], value, atol=2e-3, rtol=2e-3)


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


def test_many_rows_take_the_other_kernels(queued: list[bool]) -> None:
    checked(*attention((2, 2, 4), 16, 500, 64, k_batch=(2, 2, 1), dtype="bfloat16"))
    assert queued == []
