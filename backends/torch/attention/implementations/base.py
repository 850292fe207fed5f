"""The base class of implementations that call torch's ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.reference import allowed_keys, canonical_operands, distance
from einops_fast.attention.registry import Implementation, Prepared
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.backends.torch.attention.implementations.any_length import of_any_length
from einops_fast.backends.torch.attention.implementations.cpu_gradients import native
from einops_fast.backends.torch.attention.implementations.four_axes import (
    FourAxes,
    four_axes,
    in_four_axes,
    on_the_way,
    order_of_axes,
    ways_by_axes,
)
from einops_fast.backends.torch.types import PLAIN
from einops_fast.errors import OperandError
from einops_fast.runtime.tracing import is_tracing, known

if TYPE_CHECKING:
    from einops_fast.attention.prepare import Plan


class Sdpa(Implementation):
    """A way that takes four axes; there is one for CPUs, and a library each for GPUs."""

    #: Fields of a spec that it can't do, and what that is called.
    without: ClassVar[tuple[tuple[str, str], ...]] = (
        ("softcap", "softcap"), ("sinks", "attention sinks"), ("varlen", "packed sequences of several lengths"),
        ("cache", "cache_seqlens"), ("page_size", "block table"),
        ("transforms", "forward-mode derivative, and can't be vmapped"),
    )  # fmt: skip
    #: Whether it is for a GPU: there a bias or mask isn't copied to have four axes, and has all positions of queries
    #: and keys; and keys are hidden after scores are scaled: before that, -inf times a negative scale hides all others.
    on_gpu: ClassVar[bool] = True
    #: The spec that was asked about last, and the answer: who can do a call is asked again how.
    _last: tuple[AttentionSpec, FourAxes | str] | None = None

    def lacks(self, spec: AttentionSpec) -> str | None:
        for feature, what in self.without:
            if spec.has(feature):
                return f"it has no {what}"
        found = self.axes(spec)
        return found if isinstance(found, str) else None

    def axes(self, spec: AttentionSpec) -> FourAxes | str:
        """Return how the axes are merged, or why they aren't."""
        last = self._last
        if last is not None and last[0] is spec:
            return last[1]
        found = four_axes(spec, expands=not self.on_gpu)
        if not is_tracing():
            self._last = spec, found
        return found

    def knows(self, spec: AttentionSpec) -> tuple[Any, ...] | None:
        axes = self.axes(spec)
        return None if isinstance(axes, str) else tuple(axes)

    def compiled(self, spec: AttentionSpec, knows: Any = None) -> Callable[[AttentionInputs], tuple[Any, Any]]:
        axes = self.axes(spec) if knows is None else FourAxes(*knows)
        if isinstance(axes, str):
            raise OperandError(axes)
        return partial(self.call, spec, axes)

    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        return self.compiled(spec)(inputs)

    def call(self, spec: AttentionSpec, axes: FourAxes, inputs: AttentionInputs) -> tuple[Any, Any]:
        """Do what :meth:`run` does, with the axes known."""
        q, k, v = self._operands(inputs, axes)
        mask, causal, allowed = self._mask(spec, inputs, axes)
        run = self._native(spec)
        # A traced scale is torch's own, which a number would be for these sizes alone.
        scale = None if isinstance(spec.scale, torch.Tensor) else spec.scale
        result = run(q, k, v, mask, spec.dropout_p, causal, scale=scale, enable_gqa=axes.grouped)
        return self._finished(axes.back(result), allowed), None

    def plain(self, spec: AttentionSpec, axes: FourAxes) -> Callable[..., Any] | None:
        """Return what makes the result of q, k, v, and a bias or a mask if there is one, with four axes each.

        ``None`` where it takes more than these.
        """
        return None

    def prepared(self, plan: Plan, arrays: Sequence[Any]) -> Prepared:
        spec, axes = plan.spec, self.axes(plan.spec)
        plain = not (isinstance(axes, str) or spec.lse or any(dtype for _, _, dtype in plan.views)) and all(
            type(array) in PLAIN and array.dtype in (torch.bool, arrays[0].dtype) for array in arrays
        )
        run = self.plain(spec, axes) if plain and isinstance(axes, FourAxes) else None
        if run is None or isinstance(axes, str):
            return super().prepared(plan, arrays)
        views = in_four_axes(plan, axes)
        ways = ways_by_axes(plan, axes, views, arrays, flat=not self.on_gpu)
        if ways is None:
            *seen, back = views
            return Prepared(lambda *arrays: back(run(*[view(array) for view, array in zip(seen, arrays, strict=True)])))
        call, order = on_the_way(run, ways), None
        if self._by_axes_alone(spec):
            order = order_of_axes(plan, axes, arrays, views, ways)
        return Prepared(call, None if order is None else of_any_length(order, spec, arrays))

    def _by_axes_alone(self, spec: AttentionSpec) -> bool:
        """Return whether :meth:`plain` gives the same for all sizes of the axes."""
        return False

    def _operands(self, inputs: AttentionInputs, axes: FourAxes) -> tuple[Any, ...]:
        return axes.q(inputs.q), axes.kv(inputs.k), axes.kv(inputs.v)

    def _is_plain(self, spec: AttentionSpec) -> bool:
        """Return whether no mask has to be made."""
        return is_plain(spec) and (self.on_gpu or spec.scale > 0 or not spec.causal)

    def _native(self, spec: AttentionSpec) -> Callable[..., Any]:
        return native

    def _finished(self, result: Any, allowed: Any) -> Any:
        """Return the result, with zeros where a query sees no key."""
        return result  # torch sees to it on a CPU

    def _hidden(self, dtype: Any) -> float:
        """Return what is added to the score of a key that isn't seen."""
        return float("-inf")

    def _added(self, dtype: torch.dtype, bias: torch.dtype) -> torch.dtype:
        """Return the dtype in which a bias is added to scores."""
        return dtype

    def _mask(self, spec: AttentionSpec, inputs: AttentionInputs, axes: FourAxes) -> tuple[Any, bool, Any]:
        """Return what torch calls ``attn_mask`` and ``is_causal``, and which keys may be seen, in canonical form.

        Everything but plain causality becomes a mask.
        """
        if self._is_plain(spec):
            return None, spec.causal, None
        on = arrays_of("torch")
        x = canonical_operands(spec, inputs, on)
        ahead = distance(spec, x, on, 0)
        allowed = allowed_keys(spec, x, on, ahead)
        bias = inputs.bias
        if spec.alibi:
            slope = -x.alibi_slopes * abs(ahead).to(x.alibi_slopes.dtype)
            bias = slope if bias is None else bias + slope
        if bias is not None and allowed is not None:
            bias = torch.where(allowed, bias, self._hidden(inputs.q.dtype))
        found = allowed if bias is None else bias.to(self._added(inputs.q.dtype, bias.dtype))
        # Less than all axes is for the heads to have in common.
        found = found.reshape((1,) * (len(spec.batch) + 2 - found.dim()) + tuple(found.shape))
        if self.on_gpu and found.shape[-2:] != (spec.q_len, spec.kv_len):
            found = found.expand(*found.shape[:-2], spec.q_len, spec.kv_len)
        return axes.scores(found), False, allowed


def is_plain(spec: AttentionSpec) -> bool:
    """Return whether there is nothing but causality, and that as torch means it."""
    facing = spec.alignment == "top_left" or known(spec.q_len == spec.kv_len)
    folded = spec.alibi or spec.segments or spec.window != (None, None)
    return spec.bias is None and spec.mask is None and not folded and (facing or not spec.causal)
