"""Running our attention kernels on torch's tensors: plans by spec and layouts, memory for what the kernels write."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.absent_gpu import aimed
from einops_fast.backends.torch.attention.gradients import GradientsOfCall, sinks_gradient
from einops_fast.backends.torch.attention.layouts import (
    CANONICAL,
    SINKS,
    Arrays,
    Given,
    example,
    extras_of,
    kernel_layouts,
    layout_of,
    neighbouring,
    problem_of,
    result_layout,
)
from einops_fast.backends.torch.backend import fp32_precision
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.attention.arguments import NO_EXTRAS, Extras
from einops_fast.backends.triton.attention.plan import forward_plan
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides
from einops_fast.runtime.plan_cache import emptied_with_plans, keep

__all__ = ["AttentionCall", "Differentiated", "backward", "call_of", "forward"]

MEMORY = TorchMemory()

Differentiated = tuple[Any, Any, Any, Any, Any]
"""Gradients of q, k, v, the bias and the sinks; ``None`` for those that weren't asked for."""


class AttentionCall:
    """One kind of call: what it computes of arrays with these layouts, with all that was thought about it.

    The kernels get addresses, and strides of their own: arrays are never seen in another order while it runs. If it
    ``joins``, gradients of q, k and v are parts of one array where these are, and share memory then.
    """

    def __init__(self, spec: AttentionSpec, arrays: Arrays, given: Given = CANONICAL, joins: bool = False) -> None:
        self.spec, self.given = spec, given
        canonical = given.canonical(arrays)
        q = canonical[0]
        rows = q.shape[-2]
        result = result_layout(spec, rows)
        self._shape = shape = result.shape
        as_given = given.result(example(result), torch.permute)
        self._result = tuple(as_given.shape), as_given.stride(), q.dtype
        logs = shape[:-1]
        self._lse = logs, contiguous_strides(logs), getattr(torch, accumulator(spec.dtype))
        self._new = MEMORY.here(q)
        self._present = tuple([at for at, array in enumerate(arrays[3:]) if array is not None])
        self._nothing = not (prod(shape) and canonical[1].numel())
        self._device = MEMORY.device(q)
        self._together = neighbouring([layout_of(array) for array in arrays[:3]]) if joins else {}
        self._backward: dict[Any, GradientsOfCall] = {}
        aim = aimed()
        self._processors = _device(self._device) if aim is None else (aim.capability, aim.multiprocessors)
        self._run = forward_plan(problem_of(spec, kernel_layouts(spec, canonical), self._processors)).run

    def tensors(self, extras: Extras) -> tuple[Any, ...]:
        """Return the extras that aren't None."""
        return tuple([extras[at] for at in self._present])

    def extras(self, tensors: Sequence[Any]) -> Extras:
        """Return the extras of such tensors."""
        if not tensors:
            return NO_EXTRAS
        found = [*NO_EXTRAS]
        for at, tensor in zip(self._present, tensors, strict=True):
            found[at] = tensor
        return Extras._make(found)

    def canonical_result(self, array: Any) -> Any:
        """Return an array like the result in canonical order."""
        return self.given.result.back(array, self._shape, torch.permute)

    def forward(self, q: Any, k: Any, v: Any, extras: Extras) -> tuple[Any, Any]:
        """Return the result, and the logarithms in canonical order, without regard to gradients."""
        if MEMORY.current_device() == self._device:
            return self._forward(q, k, v, extras)
        with MEMORY.on_device(self._device):
            return self._forward(q, k, v, extras)

    def _forward(self, q: Any, k: Any, v: Any, extras: Extras) -> tuple[Any, Any]:
        out, lse = self._new(*self._result), self._new(*self._lse)
        if self.spec.varlen:
            # Tokens of no sequence.
            out.zero_()
            lse.fill_(float("-inf"))
        self._run(MEMORY, self._device, q, k, v, out, lse, extras)
        return out, lse

    def backward(
        self, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any, d_out: Any, d_lse: Any, wanted: Sequence[bool]
    ) -> Differentiated:
        """Return the gradients of q, k, v, the bias and the sinks, each in the order in which its operand is given.

        Args:
            q, k, v, extras: what :meth:`forward` had.
            out, lse: what it gave.
            d_out, d_lse: gradients of these; either may be ``None``.
            wanted: of which of the five there are to be gradients; of the first three, if there are no others.
        """
        if self._nothing:
            return self._of_nothing(q, k, v, extras, lse, d_lse, wanted)
        d_out = torch.zeros_like(out) if d_out is None else d_out.resolve_neg()
        if 0 in d_out.stride():  # of a sum, say: kernels of their own aren't worth compiling
            d_out = torch.empty_like(out).copy_(d_out)
        if d_lse is not None:
            d_lse = d_lse.resolve_neg().contiguous()
        steps = self._steps(q, k, v) if self._together else None
        key = d_out.stride(), d_lse is None, wanted, steps
        prepared = self._backward.get(key)
        if prepared is None:
            arrays, like_result = (q, k, v, *extras), layout_of(self.canonical_result(d_out))
            together = None if steps is None else (self._together[steps], (0, steps[0], sum(steps)))
            prepared = self._backward[key] = GradientsOfCall(
                self.spec, self.given, arrays, like_result, wanted, together, MEMORY, self._processors
            )
        given = (q, k, v), (out, lse), (d_out, d_lse), extras
        if MEMORY.current_device() == self._device:
            into, delta = prepared(self._device, *given)
        else:
            with MEMORY.on_device(self._device):
                into, delta = prepared(self._device, *given)
        if prepared.simple:
            return into.q, into.k, into.v, None, None
        of_q, of_k, of_v, _, of_sinks = prepared.wanted
        return (
            prepared.summed(0, into.q, q) if of_q else None,
            prepared.summed(1, into.k, k) if of_k else None,
            prepared.summed(2, into.v, v) if of_v else None,
            into.bias,
            self._of_sinks(extras, lse, delta.view(lse.shape)) if of_sinks else None,
        )

    def _steps(self, q: Any, k: Any, v: Any) -> tuple[int, int] | None:
        """Return how many elements k begins after q, and v after k, if these are parts of one array."""
        first, second, third = q.data_ptr(), k.data_ptr(), v.data_ptr()
        item = q.element_size()
        steps = (second - first) // item, (third - second) // item
        # Other arrays may be neighbours by chance.
        together = steps in self._together and q.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        return steps if together else None

    def _of_nothing(
        self, q: Any, k: Any, v: Any, extras: Extras, lse: Any, d_lse: Any, wanted: Sequence[bool]
    ) -> Differentiated:
        """Return gradients where there are no keys: only the logarithms may depend on anything, the sinks."""
        of_sinks = len(wanted) > 4 and wanted[4]
        d_sinks = None
        if of_sinks:
            d_sinks = self._of_sinks(extras, lse, torch.zeros_like(lse) if d_lse is None else -d_lse)
        operands = zip((q, k, v, extras.bias), wanted, strict=False)
        found = [torch.zeros_like(each) if is_wanted else None for each, is_wanted in operands]
        return found[0], found[1], found[2], found[3] if len(found) > 3 else None, d_sinks

    def _of_sinks(self, extras: Extras, lse: Any, delta: Any) -> Any:
        view = self.given.views[SINKS]
        sinks = view(extras.sinks, torch.permute)
        return view.back(
            sinks_gradient(self.spec, sinks, extras.q_starts, lse, delta), extras.sinks.shape, torch.permute
        )


_calls: dict[Any, AttentionCall] = emptied_with_plans({})


def call_of(question: Hashable, arrays: Arrays, spec_of: Callable[[], AttentionSpec]) -> AttentionCall:
    """Return the call of arrays in canonical order, made once for those that are alike.

    Args:
        question: what the spec follows from, for arrays of these layouts; the spec itself, say.
        arrays: those of a call.
        spec_of: makes the spec.
    """
    key = question, *_key(arrays)
    found = _calls.get(key)
    if found is None:
        found = AttentionCall(spec_of(), arrays)
        keep(_calls, key, found)
    return found


def forward(spec: AttentionSpec, arrays: Arrays) -> tuple[Any, Any]:
    """Return the result and the logarithms of arrays in canonical order, without regard to gradients."""
    q, k, v, *_ = arrays
    return call_of(spec, arrays, lambda: spec).forward(q, k, v, extras_of(arrays))


def backward(
    spec: AttentionSpec, arrays: Arrays, out: Any, lse: Any, d_out: Any, d_lse: Any, wanted: Sequence[bool]
) -> Differentiated:
    """Return the gradients of q, k, v, the bias and the sinks; see :meth:`AttentionCall.backward`."""
    q, k, v, *_ = arrays
    call = call_of(spec, arrays, lambda: spec)
    return call.backward(q, k, v, extras_of(arrays), out, lse, d_out, d_lse, tuple(wanted))


@lru_cache(maxsize=64)
def _device(device: int) -> tuple[tuple[int, int], int]:
    """Compute capability and number of processors; of the interpreter, those of a large GPU."""
    if not torch.cuda.is_available():
        return (9, 0), 132
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), int(properties.multi_processor_count)


def _key(arrays: Arrays) -> tuple[Any, ...]:
    """Return what a plan depends on apart from what a spec follows from."""
    q = arrays[0]
    layouts = [None if each is None else (each.shape, each.stride(), each.dtype) for each in arrays]
    return q.get_device(), fp32_precision() if q.dtype == torch.float32 else "", *layouts
