"""What attention takes as options, and refuses; positions beyond the ends of caches and packed sequences."""

import math
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from attention_arrays import arrays_of
from attention_problems import DEVICE, Poisoned, whole_calls
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention as native

from einops_fast import (
    EinsumError,
    OperandError,
    ShapeError,
    attention,
    attention_backend,
    ops,
    patched,
    scaled_dot_product_attention,
)
from einops_fast.attention.memory import score_memory
from einops_fast.backends.torch.attention import runs as torch_attention_runs

P = "b i h d, b j h d, b j h e -> b i h e"
WAYS = ("triton", "math", "cpu")


def operand(way: str = "cpu") -> Any:
    found = torch.randn((1, 6, 2, 16), generator=torch.Generator().manual_seed(0))
    return found.to("cpu" if way == "cpu" else DEVICE).requires_grad_()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_to_be_learnt_is_refused(way: str) -> None:
    q, scale = operand(way), torch.tensor(0.5, requires_grad=True)
    with whole_calls(), attention_backend(way):
        with pytest.raises(OperandError, match="scale has no gradient"):
            attention(P, q, q, q, scale=scale)
        with torch.no_grad():
            torch.testing.assert_close(attention(P, q, q, q, scale=scale), attention(P, q, q, q, scale=0.5))


@pytest.mark.parametrize("way", ["triton", "math"])
@pytest.mark.parametrize("softcap", [1e39, 1e300, 1e-40, 1e-300])
def test_a_softcap_beyond_what_is_computed_in_caps_nothing_or_all(way: str, softcap: float) -> None:
    q = operand(way)
    with torch.no_grad():
        q[0, 0] = 0
    same = q if softcap > 1 else q * 0
    with whole_calls(), attention_backend(way):
        found = attention(P, q, q, q, softcap=softcap)
        torch.testing.assert_close(found, attention(P, same, same, q))
        assert torch.autograd.grad(found.sum(), q)[0].isfinite().all()


def test_counts_of_any_kind() -> None:
    q = operand()
    expected = attention(P, q, q, q, window=(1, 0))
    wide = attention(P, q, q, q, window=(10**30, 10**30))
    assert torch.equal(wide, attention(P, q, q, q))
    for window in ((np.int64(1), 0), [1, np.uint8(0)], (torch.tensor(1), torch.tensor(0))):
        assert torch.equal(attention(P, q, q, q, window=window), expected)
    ends = torch.tensor([0, 2, 6])
    packed = attention("i h d, j h d, j h e -> i h e", *(q[0],) * 3, cu_seqlens_q=ends, max_seqlen_q=np.int32(4))
    assert packed.shape == (6, 2, 16)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("scale is a number, not 'x'", {"scale": "x"}),
        ("scale is a number, not 1000", {"scale": 10**400}),
        ("scale is a number, not array", {"scale": np.ones(2)}),
        ("dropout_p is a number, not 'x'", {"dropout_p": "x"}),
        ("softcap is a number, not 'x'", {"softcap": "x"}),
        ("window is .*, not 1.5", {"window": 1.5}),
        ("window is .*True", {"window": (True, 0)}),
        ("window is .*-1", {"window": (np.int64(-1), 0)}),
        ("cu_seqlens_q is of type list", {"cu_seqlens_q": [0, 3, 6]}),
        ("cu_seqlens_kv is of type int", {"cu_seqlens_q": torch.tensor([0, 6]), "cu_seqlens_kv": 6}),
        ("cu_seqlens_q has dtype bool", {"cu_seqlens_q": torch.tensor([False, True])}),
        ("cache_seqlens is of type int, not an array of torch", {"cache_seqlens": 4}),
        ("bias is of type list, not an array of torch", {"bias": [[1.0] * 6] * 6}),
        ("q_segments is of type list", {"segment_ids": [[1] * 6]}),
        ("q has 3 axes, but its term names 4", {"q": torch.ones(6, 2, 16)}),
        ("v has 5 axes, but its term names 4", {"v": torch.ones(1, 1, 6, 2, 16)}),
        ("k is of type NoneType", {"k": None}),
        ("max_seqlen_q is a number of positions", {"cu_seqlens_q": torch.tensor([0, 6]), "max_seqlen_q": 6.5}),
    ],
)
def test_what_is_no_number_or_no_array_is_named(message: str, options: dict[str, Any]) -> None:
    arrays = [options.get(name, operand()) for name in "qkv"]
    options = {name: value for name, value in options.items() if name not in ("q", "k", "v")}
    with pytest.raises(EinsumError, match=message):
        attention(P, *arrays, **options)


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
