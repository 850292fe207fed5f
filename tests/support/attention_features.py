"""Features of attention that every kernel has to compute."""

from typing import Any

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
