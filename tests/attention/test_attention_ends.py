"""What lies beyond the ends of sequences, and ends that lie beyond the arrays."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attention_arrays import arrays_of
from attention_problems import DEVICE, Poisoned, whole_calls

from einops_fast import attention, attention_backend
from einops_fast.attention.memory import score_memory
from einops_fast.backends.torch.attention import runs as torch_attention_runs
from einops_fast.errors import OperandError, ShapeError

CACHED = "b i h d, b j h d, b j h e -> b i h e"
PAGED = "b i h d, page j h d, page j h e -> b i h e"
PACKED = "i h d, j h d, j h e -> i h e"
SLACK = 1 << 12


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def lengths(*values: int) -> Any:
    return torch.tensor(values, device=DEVICE)


@pytest.mark.parametrize("way", ["triton", "math"])
@pytest.mark.parametrize("memory", [1, 1 << 30], ids=["pieces", "whole"])
def test_anything_may_be_beyond_the_end_of_a_cache(way: str, memory: int) -> None:
    q, k, v = randn(2, 3, 2, 16), randn(2, 9, 2, 16, seed=1), randn(2, 9, 2, 8, seed=2)
    found = []
    for filling in (0.0, math.nan, math.inf):
        for array in (k, v):
            array[0, 7:], array[1, 2:] = filling, filling
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        with whole_calls(), attention_backend(way), score_memory(memory):
            out = attention(CACHED, *leaves, cache_seqlens=lengths(7, 2), softcap=3.0, causal=True)
            found.append([out.detach(), *torch.autograd.grad(out.square().sum(), leaves)])
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            assert torch.equal(one, two)


@pytest.mark.parametrize("way", ["triton", "math"])
def test_entries_of_pages_beyond_the_end_need_not_be_pages(way: str) -> None:
    q, k, v = randn(2, 3, 2, 16), randn(4, 4, 2, 16, seed=1), randn(4, 4, 2, 8, seed=2)
    k[2, 1:], v[2, 1:] = math.nan, math.nan
    tables = [torch.tensor([[3, 1, other], [2, other, other]], device=DEVICE) for other in (0, -1, 1 << 20)]
    with whole_calls(), attention_backend(way):
        found = [attention(PAGED, q, k, v, cache_seqlens=lengths(8, 1), block_table=table) for table in tables]
    assert found[0].isfinite().all()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("framework", ["numpy", "torch", "mxnet"])
@pytest.mark.parametrize(
    ("lengths", "table", "said"),
    [
        ((5, 2), ((0, 3), (2, 0)), "block_table has page 3 where .* axis 0 of k and v has size 3"),
        ((5, 2), ((0, -1), (2, 0)), "block_table has page -1 where .* axis 0 of k and v has size 3"),
        ((5, -2), ((0, 1), (2, 0)), "cache_seqlens says that a sequence has -2 keys"),
    ],
)
def test_pages_and_lengths_that_there_are_not_are_said_on_a_host(
    framework: str, lengths: tuple[int, ...], table: tuple[tuple[int, ...], ...], said: str
) -> None:
    arrays = np.ones((2, 3, 4)), np.ones((3, 4, 4)), np.array(lengths), np.array(table)
    q, k, cached, pages = arrays_of(framework, arrays)
    with pytest.raises(OperandError, match=said):
        attention(
            "b i d, page j d, page j e -> b i e", q, k, k, sequence=("i", "j"), cache_seqlens=cached, block_table=pages
        )


@pytest.mark.parametrize("way", ["triton", "math"])
def test_there_are_no_more_keys_than_places_for_them(way: str) -> None:
    q = randn(2, 5, 2, 16)
    options = {"causal": True, "window": (3, None), "alibi_slopes": torch.ones(2, device=DEVICE)}
    with whole_calls(), attention_backend(way):
        found = attention(CACHED, q, q, q, cache_seqlens=lengths(9, 3), **options)
        assert torch.equal(found, attention(CACHED, q, q, q, cache_seqlens=lengths(5, 3), **options))


BAD = {"beyond": (0, 3, 12), "falling": (0, 7, 3, 9), "late": (2, 5, 9), "negative": (-3, 4, 9)}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("which", ["q", "kv"])
def test_ends_that_do_not_fit_are_said(name: str, which: str) -> None:
    good = (0, 3, 5, 9) if name == "falling" else (0, 3, 9)
    ends = {"cu_seqlens_q": good, "cu_seqlens_kv": good, f"cu_seqlens_{which}": BAD[name]}
    q = randn(9, 2, 16).cpu().numpy()
    for convert in (np.asarray, torch.as_tensor):
        given = {key: convert(value) for key, value in ends.items()}
        with pytest.raises(ShapeError, match=f"cu_seqlens_{which} is"):
            attention(PACKED, *(convert(q),) * 3, **given)


def test_a_sequence_longer_than_the_longest_is_said() -> None:
    q = np.ones((9, 2, 16))
    with pytest.raises(ShapeError, match=r"max_seqlen_q is 4, but .* has length 6"):
        attention(PACKED, q, q, q, cu_seqlens_q=np.array([0, 3, 9]), max_seqlen_q=4)


class Fenced(Poisoned):
    """Memory with more of it behind each array, which nobody may write to."""

    def __init__(self) -> None:
        self.fences: list[Any] = []

    def here(self, like: Any) -> Any:
        def new(shape: Any, strides: Any, dtype: Any) -> Any:
            used = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            whole = torch.full((used + SLACK,), math.nan, dtype=dtype, device=like.device)
            self.fences.append(whole[used:])
            return whole.as_strided(tuple(shape), tuple(strides))

        return new


@pytest.mark.parametrize("name", BAD)
def test_kernels_stay_within_the_arrays(name: str) -> None:
    memory = Fenced()
    # As if there were more rows behind those of q, k and v.
    leaves = [randn(64, 2, 16, seed=seed).requires_grad_() for seed in range(3)]
    bias = randn(2, 9, 9)
    with whole_calls(), mock.patch.object(torch_attention_runs, "MEMORY", memory), attention_backend("triton"):
        parts = [each[:9] for each in leaves]
        bad = torch.tensor(BAD[name], device=DEVICE)
        options = {"cu_seqlens_q": bad, "max_seqlen_q": 9, "max_seqlen_kv": 9}
        out, lse = attention(PACKED, *parts, bias=("h i j", bias), return_lse=True, **options)
        torch.autograd.grad([out, lse.nan_to_num(neginf=0)], leaves, [out.detach(), lse.detach().nan_to_num(neginf=0)])
    assert len(memory.fences) >= 4
    assert all(fence.isnan().all() for fence in memory.fences)
