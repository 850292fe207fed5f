"""FlashAttention-4, the kernels in CuTe that the package flash-attn-4 installs.

What is said here of version 4.0.0b36 was read in its source, and seen on an H200.
"""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from typing import Any

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.capabilities import FLASH_4
from einops_fast.backends.torch.attention.implementations.devices import capability
from einops_fast.backends.torch.attention.implementations.fa4_ops import fa4_forward
from einops_fast.backends.torch.attention.implementations.four_axes import (
    ALIGNED,
    FourAxes,
    OnFourAxes,
    odd_addresses,
    odd_strides,
)
from einops_fast.runtime.tracing import known


def _installed() -> bool:
    try:
        return find_spec("flash_attn.cute") is not None
    except ImportError:
        return False


_INSTALLED = _installed()

_WOULD_COPY = f"it would copy what doesn't begin at multiples of {ALIGNED} bytes"

_BACKWARD = (24, 32, 64, 88, 96, 120, 128, 160, 192, 224, 256)
"""Head dims with gradients. Those of q are wrong with 8, 16, 40, 72, 80, 104 and 112, the others weren't tried."""

_UNEVEN_BACKWARD = {192: (128,)}
"""The v_head_dims other than head_dim, by head_dim, with gradients. Those of q were right with 128 beside 64 in one run
and wrong in another; other pairs are wrong, don't run or weren't tried as often."""

_TILES = (64, 80, 96, 112, 128, 144)
"""How many keys it may take at a time on Hopper: pages of so many it copies whole, with what is beyond the end."""


class Fa4(OnFourAxes):
    """Its kernels by operators of ours, on views with the heads after the positions."""

    name = "fa4"
    # Forward it's 5% ahead of our own kernels in some problems, and as much behind in others. So it's timed beside
    # them, and isn't used where nothing is timed, while torch.compile traces for one.
    efficiency = 0.68
    slow_to_begin = True
    compiles = True
    may_refuse = True
    oldest = FLASH_4.least
    host = 2e-4, 2.5e-3
    without = (
        ("dropout_p", "dropout"), ("bias", "bias"), ("mask", "mask"), ("alibi", "slopes"), ("segments", "segments"),
        *OnFourAxes.without,
    )  # fmt: skip

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.gradients and (spec.cache or spec.page_size):
            return "it has no gradients where there are cache_seqlens"
        if spec.cache and (not spec.page_size or spec.page_size in _TILES):
            pages = f"pages of {spec.page_size}" if spec.page_size else "a cache without pages"
            return f"with {pages}, what lies beyond a sequence's end would have an effect if it is NaN"
        if not spec.scale > 0:
            return f"it hides keys before it scales the scores, so it takes a positive scale only, not {spec.scale}"
        return super().lacks(spec) or self._lacks_features(spec) or self._lacks_place(spec) or self._lacks_axes(spec)

    def _lacks_features(self, spec: AttentionSpec) -> str | None:
        dims = spec.head_dim, spec.v_head_dim
        if max(dims) > 256 or spec.head_dim % 8 or spec.v_head_dim % 8:
            return f"it takes multiples of 8 up to 256 as head_dim, not {dims[0]} and {dims[1]}"
        if dims[0] <= 96 and dims[1] > 192:
            return f"it has too few registers for values of {dims[1]} features beside head_dim {dims[0]}"
        if not spec.gradients:
            return None
        if dims[0] == dims[1]:
            return None if dims[0] in _BACKWARD else f"its gradients weren't seen to be right with head_dim {dims[0]}"
        if dims[1] not in _UNEVEN_BACKWARD.get(dims[0], ()):
            return f"its gradients weren't seen to be right with head_dim {dims[0]} beside {dims[1]} of v"
        return None

    def _lacks_place(self, spec: AttentionSpec) -> str | None:
        if odd_strides(spec):
            return _WOULD_COPY
        placed = spec.causal or spec.window != (None, None)
        if placed and spec.alignment == "top_left" and (spec.varlen or not known(spec.q_len == spec.kv_len)):
            return "it has causality and window only where the last query faces the last key"
        return None

    def _lacks_axes(self, spec: AttentionSpec) -> str | None:
        axes = self.axes(spec)
        if isinstance(axes, str):
            return axes
        if spec.gradients and axes.grouped and spec.head_dim != spec.v_head_dim:
            return "its gradients want the same head_dim for q, k and v where heads share their keys"
        if spec.varlen and axes.batch != 1:
            return "it takes no batch axes beside packed sequences, unless they merge with the heads"
        if any(size != 1 for size in spec.sinks_batch[: axes.cut]):
            return "its sinks are the same for all of the batch"
        if (spec.cache or spec.page_size) and axes.cut != 1:
            return "it takes one axis of sequences there, and others that merge to one of heads"
        return None

    def unavailable(self, device: str) -> str | None:
        return super().unavailable(device) if _INSTALLED else "flash-attn-4 isn't installed"

    def refuses(self, spec: AttentionSpec, inputs: AttentionInputs | None = None) -> str | None:
        reason = super().refuses(spec, inputs)
        # In torch 2.11, torch.compile can tell whether a tuple is less than another, and no more.
        if reason is None and spec.device and not capability(spec.device) < (10, 0):
            reason = _elsewhere(spec)
        return reason or (_WOULD_COPY if inputs is not None and odd_addresses(inputs) else None)

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        packed = spec.varlen
        kv = partial(_pages, axes) if spec.page_size else axes.kv
        q, k, v = (each.transpose(1, 2) for each in (axes.q(inputs.q), kv(inputs.k), kv(inputs.v)))
        if packed:
            q, k, v = q[0], k[0], v[0]
        # Not only their dtype matters: lists of numbers are to have no gaps.
        numbers = [
            None if each is None else each.contiguous()
            for each in (inputs.cu_seqlens_q, inputs.cu_seqlens_kv, inputs.cache_seqlens, inputs.block_table)
        ]
        longest = (spec.q_len, spec.kv_len) if packed else (None, None)
        sinks = _of_heads(inputs.sinks, axes) if spec.sinks else None
        result, lse = fa4_forward(
            q, k, v, sinks, *numbers, spec.scale, spec.causal, *spec.window, spec.softcap, *longest
        )  # fmt: skip
        if packed:
            result, lse = result[None], lse[None]
        return axes.back(result.transpose(1, 2)), axes.back(lse) if spec.lse else None


def _elsewhere(spec: AttentionSpec) -> str | None:
    """Return what isn't said to be there on other GPUs than Hopper's, by the library's source alone."""
    dims = spec.head_dim, spec.v_head_dim
    if max(dims) > 128 and dims not in ((192, 128), (256, 256)):
        return f"it takes head_dim up to 128 on this GPU, or 192 beside 128, or 256; not {dims[0]} and {dims[1]}"
    tried = not (spec.sinks or spec.cache or spec.page_size or (spec.gradients and (spec.softcap or spec.lse)))
    return None if tried else "sinks, lengths of a cache, and gradients of softcap and lse were tried on Hopper only"


def _pages(axes: FourAxes, array: Any) -> Any:
    """Return pages of keys or values, with one axis of heads."""
    array = array.expand(array.shape[0], *axes.kv_sizes[1:], *array.shape[-2:])
    return array.reshape(array.shape[0], axes.kv_heads, *array.shape[-2:])


def _of_heads(sinks: Any, axes: FourAxes) -> Any:
    """Return a sink for every head."""
    whole = sinks.expand(*sinks.shape[: axes.cut], *axes.sizes[axes.cut :])
    return whole.reshape(axes.heads).contiguous()
