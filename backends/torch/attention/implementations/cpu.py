"""torch's scaled_dot_product_attention on a CPU, called in the ways that it is fast and right in.

The log of the denominator and second derivatives, which it lacks, are in :mod:`cpu_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from einops_fast.attention.registry import Prepared
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.implementations.base import Sdpa, is_plain
from einops_fast.backends.torch.attention.implementations.cpu_gradients import (
    TRIED,
    added_mask,
    attention_with_log,
    differentiable_twice,
    even_features,
    in_float32,
    native,
    with_wide_gradients,
)
from einops_fast.backends.torch.attention.implementations.four_axes import FourAxes
from einops_fast.backends.torch.types import HALVES, PLAIN, is_jit_tracing
from einops_fast.runtime.tracing import is_tracing

if TYPE_CHECKING:
    from einops_fast.attention.prepare import Plan

_MANY = 1 << 15
"""Elements of a mask from which on to convert it takes longer than to ask whether that is to be done."""


def _is_masked(spec: AttentionSpec) -> bool:
    """Return whether there is nothing but either a bias or a mask."""
    shapes = [shape for shape in (spec.bias, spec.mask) if shape is not None]
    more = spec.alibi or spec.segments or spec.window != (None, None) or spec.causal
    return len(shapes) == 1 and not more


def _with_added_mask(run: Callable[..., Any], q: Any, k: Any, v: Any, mask: Any, *others: Any, **options: Any) -> Any:
    """Call torch's function with numbers in place of a mask: it makes them itself, which takes longer."""
    if q.is_cpu and mask.numel() >= _MANY:
        mask = added_mask(mask, q.dtype)
    return run(q, k, v, mask, *others, **options)


def _facing_last(run: Callable[..., Any], q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Call torch's function with the last query facing the last key, where its own causality has the first ones."""
    queries, keys = q.shape[-2], k.shape[-2]
    if queries == 1:  # it sees all keys
        return run(q, k, v, **options)
    if queries == keys:
        return run(q, k, v, is_causal=True, **options)
    seen = torch.ones((queries, keys), dtype=torch.bool, device=q.device).tril_(keys - queries)
    return _with_added_mask(run, q, k, v, seen, **options)


def _is_causal_alone(spec: AttentionSpec) -> bool:
    """Return whether there is nothing but causality, whichever query faces which key."""
    return spec.causal and spec.scale > 0 and is_plain(replace(spec, causal=False))


def _is_empty(spec: AttentionSpec) -> bool:
    return 0 in (*spec.batch, spec.q_len, spec.kv_len, spec.head_dim, spec.v_head_dim)


def _has_four_axes(spec: AttentionSpec) -> bool:
    """Return whether torch has q in four axes, too: of others in low precision, it makes all scores in float32."""
    shared = spec.k_batch[-1:] == (1,) != spec.batch[-1:]
    return len(spec.batch) in ((2, 3) if shared else (2,))


def _lies_as_asked(spec: AttentionSpec, q: Any) -> bool:
    """Return whether q is contiguous in the order of axes that the result is asked for in."""
    return bool((q.permute(spec.order) if spec.order else q).is_contiguous())


def _evens_out(spec: AttentionSpec) -> bool:
    """Return whether features of zeros cost less than making all scores, which torch does without them.

    Measured: forward they do, and twice to 14 times, but for float16, whose own kernel may be the slower one. Gradients
    are products mostly, the more so in float32.
    """
    scores, compiles = prod(spec.batch) * spec.q_len * spec.kv_len, is_tracing()
    if not (compiles or isinstance(scores, int)):  # padding would make constants of recorded sizes
        return False
    if not spec.gradients and spec.dtype != "float16":
        return True
    if compiles:  # nothing is to depend on sizes
        return False
    return scores >= 1 << 23 or (spec.dtype == "bfloat16" and spec.kv_len >= 256 and scores >= 1 << 18)


def _with_even_features(run: Callable[..., Any], q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
    """Call torch's function on features filled up with zeros: for uneven ones it would make all scores."""
    if not q.is_cpu:
        return run(q, k, v, *others, **options)
    options.setdefault("scale", q.shape[-1] ** -0.5)
    return run(*even_features(q, k, v), *others, **options)[..., : v.shape[-1]]


class Cpu(Sdpa):
    """What ``scaled_dot_product_attention`` does on a CPU, and on all other devices but NVIDIA GPUs."""

    name = "cpu"
    recordable = True
    on_gpu = False

    def lacks(self, spec: AttentionSpec) -> str | None:
        if spec.lse:
            if spec.bias_gradient:
                return "it has no gradient of the bias where the log of the denominator is asked for"
            if spec.dropout_p:
                return "it has no dropout where the log of the denominator is asked for"
            if _is_empty(spec):
                return "it returns no log of the denominator of empty arrays"
        return super().lacks(spec)

    def refuses(self, spec: AttentionSpec, inputs: AttentionInputs | None = None) -> str | None:
        reason = super().refuses(spec, inputs)
        if reason is None and spec.lse:
            if not TRIED:
                return "it returns the log of the denominator from torch 2.13 on"
            if spec.device and not spec.device.startswith("cpu"):
                return "it returns the log of the denominator on CPUs only"
            if is_tracing():
                return "torch.compile can't trace how it gets the log of the denominator"
            if inputs is not None and any(type(each) not in PLAIN for each in (inputs.q, inputs.k, inputs.v)):
                return "it returns the log of the denominator of plain tensors only"
        return reason

    def _added(self, dtype: torch.dtype, bias: torch.dtype) -> torch.dtype:
        return torch.float32 if dtype in HALVES and bias != dtype else dtype

    def prepared(self, plan: Plan, arrays: Sequence[Any]) -> Prepared:
        found, spec = super().prepared(plan, arrays), plan.spec
        q = plan.views[0][1](arrays[0], plan.on.permute)
        if _has_four_axes(spec) or spec.lse or _lies_as_asked(spec, q):
            return found
        # The result lies as q does, where torch's own function gives one in the order of its axes.
        run = found.run
        return found._replace(run=lambda *arrays: run(*arrays).contiguous())

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        if not spec.lse:
            result, lse = super().call(spec, axes, inputs)
            if (is_tracing() or is_jit_tracing()) and not _has_four_axes(spec):
                order = spec.order or tuple(range(result.dim()))
                result = result.permute(order).contiguous().permute(tuple(map(order.index, range(len(order)))))
            return result, lse
        mask, causal, _ = self._mask(spec, inputs, axes)
        q, k, v = axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)
        result, lse = attention_with_log(q, k, v, mask, causal, spec.scale)
        return axes.back(result), axes.back(lse)

    def plain(self, spec: AttentionSpec, axes: FourAxes) -> Callable[..., Any] | None:
        causal_alone = _is_causal_alone(spec)
        if not (self._is_plain(spec) or _is_masked(spec) or causal_alone):
            return None
        options: dict[str, Any] = {"dropout_p": spec.dropout_p} if spec.dropout_p else {}
        facing_last = causal_alone and spec.alignment == "bottom_right"
        if spec.causal and not facing_last:
            options["is_causal"] = True
        if spec.scale != max(1, spec.head_dim) ** -0.5:
            options["scale"] = spec.scale
        if axes.grouped:
            options["enable_gqa"] = True
        # Each argument that is as it would be anyway takes torch time to read.
        run = self._native(replace(spec, causal=False) if facing_last else spec)
        if facing_last:
            run = partial(_facing_last, run)
        return partial(run, **options) if options else run

    def _by_axes_alone(self, spec: AttentionSpec) -> bool:
        by_position = not spec.causal or spec.alignment == "top_left" or _is_causal_alone(spec)
        return by_position and spec.head_dim == spec.v_head_dim and not _is_empty(spec)

    def _native(self, spec: AttentionSpec) -> Callable[..., Any]:
        fused = not spec.bias_gradient and not spec.dropout_p and not _is_empty(spec)
        even = spec.head_dim == spec.v_head_dim
        evened = fused and not even and _evens_out(spec)
        run = native
        if spec.gradients and not is_tracing():
            low = spec.dtype in ("float16", "bfloat16") and fused and (even or evened)
            run = with_wide_gradients if TRIED and low else differentiable_twice
            if low and not _has_four_axes(spec):
                run = in_float32
        if not (self._is_plain(spec) or spec.bias or spec.alibi or is_tracing()):
            run = partial(_with_added_mask, run)
        return partial(_with_even_features, run) if evened else run

    def unavailable(self, device: str) -> str | None:
        return "on NVIDIA GPUs torch's backends are called one by one" if device.startswith("cuda") else None
