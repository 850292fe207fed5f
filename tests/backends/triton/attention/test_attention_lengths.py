"""Attention on sequences of several lengths: packed, cached, in pages; few queries; none at all."""

from dataclasses import replace
from typing import Any

import pytest
from attention_problems import SMALL, attention, cached, check, packed, run, tiles

from einops_fast.attention.spec import AttentionInputs

VARLEN: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True},
    "last facing last": {"causal": True, "alignment": "bottom_right"},
    "window": {"window": (7, 3), "alignment": "bottom_right"},
    "bias": {"bias": (1, 2, 33, 40), "causal": True},
    "bias by sequence": {"bias": (4, 1, 33, 40)},
    "sinks": {"sinks": (1, 2), "alibi": (1, 2)},
    "sinks by sequence": {"sinks": (4, 2)},
    "grouped": {"kv_heads": 1},
}


@pytest.mark.parametrize("name", VARLEN)
def test_packed_sequences(name: str) -> None:
    with tiles():
        check(*packed((5, 0, 33, 17), (20, 3, 40, 0), **VARLEN[name]))


def test_tokens_of_no_sequence_get_zeros() -> None:
    spec, inputs = packed((5, 17), (20, 9), extra=3)
    with tiles():
        found = run(spec, inputs)
    for name in ("out", "q", "k", "v"):
        assert not found[name][:, :, -3:].any(), name
        assert not found[name].isnan().any(), name
    assert (found["lse"][..., -3:] == -float("inf")).all()


@pytest.mark.parametrize("options", [{"causal": True}, {"window": (6, 2), "bias": (1, 2, 21, 37)}])
def test_cached_keys(options: dict[str, Any]) -> None:
    with tiles():
        check(*cached((20, 0, 37), **options))


GROUPED = {"batch": (2, 2, 3), "k_batch": (2, 2, 1), "head_dim": 8}

FEW: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": True, "alignment": "bottom_right"},
    "window": {"window": (20, 0), "alignment": "bottom_right"},
    "bias, mask": {"bias": (1, 2, 3, 5, 70), "mask": (2, 1, 1, 1, 70)},
    "sinks, alibi": {"sinks": (1, 2, 3), "alibi": (1, 2, 3)},
    "segments": {"segments": (2, 1, 1)},
    "softcap": {"softcap": 2.0},
}


@pytest.mark.parametrize("name", FEW)
def test_few_queries_of_shared_keys(name: str) -> None:
    """Queries of all heads that share keys in one tile, and the keys in parts."""
    spec, inputs = attention(q_len=5, kv_len=70, **GROUPED, **FEW[name])
    for tiling in (replace(SMALL, packed=True), replace(SMALL, packed=True, parts=4), replace(SMALL, parts=2)):
        with tiles(tiling):
            check(spec, inputs, gradients=False)


@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0), (1, 1), (1, 40), (40, 1)])
@pytest.mark.parametrize("options", [{}, {"causal": True, "alignment": "bottom_right"}])
def test_lengths_that_differ(q_len: int, kv_len: int, options: dict[str, Any]) -> None:
    with tiles():
        check(*attention((2,), q_len, kv_len, head_dim=4, **options))


@pytest.mark.parametrize("batch", [(0, 2), (2, 0)])
def test_no_batch_elements(batch: tuple[int, ...]) -> None:
    with tiles():
        check(*attention(batch, 5, 7, head_dim=4, bias=(1, 1, 5, 7), sinks=(1, 1)))


def test_default_tiles() -> None:
    """At lengths around theirs, and for few queries."""
    for q_len, kv_len in ((3, 127), (113, 129), (129, 113)):
        check(*attention((1,), q_len, kv_len, head_dim=24, causal=True, window=(100, None)))
    spec, inputs = attention((1, 2, 4), 2, 1023, k_batch=(1, 2, 1), causal=True, alignment="bottom_right")
    check(spec, inputs, gradients=False)
    check(*cached((1023,), batch=(1, 3), q_len=16, kv_len=1023), gradients=False)


def test_rows_without_keys() -> None:
    spec, inputs = attention((2, 2), mask=(2, 1, 21, 37), sinks=(1, 2), bias=(1, 2, 21, 37), causal=True)
    inputs.mask[0, 0, 3:9] = False
    with tiles():
        check(spec, inputs)
        bare = AttentionInputs(inputs.q, inputs.k, inputs.v, inputs.bias, inputs.mask)
        found = check(replace(spec, sinks=False), bare)
        assert not found["out"][0, :, 3:9].any()
        assert (found["lse"][0, :, 3:9] == -float("inf")).all()
        assert not found["q"][0, :, 3:9].any()
        bare.bias[0, 0, 12] = -float("inf")
        found = check(replace(spec, sinks=False), bare)
        assert not found["out"][:, 0, 12].any()
