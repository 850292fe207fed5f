"""The attention kernels with features, sizes and gradients as they come, against float64."""

from __future__ import annotations

from typing import Any

from attention_problems import DIFFERENTIABLE, attention, check, tiles
from hypothesis import given, settings
from hypothesis import strategies as st

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
