"""The attention kernels against float64: on a GPU, or in Triton's interpreter where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from attention_problems import attention, check, tiles

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {"batch": (2,)},
    "causal": {"causal": True, "batch": (2,)},
    "causal, last facing last": {"causal": True, "alignment": "bottom_right", "batch": (2,)},
    "window": {"window": (5, 9), "batch": (2,)},
    "window, last facing last": {"window": (20, 3), "alignment": "bottom_right", "batch": (2,)},
    "causal window": {"window": (11, None), "causal": True, "batch": (2,)},
    "softcap": {"softcap": 2.0, "batch": (2,)},
    "negative scale": {"scale": -0.3, "batch": (2,)},
    "bias": {"bias": (2, 2, 21, 37)},
    "causal bias": {"bias": (2, 2, 21, 37), "causal": True},
    "bias over batch": {"bias": (1, 2, 21, 37)},
    "bias over heads, causal": {"bias": (2, 1, 21, 37), "causal": True},
    "bias by key": {"bias": (1, 2, 1, 37)},
    "bias by query": {"bias": (2, 1, 21, 1)},
    "one bias": {"bias": (1, 1, 1, 1)},
    "mask": {"mask": (2, 2, 21, 37)},
    "mask by key": {"mask": (2, 1, 1, 37)},
    "alibi": {"alibi": (1, 2)},
    "alibi, causal": {"alibi": (2, 2), "causal": True, "alignment": "bottom_right"},
    "sinks": {"sinks": (1, 2)},
    "segments": {"segments": (2, 1)},
    "segments, causal": {"segments": (1, 1), "causal": True},
    "everything": {
        "bias": (1, 2, 21, 37),
        "mask": (2, 1, 21, 37),
        "alibi": (1, 2),
        "sinks": (2, 2),
        "segments": (2, 1),
        "softcap": 3.0,
        "causal": True,
        "window": (30, 30),
        "alignment": "bottom_right",
    },
}


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
