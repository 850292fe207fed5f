"""The attention kernels with features, sizes and gradients as they come, against float64."""

from __future__ import annotations

from typing import Any

import pytest
from attention_problems import DIFFERENTIABLE, attention, leaves, randn, run, tiles
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")
from attention_oracle import oracle  # noqa: E402

from einops_fast.backends import torch_attention  # noqa: E402

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
    leaf = leaves(inputs)
    for name in DIFFERENTIABLE:
        if getattr(leaf, name) is not None:
            getattr(leaf, name).requires_grad_(name in wanted)
    with tiles():
        out, lse = torch_attention.triton_attention(spec, leaf)
        seeds = randn(*out.shape, seed=5).to(out.dtype), randn(*lse.shape, seed=6).to(lse.dtype)
        finite = torch.where(lse.isinf(), 0.0, lse)
        gradients = torch.autograd.grad([out, finite], [getattr(leaf, name) for name in wanted], seeds)
    exact = run(spec, leaves(inputs, torch.float64), way=oracle)
    found = {"out": out, "lse": lse, **dict(zip(wanted, gradients, strict=True))}
    for name, value in found.items():
        tolerance = 1e-12 if value.dtype == torch.float64 else 3e-5
        scale = max(1.0, float(torch.where(exact[name].isinf(), 0.0, exact[name]).abs().max()))
        torch.testing.assert_close(value.double(), exact[name], rtol=0, atol=tolerance * scale)
