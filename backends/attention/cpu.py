"""torch's scaled_dot_product_attention on a CPU, with the log of the denominator and second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.attention.cpu_gradients import (
    TRIED,
    attention_with_log,
    differentiable_twice,
    native,
    with_wide_gradients,
)
from einops_fast.backends.attention.four_axes import FourAxes
from einops_fast.backends.attention.sdpa import Sdpa, is_plain
from einops_fast.backends.torch_types import PLAIN
from einops_fast.tracing import is_tracing

__all__ = ["Cpu"]


def _is_masked(spec: AttentionSpec) -> bool:
    """Whether there is nothing but either a bias or a mask."""
    shapes = [shape for shape in (spec.bias, spec.mask) if shape is not None]
    more = spec.alibi or spec.segments or spec.window != (None, None) or spec.causal
    return len(shapes) == 1 and not more


class Cpu(Sdpa):
    """What ``scaled_dot_product_attention`` does on a CPU, and on all other devices but NVIDIA GPUs."""

    name = "cpu"
    expands = True
    flat = True
    spreads = False

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.lse:
            if spec.bias_gradient:
                return "it has no gradient of the bias where the log of the denominator is asked for"
            if spec.dropout_p:
                return "it has no dropout where the log of the denominator is asked for"
            if 0 in (*spec.batch, spec.q_len, spec.kv_len, spec.head_dim, spec.v_head_dim):
                return "it returns no log of the denominator of empty arrays"
        return super().lacks(spec)

    def supports(self, spec: AttentionSpec, device: str) -> str | None:
        reason = super().supports(spec, device)
        if reason is None and spec.lse:
            if not TRIED:
                return "it returns the log of the denominator from torch 2.13 on"
            if not device.startswith("cpu"):
                return "it returns the log of the denominator on CPUs only"
            if is_tracing():
                return "torch.compile can't trace how it gets the log of the denominator"
        return reason

    def refuses(self, spec: AttentionSpec, inputs: AttentionInputs) -> str | None:
        if spec.lse and any(type(each) not in PLAIN for each in (inputs.q, inputs.k, inputs.v)):
            return "it returns the log of the denominator of plain tensors only"
        return None

    def _call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        if not spec.lse:
            return super()._call(spec, axes, inputs)
        mask, causal, _ = self._mask(spec, inputs, axes)
        q, k, v = axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)
        result, lse = attention_with_log(q, k, v, mask, causal, spec.scale)
        return axes.back(result), axes.back(lse)

    def plain(self, spec: AttentionSpec, axes: FourAxes) -> Callable[..., Any] | None:
        if not (is_plain(spec) or _is_masked(spec)):
            return None
        options: dict[str, Any] = {"dropout_p": spec.dropout_p} if spec.dropout_p else {}
        if spec.causal:
            options["is_causal"] = True
        if spec.scale != max(1, spec.head_dim) ** -0.5:
            options["scale"] = spec.scale
        if axes.grouped:
            options["enable_gqa"] = True
        # Each argument that is as it would be anyway takes torch time to read.
        run = self._native(spec)
        return partial(run, **options) if options else run

    def _native(self, spec: AttentionSpec) -> Callable[..., Any]:
        if not spec.gradients or is_tracing():
            return native
        able = not spec.bias_gradient and 0 not in (*spec.batch, spec.q_len, spec.kv_len, spec.head_dim)
        low = spec.dtype in ("float16", "bfloat16") and spec.head_dim == spec.v_head_dim and not spec.dropout_p
        return with_wide_gradients if TRIED and able and low else differentiable_twice

    def unavailable(self, device: str) -> str | None:
        return "on NVIDIA GPUs torch's backends are called one by one" if device.startswith("cuda") else None
