"""torch's FlexAttention: the modifiers become small functions that the compiler builds into its kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.attention.four_axes import FourAxes, OnFourAxes
from einops_fast.backends.torch_types import is_traced
from einops_fast.backends.triton_support import installed_version

__all__ = ["Flex"]

_Modifier = Callable[..., Any]

_MOST_FUNCTIONS = 256

_FEATURES = 16, 256
"""The least and the most head_dim: its kernels multiply no fewer, and don't fit in shared memory with more."""

_COMPILES = installed_version() is not None
"""Whether torch.compile finds the Triton that its kernels are written in."""


class Flex(OnFourAxes):
    """One compiled kernel per spec, which takes seconds at the first call."""

    name = "flex"
    efficiency = 0.45  # what it reaches is a little more, but its mask of blocks takes time too
    efficiencies = MappingProxyType({"float32": 0.2})  # Triton multiplies float32 slowly
    slow_to_begin = True
    may_refuse = True

    def __init__(self) -> None:
        # Measuring it, and each kind of call, get the same one.
        self._functions: dict[AttentionSpec, Callable[..., Any]] = {}

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.dtype not in ("float16", "bfloat16", "float32"):
            return f"it takes float16, bfloat16 and float32 only, not {spec.dtype}"
        if spec.dropout_p:
            return "it has no dropout"
        if spec.sinks:
            return "it has no attention sinks"
        if spec.cache or spec.page_size:
            return "it isn't used with cache_seqlens: the mask of blocks would be made anew in each call"
        least, most = _FEATURES
        if min(spec.head_dim, spec.v_head_dim) < least or max(spec.head_dim, spec.v_head_dim) > most:
            return f"it takes head_dim from {least} to {most}, not {spec.head_dim} and {spec.v_head_dim}"
        if spec.bias_gradient:
            return "it adds up the gradient of the bias atomically, in the dtype of the bias"
        if spec.deterministic and spec.gradients:
            return "its gradients needn't have the same bits on every run"
        if spec.varlen and (spec.bias is not None or spec.mask is not None or spec.segments or spec.alibi):
            return "it takes packed sequences without bias, mask, slopes and segments only"
        if 0 in (*spec.batch, spec.q_len, spec.kv_len):
            return "it takes no empty arrays"
        return super().lacks(spec)

    def unavailable(self, device: str) -> str | None:
        if not device.startswith("cuda"):
            return "it is used on NVIDIA GPUs only"
        return None if _COMPILES else "torch.compile needs Triton for it, which isn't installed"

    def call(self, spec: AttentionSpec, axes: FourAxes) -> Callable[[AttentionInputs], tuple[Any, Any]]:
        if torch.compiler.is_compiling():
            return partial(_call, spec, axes, self.function())
        if spec not in self._functions:
            while len(self._functions) >= _MOST_FUNCTIONS:
                self._functions.pop(next(iter(self._functions)))
            self._functions[spec] = self.function()
        return partial(_call, spec, axes, self._functions[spec])

    def function(self) -> Callable[..., Any]:
        """FlexAttention, to be compiled at the first call."""
        if torch.compiler.is_compiling():
            return flex_attention

        def flex(*arguments: Any, **options: Any) -> Any:
            return flex_attention(*arguments, **options)

        # The compiler counts how often it compiles a piece of code, and gives up at some time: each has its own.
        flex.__code__ = flex.__code__.replace()
        compiled: Callable[..., Any] = torch.compile(flex, fullgraph=True, dynamic=False)
        return compiled


def _call(
    spec: AttentionSpec, axes: FourAxes, function: Callable[..., Any], inputs: AttentionInputs
) -> tuple[Any, Any]:
    q, k, v = axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)
    result = function(
        q,
        k,
        v,
        score_mod=_score_modifier(spec, inputs, axes),
        block_mask=_block_mask(spec, inputs, axes, q.shape[-2], k.shape[-2]),
        scale=spec.scale,
        enable_gqa=axes.grouped,
        return_aux=AuxRequest(lse=True) if spec.lse else None,
    )
    if not spec.lse:
        return axes.back(result), None
    result, aux = result
    return axes.back(result), axes.back(aux.lse)


def _shift(spec: AttentionSpec) -> int:
    return spec.kv_len - spec.q_len if spec.alignment == "bottom_right" else 0


def _score_modifier(spec: AttentionSpec, inputs: AttentionInputs, axes: FourAxes) -> _Modifier | None:
    """Softcap, bias and slopes; ``None`` if there are none."""
    if not spec.softcap and spec.bias is None and not spec.alibi:
        return None
    softcap, shift = spec.softcap, _shift(spec)
    bias = None if inputs.bias is None else axes.scores(inputs.bias)
    slopes = None if inputs.alibi_slopes is None else axes.scores(inputs.alibi_slopes[..., None, None])

    def modify(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap:
            score = softcap * torch.tanh(score / softcap)
        if bias is not None:
            score = score + _at(bias, b, h, i, j)
        if slopes is not None:
            score = score - _at(slopes, b, h, i, j) * torch.abs(i + shift - j)
        return score

    return modify


def _at(array: Any, *indices: Any) -> Any:
    """The element at these indices; axes of size 1 have one for all."""
    return array[tuple([index if size != 1 else index * 0 for size, index in zip(array.shape, indices, strict=True)])]


def _block_mask(spec: AttentionSpec, inputs: AttentionInputs, axes: FourAxes, q_len: int, kv_len: int) -> Any:
    device = str(inputs.q.device)
    if spec.varlen:
        ends = inputs.cu_seqlens_q, inputs.cu_seqlens_kv
        return create_block_mask(_packed_mask(spec, *ends, q_len, kv_len), None, None, q_len, kv_len, device)
    if spec.mask is None and not spec.segments:
        if not spec.causal and spec.window == (None, None):
            return None
        # Of tensors without values, a mask has none either: it isn't for other calls.
        make = _fixed_mask if is_traced() else _kept_mask
        return make(spec.causal, spec.window, _shift(spec), q_len, kv_len, device)
    band = _band(spec.causal, spec.window, _shift(spec))
    mask = None if inputs.mask is None else axes.scores(inputs.mask)
    q_segments = kv_segments = None
    if spec.segments:
        q_segments = axes.scores(inputs.q_segments[..., None])
        kv_segments = axes.scores(inputs.kv_segments[..., None, :])

    def allowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        found = band(b, h, i, j)
        if mask is not None:
            found = found & _at(mask, b, h, i, j)
        if q_segments is not None:
            found = found & (_at(q_segments, b, h, i, j) == _at(kv_segments, b, h, i, j))
        return found

    arrays = [array for array in (mask, q_segments, kv_segments) if array is not None]
    batch = axes.batch if any(array.shape[0] != 1 for array in arrays) else None
    heads = axes.heads if any(array.shape[1] != 1 for array in arrays) else None
    return create_block_mask(allowed, batch, heads, q_len, kv_len, device)


def _band(causal: bool, window: tuple[int | None, int | None], shift: int) -> _Modifier:
    """Causality and window."""

    def allowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        ahead = i + shift - j
        return _near(ahead == ahead, ahead, causal, window)

    return allowed


def _near(found: Any, ahead: Any, causal: bool, window: tuple[int | None, int | None]) -> Any:
    """``found``, and that causality and window let a query see a key that it is so far ahead of."""
    before, after = window
    if causal:
        found = found & (ahead >= 0)
    if before is not None:
        found = found & (ahead <= before)
    if after is not None:
        found = found & (ahead >= -after)
    return found


def _fixed_mask(
    causal: bool, window: tuple[int | None, int | None], shift: int, q_len: int, kv_len: int, device: str
) -> Any:
    return create_block_mask(_band(causal, window, shift), None, None, q_len, kv_len, device)


_kept_mask = lru_cache(maxsize=256)(_fixed_mask)


def _packed_mask(spec: AttentionSpec, q_ends: Any, kv_ends: Any, q_len: int, kv_len: int) -> _Modifier:
    """A query sees keys of its own sequence, with positions counted there."""
    at_end = spec.alignment == "bottom_right"
    q_of = torch.searchsorted(q_ends[1:].contiguous(), torch.arange(q_len, device=q_ends.device), right=True)
    kv_of = torch.searchsorted(kv_ends[1:].contiguous(), torch.arange(kv_len, device=kv_ends.device), right=True)
    # Places after the last sequence belong to none, and to different ones.
    last = q_ends.shape[0] - 1
    kv_of = torch.where(kv_of == last, last + 1, kv_of)
    q_lengths, kv_lengths = q_ends.diff(), kv_ends.diff()
    shifts = kv_lengths - q_lengths if at_end else torch.zeros_like(q_lengths)
    # Where key j faces query i: i - start of q + shift == j - start of kv.
    offset = (shifts - q_ends[:-1] + kv_ends[:-1])[q_of.clamp(max=max(0, last - 1))]
    causal, window = spec.causal, spec.window

    def allowed(b: Any, h: Any, i: Any, j: Any) -> Any:
        return _near(q_of[i] == kv_of[j], i + offset[i] - j, causal, window)

    return allowed
