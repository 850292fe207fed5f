"""Options of `attention` as numbers of any kind: told apart by value, and said clearly where they are none."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from attention_problems import DEVICE, whole_calls
from torch._subclasses import FakeTensorMode

from einops_fast import attention, attention_backend
from einops_fast.errors import EinsumError, OperandError

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
def test_an_infinite_softcap_caps_nothing(way: str) -> None:
    q = operand(way)
    with whole_calls(), attention_backend(way):
        for softcap in (math.inf, np.float32("inf"), torch.tensor(math.inf)):
            assert torch.equal(attention(P, q, q, q, softcap=softcap), attention(P, q, q, q))


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


def test_lengths_are_looked_at_where_there_are_any() -> None:
    with FakeTensorMode():
        q, lengths = torch.ones(1, 6, 2, 16), torch.ones(1, dtype=torch.int32)
        assert attention(P, q, q, q, cache_seqlens=lengths).shape == q.shape


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
