"""Which implementation has which feature: asked of the implementations, and printed as the table of the documentation.

``python -m einops_fast.attention.features`` prints it. Needs torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from einops_fast.attention.registry import Implementation, implementation, registered_implementations
from einops_fast.attention.spec import AttentionSpec

_BOTH, _FORWARD, _NEITHER, _ABSENT = "yes", "forward", "–", "?"

_BASE = AttentionSpec(
    batch=(2, 8),
    q_batch=(2, 8),
    k_batch=(2, 8),
    v_batch=(2, 8),
    q_len=128,
    kv_len=128,
    head_dim=64,
    v_head_dim=64,
    dtype="bfloat16",
    scale=0.125,
    strides=((65536, 8192, 64, 1),) * 3,
)
_LENGTHS: dict[str, Any] = {"q_len": 64, "strides": ((32768, 4096, 64, 1), *_BASE.strides[1:])}

# Each feature as the fields of a spec that has it.
_FEATURES: dict[str, dict[str, Any]] = {
    "float16, bfloat16": {},
    "float32": {"dtype": "float32"},
    "float64": {"dtype": "float64"},
    "any strides": {"strides": ((65536, 64, 512, 1), (65536, 8192, 1, 128), (65536, 8192, 64, 1))},
    "three batch axes that don't merge": {
        "batch": (2, 4, 2), "q_batch": (2, 4, 2), "k_batch": (2, 4, 2), "v_batch": (2, 4, 2),
        "strides": ((64, 8192, 128, 65536, 1),) * 3,
    },
    "heads that share keys (GQA)": {
        "batch": (2, 2, 4), "q_batch": (2, 2, 4), "k_batch": (2, 2, 1), "v_batch": (2, 2, 1),
        "strides": ((65536, 32768, 8192, 64, 1), (16384, 8192, 0, 64, 1), (16384, 8192, 0, 64, 1)),
    },
    "one head of keys (MQA)": {
        "k_batch": (2, 1), "v_batch": (2, 1), "strides": (_BASE.strides[0], (8192, 0, 64, 1), (8192, 0, 64, 1)),
    },
    "head_dim 256": {"head_dim": 256, "v_head_dim": 256},
    "odd head_dim": {"head_dim": 33, "v_head_dim": 33},
    "v_head_dim other than head_dim": {"v_head_dim": 32},
    "q_len other than kv_len": _LENGTHS,
    "no queries, no keys": {"q_len": 0, "kv_len": 0},
    "causal": {"causal": True},
    "causal, top left, lengths differ": {"causal": True, **_LENGTHS},
    "causal, bottom right, lengths differ": {"causal": True, "alignment": "bottom_right", **_LENGTHS},
    "window": {"window": (16, 0)},
    "mask": {"mask": (1, 1, 128, 128)},
    "bias": {"bias": (1, 8, 128, 128)},
    "gradient of the bias": {"bias": (1, 8, 128, 128), "bias_gradient": True},
    "mask of keys, causal": {"mask": (2, 1, 1, 128), "causal": True},
    "ALiBi": {"alibi": True},
    "softcap": {"softcap": 20.0},
    "segments": {"segments": True},
    "sinks": {"sinks": True},
    "dropout": {"dropout_p": 0.1},
    "log of the denominator": {"lse": True},
    "packed sequences": {"varlen": True, "batch": (4, 8), "q_batch": (1, 8), "k_batch": (1, 8), "v_batch": (1, 8)},
    "cache_seqlens": {"cache": True, "alignment": "bottom_right"},
    "block table": {"cache": True, "page_size": 16, "alignment": "bottom_right"},
    "deterministic gradients": {"deterministic": True},
    "forward mode, torch.func": {"transforms": True},
}  # fmt: skip


def feature_table() -> str:
    """Return a table in Markdown of features and implementations, on torch tensors where each can run.

    ``yes`` means forward and backward, ``forward`` without gradients only, ``–`` neither.
    """
    names = registered_implementations()
    rows = [["feature", *[f"`{name}`" for name in names]], ["---"] * (len(names) + 1)]
    rows += [[feature, *[_answer(name, feature) for name in names]] for feature in _FEATURES]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _answer(name: str, feature: str) -> str:
    made = implementation(name)
    if not isinstance(made, Implementation):
        return _ABSENT
    spec = replace(_BASE, **_FEATURES[feature])
    if made.refuses(spec) is not None:
        return _NEITHER
    return _BOTH if made.refuses(replace(spec, gradients=True)) is None else _FORWARD


if __name__ == "__main__":
    print(feature_table())
