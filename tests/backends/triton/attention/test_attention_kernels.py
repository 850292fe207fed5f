"""The general attention kernels against float64: each feature, and features, sizes and gradients as they come."""

from dataclasses import replace
from typing import Any

import pytest
from attention_features import FEATURES
from attention_problems import DIFFERENTIABLE, SMALL, attention, cached, check, check_low_precision, tiles
from hypothesis import given, settings
from hypothesis import strategies as st


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
