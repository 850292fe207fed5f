"""The general attention kernels against float64: features, sizes, layouts, and sequences of several lengths."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from attention_problems import (
    DEVICE,
    DIFFERENTIABLE,
    FEATURES,
    SMALL,
    attention,
    cached,
    check,
    check_low_precision,
    leaves,
    packed,
    randn,
    run,
    tiles,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast.attention.spec import AttentionInputs
from einops_fast.backends.torch.attention import call as torch_attention


def test_segments_in_any_order() -> None:
    """Documents that lie one after the other let blocks be skipped; others must not be lost by that."""
    spec, inputs = attention((1, 2), 40, 70, segments=(1, 2), window=(60, 60))
    inputs.q_segments = inputs.q_segments.roll(13, -1)
    inputs.kv_segments = inputs.kv_segments.flip(-1).roll(29, -1) * 2 - 1
    inputs.q_segments = inputs.q_segments * 2 - 1
    with tiles():
        check(spec, inputs)


@pytest.mark.parametrize("name", FEATURES)
def test_features(name: str) -> None:
    with tiles():
        check(*attention(**FEATURES[name]))


LENGTHS = st.sampled_from([1, 2, 7, 16, 17, 33])
HEADS = st.sampled_from([1, 3, 8, 16, 20, 33])


@st.composite
def problems(draw: Any) -> tuple[Any, Any, list[str]]:
    """A spec, its tensors, and which of them want gradients."""
    batch, heads, shared = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 3])), draw(st.booleans())
    q_len, kv_len = draw(LENGTHS), draw(LENGTHS)
    scores = (batch, heads, q_len, kv_len)

    def some_axes() -> Any:
        kept = st.tuples(*[st.booleans()] * len(scores))
        return draw(
            st.none() | kept.map(lambda has: tuple(n if own else 1 for n, own in zip(scores, has, strict=True)))
        )

    seen = st.sampled_from([{}, {}, {"causal": True}, {"window": (5, 0)}, {"window": (None, 2)}, {"window": (0, 9)}])
    spec, inputs = attention(
        (batch, heads),
        q_len,
        kv_len,
        draw(HEADS),
        draw(st.none() | HEADS),
        draw(st.sampled_from(["float32", "float64"])),
        k_batch=(batch, 1) if shared else None,
        bias=some_axes(),
        mask=some_axes(),
        alibi=draw(st.none() | st.just((1, heads))),
        sinks=draw(st.none() | st.just((1, heads))),
        segments=draw(st.none() | st.just((batch, 1))),
        softcap=draw(st.sampled_from([0.0, 0.0, 0.7, 3.0])),
        alignment=draw(st.sampled_from(["top_left", "bottom_right"])),
        **draw(seen),
    )
    there = [name for name in DIFFERENTIABLE if getattr(inputs, name) is not None]
    return spec, inputs, draw(st.lists(st.sampled_from(there), min_size=1, unique=True))


@settings(max_examples=12)
@given(problems())
def test_any_features_and_any_gradients(problem: tuple[Any, Any, list[str]]) -> None:
    spec, inputs, wanted = problem
    with tiles():
        check(spec, inputs, wanted=wanted)


SEEN = st.sampled_from([{}, {"causal": True}, {"window": (5, 0)}, {"window": (0, 9), "causal": True}])
SEQUENCES = st.integers(1, 3).flatmap(lambda n: st.lists(st.integers(0, 20), min_size=n, max_size=n))


@st.composite
def caches(draw: Any) -> tuple[Any, Any, Any]:
    """Keys of a cache, maybe in pages, by one tile of all heads that share them or not."""
    lengths, page = draw(SEQUENCES), draw(st.sampled_from([0, 5, 16, 32]))
    count = len(lengths)
    spec, inputs = cached(
        lengths, page, batch=(count, 2, 3), k_batch=(count, 2, 1), q_len=draw(st.sampled_from([1, 3, 5])),
        kv_len=-(-20 // page) * page if page else 20, head_dim=draw(HEADS),
        sinks=draw(st.sampled_from([None, (1, 2, 3)])), softcap=draw(st.sampled_from([0.0, 2.0])),
        alignment="bottom_right", **draw(SEEN),
    )  # fmt: skip
    parts = draw(st.sampled_from([1, 2]))
    tiling = draw(st.sampled_from([SMALL, replace(SMALL, packed=True, parts=parts), replace(SMALL, parts=parts)]))
    return spec, inputs, tiling


@settings(max_examples=20)
@given(caches())
def test_any_cache(problem: tuple[Any, Any, Any]) -> None:
    spec, inputs, tiling = problem
    with tiles(tiling):
        check(spec, inputs, gradients=False)
        if not spec.page_size:
            check(spec, inputs)


@settings(max_examples=8)
@given(
    st.sampled_from(["float16", "bfloat16"]), LENGTHS, LENGTHS, HEADS, SEEN,
    st.sampled_from([{}, {"softcap": 2.0}, {"bias": True}]), st.sampled_from(["top_left", "bottom_right"]),
)  # fmt: skip
def test_any_half_precision(
    dtype: str, q_len: int, kv_len: int, features: int, seen: dict[str, Any], more: dict[str, Any], alignment: Any
) -> None:
    if "bias" in more:
        more = {"bias": (1, 2, q_len, kv_len)}
    with tiles():
        check_low_precision(
            *attention((2, 2), q_len, kv_len, features, dtype=dtype, alignment=alignment, **seen, **more)
        )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_dtypes(dtype: str) -> None:
    eps = torch.finfo(getattr(torch, dtype)).eps
    with tiles():
        spec, inputs = attention((2,), dtype=dtype, causal=True, bias=(1, 21, 37), softcap=5.0)
        check(spec, inputs, tolerance=4 * eps)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": (1, 21, 37), "softcap": 0.7, "causal": True}, {"alibi": (2,), "sinks": (1,), "window": (9, 9)}],
)
def test_float64_keeps_its_digits(options: dict[str, Any]) -> None:
    """Also of a scale and a softcap that have more digits than float32."""
    with tiles():
        check(*attention((2,), head_dim=5, dtype="float64", **options))


BATCHES: dict[str, dict[str, Any]] = {
    "no batch": {"batch": ()},
    "one axis": {"batch": (3,)},
    "four axes": {"batch": (2, 1, 2, 2)},
    "grouped": {"batch": (2, 2, 3), "k_batch": (2, 2, 1)},
    "one head of k and v": {"batch": (2, 3), "k_batch": (2, 1), "bias": (1, 3, 21, 37)},
    "two shared axes": {"batch": (2, 2, 2), "k_batch": (2, 1, 1), "sinks": (1, 2, 2)},
    "v lacks an axis that k has": {"batch": (2, 2), "v_batch": (1, 2)},
    "k lacks an axis that v has": {"batch": (2, 2), "k_batch": (2, 1), "v_batch": (2, 2)},
    "q lacks an axis": {"batch": (2, 2), "q_batch": (1, 2)},
    "only the bias has an axis": {
        "batch": (2, 2), "q_batch": (1, 2), "k_batch": (1, 2), "bias": (2, 1, 21, 37),
    },
}  # fmt: skip


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]),
    "heads inside": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "unaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "overlapping rows": lambda x: x.flatten().as_strided(x.shape, (7, 5, 3, 1)),
    "expanded": lambda x: x[:1, :, :1].expand(x.shape),
}


def assert_same(found: Any, expected: Any) -> None:
    """To the last bit, but for what a GPU's compiler makes of other strides: it may add up a row in another order."""
    if DEVICE == "cpu":
        assert torch.equal(found, expected)
    else:
        largest = float(expected.detach().abs().nan_to_num(posinf=0).max())
        torch.testing.assert_close(found, expected, rtol=0, atol=16 * torch.finfo(found.dtype).eps * largest)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_matter(layout: str) -> None:
    """Not to values, and not to gradients."""
    spec, inputs = attention((2, 1), 17, 18, head_dim=20, bias=(2, 1, 17, 18), mask=(2, 1, 17, 18), causal=True)
    relaid = [LAYOUTS[layout](each) for each in (inputs.q, inputs.k, inputs.v, inputs.bias, inputs.mask)]
    with tiles():
        expected = run(spec, AttentionInputs(*(each.contiguous() for each in relaid)))
        found = run(spec, AttentionInputs(*relaid))
    for name, value in expected.items():
        assert_same(found[name], value)


def test_gradients_of_any_layout_come_in() -> None:
    spec, inputs = attention((2, 1), 17, 18)
    with tiles():
        for strided in (LAYOUTS["reversed"], LAYOUTS["gaps"], LAYOUTS["expanded"]):
            leaf = leaves(inputs)
            out, lse = torch_attention.triton_attention(spec, leaf)
            d_out, d_lse = strided(randn(*out.shape)), randn(1).expand(lse.shape)
            found = torch.autograd.grad([out, lse], [leaf.q, leaf.k, leaf.v], [d_out, d_lse], retain_graph=True)
            plain = [d_out.contiguous(), d_lse.contiguous()]
            expected = torch.autograd.grad([out, lse], [leaf.q, leaf.k, leaf.v], plain)
            for value, plainly in zip(found, expected, strict=True):
                assert_same(value, plainly)


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
