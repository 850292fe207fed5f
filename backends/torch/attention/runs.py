"""Running our attention kernels on torch's tensors: plans by spec and layouts, memory for what the kernels write."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

import torch

from einops_fast.attention.arrays import arrays_of
from einops_fast.attention.axes import View
from einops_fast.attention.prepare import Plan
from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.torch.attention.gradients import Differentiated, GradientsOfCall, sinks_gradient
from einops_fast.backends.torch.attention.layouts import (
    NAMES,
    SINKS,
    Arrays,
    example,
    layout_of,
    problem_of,
    result_layout,
)
from einops_fast.backends.torch.backend import fp32_precision
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.types import guards_of
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.plan import forward_plan
from einops_fast.backends.triton.launching.launch import accumulator
from einops_fast.planning.layout import contiguous_strides
from einops_fast.runtime.plan_cache import emptied_with_plans, keep, recall, remember_alike

MEMORY = TorchMemory()


class AttentionCall:
    """One kind of call: what it computes of arrays with these layouts, with all that was thought about it.

    The kernels get addresses, and strides of their own: arrays are never seen in another order while it runs.
    """

    def __init__(self, plan: Plan, arrays: Arrays) -> None:
        self.spec = spec = plan.spec
        self._back = plan.result
        views = {name: view for name, view, _ in plan.views}
        self.views = tuple([views.get(name, View()) for name in NAMES])
        canonical = self.canonical(arrays)
        q = canonical[0]
        result = result_layout(spec, q.shape[-2])
        self._shape = result.shape
        as_given = self._back(example(result), torch.permute)
        self._result = tuple(as_given.shape), as_given.stride(), q.dtype
        logs = self._shape[:-1]
        self._lse = logs, contiguous_strides(logs), getattr(torch, accumulator(spec.dtype))
        self.memory, self.new = MEMORY, MEMORY.here(q)
        self._nothing = not (prod(self._shape) and canonical[1].numel())
        self._device = MEMORY.device(q)
        self._backward: dict[Any, GradientsOfCall] = {}
        self.processors = MEMORY.processors(self._device)
        self._run = forward_plan(problem_of(spec, canonical, self.processors)).run

    def canonical(self, arrays: Arrays) -> Arrays:
        pairs = zip(arrays, self.views, strict=True)
        return tuple([None if array is None else view(array, torch.permute) for array, view in pairs])

    def canonical_result(self, array: Any) -> Any:
        """Return an array like the result in canonical order."""
        return self._back.back(array, self._shape, torch.permute)

    def forward(self, q: Any, k: Any, v: Any, extras: Extras) -> tuple[Any, Any]:
        """Return the result, and the logarithms in canonical order, without regard to gradients."""
        if MEMORY.current_device() == self._device:
            return self._forward(q, k, v, extras)
        with MEMORY.on_device(self._device):
            return self._forward(q, k, v, extras)

    def _forward(self, q: Any, k: Any, v: Any, extras: Extras) -> tuple[Any, Any]:
        out, lse = self.new(*self._result), self.new(*self._lse)
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

        Either of ``d_out`` and ``d_lse`` may be ``None``. ``wanted`` says of which of the five there are to be
        gradients; of the first three, if there are no others.
        """
        if self._nothing:
            return self._of_nothing(q, k, v, extras, lse, d_lse, wanted)
        d_out = torch.zeros_like(out) if d_out is None else d_out.resolve_neg()
        if 0 in d_out.stride():  # of a sum, say: kernels of their own aren't worth compiling
            d_out = torch.empty_like(out).copy_(d_out)
        if d_lse is not None:
            d_lse = d_lse.resolve_neg().contiguous()
        key = d_out.stride(), d_lse is None, wanted
        prepared = self._backward.get(key)
        if prepared is None:
            arrays, like_result = (q, k, v, *extras), layout_of(self.canonical_result(d_out))
            prepared = self._backward[key] = GradientsOfCall(self, arrays, like_result, wanted)
        given = (q, k, v), (out, lse), (d_out, d_lse), extras
        if MEMORY.current_device() == self._device:
            return prepared(self._device, *given)
        with MEMORY.on_device(self._device):
            return prepared(self._device, *given)

    def _of_nothing(
        self, q: Any, k: Any, v: Any, extras: Extras, lse: Any, d_lse: Any, wanted: Sequence[bool]
    ) -> Differentiated:
        """Return gradients where there are no keys: only the logarithms may depend on anything, the sinks."""
        d_sinks = None
        if len(wanted) > 4 and wanted[4]:
            delta = torch.zeros_like(lse) if d_lse is None else -d_lse
            d_sinks = sinks_gradient(self.spec, self.views[SINKS], extras, lse, delta)
        operands = zip((q, k, v, extras.bias), wanted, strict=False)
        found = [torch.zeros_like(each) if is_wanted else None for each, is_wanted in operands]
        return found[0], found[1], found[2], found[3] if len(found) > 3 else None, d_sinks


_calls: dict[Any, AttentionCall] = emptied_with_plans({})


def call_of(question: Hashable, arrays: Arrays, spec_of: Callable[[], AttentionSpec]) -> AttentionCall:
    """Return the call of arrays in canonical order, made once for those that are alike.

    The spec follows from ``question``, for arrays of these layouts.
    """
    given = [each for each in arrays if each is not None]
    precision = fp32_precision() if given[0].dtype == torch.float32 else ""
    # A call keeps where its results are made, by which it is told from others, too.
    asked = MEMORY, question, precision, tuple([each is None for each in arrays])
    found: Any = recall(asked, given)
    if found is None:
        key = asked, given[0].get_device(), *[(each.shape, each.stride(), each.dtype) for each in given]
        found = _calls.get(key)
        if found is None:
            found = AttentionCall(canonical_plan(spec_of()), arrays)
            keep(_calls, key, found)
        check = guards_of(given)
        if check is not None:
            remember_alike(asked, lambda others: check(*others), found, given)
    call: AttentionCall = found
    return call


def canonical_plan(spec: AttentionSpec) -> Plan:
    """Return the plan of a call whose arrays, and results, are in canonical order."""
    return Plan(spec, (), arrays_of("torch"), View(), View())
