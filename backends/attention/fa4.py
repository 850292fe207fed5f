"""FlashAttention-4, the kernels in CuTe that the package flash-attn-4 installs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.attention.devices import capability
from einops_fast.backends.attention.four_axes import FourAxes, OnFourAxes

__all__ = ["Fa4"]


def _installed() -> bool:
    try:
        return find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


_INSTALLED = _installed()


class Fa4(OnFourAxes):
    """Its own functions, on views with the heads after the positions."""

    name = "fa4"
    efficiency = 0.85

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16"):
            return f"it takes float16 and bfloat16 only, not {spec.dtype}"
        for there, what in (
            (spec.dropout_p, "dropout"),
            (spec.bias is not None, "bias"),
            (spec.mask is not None, "mask"),
            (spec.alibi, "slopes"),
            (spec.segments, "segments"),
            (spec.sinks, "sinks with float32 logits"),
            (spec.cache or spec.page_size, "cache_seqlens here"),
            (spec.softcap and spec.gradients, "gradient of a softcap"),
            (spec.lse and spec.gradients, "gradient of the log of the denominator"),
            (spec.deterministic and spec.gradients, "promise that gradients have the same bits on every run"),
        ):
            if there:
                return f"it has no {what}"
        if 0 in (*spec.batch, spec.q_len, spec.kv_len):
            return "it takes no empty arrays"
        if max(spec.head_dim, spec.v_head_dim) > 128 or spec.head_dim % 8 or spec.v_head_dim % 8:
            return f"it takes multiples of 8 up to 128 as head_dim, not {spec.head_dim} and {spec.v_head_dim}"
        if any(strides and strides[-1] != 1 for strides in spec.strides):
            return "it wants the features of a head side by side"
        placed = spec.causal or spec.window != (None, None)
        if placed and spec.alignment == "top_left" and (spec.varlen or spec.q_len != spec.kv_len):
            return "it has causality and window only where the last query faces the last key"
        if placed and (spec.q_len > spec.kv_len):
            return "it has no zeros for queries without any key"
        return super().lacks(spec)

    def unavailable(self, device: str) -> str | None:
        if not _INSTALLED:
            return "flash-attn-4 isn't installed"
        if not device.startswith("cuda"):
            return "it is for tensors on NVIDIA GPUs"
        if capability(device) < (9, 0):
            return "it needs a GPU of compute capability 9.0 or later"
        return None

    def call(self, spec: AttentionSpec, axes: FourAxes) -> Callable[[AttentionInputs], tuple[Any, Any]]:
        return partial(_call, spec, axes)


def _call(spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
    q, k, v = (each.transpose(1, 2) for each in (axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)))
    library = import_module("flash_attn.cute")
    options = {
        "softmax_scale": spec.scale,
        "causal": spec.causal,
        "window_size": spec.window,
        "softcap": spec.softcap,
    }
    if spec.lse:
        options["return_lse"] = True
    if not spec.varlen:
        result, lse = _pair(library.flash_attn_func(q, k, v, **options))
        return axes.back(result.transpose(1, 2)), axes.back(lse) if spec.lse else None
    result, lse = _pair(
        library.flash_attn_varlen_func(
            q[0], k[0], v[0], cu_seqlens_q=inputs.cu_seqlens_q, cu_seqlens_k=inputs.cu_seqlens_kv, **options
        )
    )
    return axes.back(result[None].transpose(1, 2)), axes.back(lse[None]) if spec.lse else None


def _pair(answer: Any) -> tuple[Any, Any]:
    """The result and the log of the denominator, whether or not that comes too."""
    return (answer[0], answer[1]) if isinstance(answer, tuple) else (answer, None)
