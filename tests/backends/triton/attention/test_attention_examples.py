"""The attention kernels with features, sizes and gradients as they come, against float64."""

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from attention_problems import DEVICE, DIFFERENTIABLE, SMALL, attention, check, check_low_precision, randn, tiles
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


SEEN = st.sampled_from([{}, {"causal": True}, {"window": (5, 0)}, {"window": (0, 9), "causal": True}])
SEQUENCES = st.integers(1, 3).flatmap(lambda n: st.lists(st.integers(0, 20), min_size=n, max_size=n))


@st.composite
def packed(draw: Any) -> tuple[Any, Any]:
    """Sequences side by side, some of them empty, and maybe tokens of none."""
    q_lens = draw(SEQUENCES)
    kv_lens = draw(st.lists(st.integers(0, 20), min_size=len(q_lens), max_size=len(q_lens)))
    heads, kv_heads, count = 3, draw(st.sampled_from([1, 3])), len(q_lens)
    spec, inputs = attention(
        (count, heads), max(q_lens), max(kv_lens), draw(HEADS), varlen=True, dtype="float64",
        bias=draw(st.sampled_from([None, (1, heads, max(q_lens), max(kv_lens)), (count, 1, 1, max(kv_lens))])),
        sinks=draw(st.sampled_from([None, (1, heads), (count, heads)])),
        softcap=draw(st.sampled_from([0.0, 2.0])),
        alignment=draw(st.sampled_from(["top_left", "bottom_right"])),
        **draw(SEEN),
    )  # fmt: skip
    spec = replace(spec, q_batch=(1, heads), k_batch=(1, kv_heads), v_batch=(1, kv_heads))
    inputs.q = randn(1, heads, sum(q_lens), spec.head_dim, dtype="float64")
    inputs.k, inputs.v = (randn(1, kv_heads, sum(kv_lens), spec.head_dim, dtype="float64", seed=at) for at in (1, 2))
    inputs.cu_seqlens_q, inputs.cu_seqlens_kv = (
        torch.tensor([0, *accumulate(lens)], dtype=torch.int32, device=DEVICE) for lens in (q_lens, kv_lens)
    )
    return spec, inputs


@settings(max_examples=10)
@given(packed())
def test_any_packed_sequences(problem: tuple[Any, Any]) -> None:
    with tiles():
        check(*problem)


@st.composite
def cached(draw: Any) -> tuple[Any, Any, Any]:
    """Keys of a cache, maybe in pages, by one tile of all heads that share them or not."""
    lengths, page = draw(SEQUENCES), draw(st.sampled_from([0, 5, 16]))
    count, room = len(lengths), -(-20 // page) * page if page else 20
    spec, inputs = attention(
        (count, 2, 3), draw(st.sampled_from([1, 3, 5])), room, draw(HEADS), k_batch=(count, 2, 1), cache=True,
        sinks=draw(st.sampled_from([None, (1, 2, 3)])), softcap=draw(st.sampled_from([0.0, 2.0])),
        alignment="bottom_right", **draw(SEEN),
    )  # fmt: skip
    inputs.cache_seqlens = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    if page:
        pages = count * room // page
        spec = replace(spec, page_size=page, k_batch=(pages, 2, 1), v_batch=(pages, 2, 1))
        table = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
        inputs.block_table = table.view(count, -1).int().to(DEVICE)
        inputs.k, inputs.v = (randn(pages, 2, 1, page, spec.head_dim, seed=at) for at in (1, 2))
    parts = draw(st.sampled_from([1, 2]))
    tiling = draw(st.sampled_from([SMALL, replace(SMALL, packed=True, parts=parts), replace(SMALL, parts=parts)]))
    return spec, inputs, tiling


@settings(max_examples=15)
@given(cached())
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
