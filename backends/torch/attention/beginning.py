"""Calls of attention on a GPU begin by a library, until it's known which implementation is the fastest."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from einops_fast.attention.choice import Undecided, choose
from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation
from einops_fast.backends.torch.beginning import CallProblem, FirstCalls
from einops_fast.runtime.measuring import ATTENTION
from einops_fast.runtime.tiers import Run

_LEAST_SAVED = 0.1
"""Of the library's time, whatever is predicted."""


def first_calls(plan: Plan, undecided: Undecided, arrays: Sequence[Any]) -> FirstCalls[Implementation]:
    """Return what computes calls of one kind, from the first one on."""
    key = json.dumps(undecided.key, sort_keys=True)
    return FirstCalls(key, AttentionProblem(plan, undecided, arrays), plan.spec.gradients, undecided.chosen)


class AttentionProblem(CallProblem[Implementation]):
    """Calls of attention that are alike; see :func:`first_calls`."""

    def __init__(self, plan: Plan, undecided: Undecided, arrays: Sequence[Any]) -> None:
        device = torch.device(plan.spec.device).index or 0
        super().__init__(device, undecided.kind, undecided.ways, ATTENTION, undecided.key, arrays)
        self._plan, self._predicted = plan, undecided.predicted
        self._recorded = plan.spec.gradients
        # Lengths are told to our kernels when they run.
        self.any_size = next((way for way in undecided.ways if way.compiles), None)

    def key(self) -> Mapping[str, Any]:
        return self.details

    def saves(self) -> float:
        library = self._predicted[self.library.name]
        return max(library - min(self._predicted[name] for name in self._ways), _LEAST_SAVED * library)

    def run_of(self, way: Implementation, arrays: Sequence[Any]) -> Run:
        run = way.prepared(self._plan, arrays).run
        return run if way.compiles else _dense(run)

    def preferred(self, ways: Iterable[Implementation]) -> Collection[str]:
        return [way.name for way in ways if way.preferred]

    def settle(self) -> Implementation:
        arrays = tuple(self.samples())
        if all(each.dtype.is_floating_point or each.dtype == torch.bool for each in arrays):
            way = choose(self._plan, "wait", arrays).implementation
        else:  # lengths and pages can't be made up
            way = min(self._ways.values(), key=lambda way: self._predicted[way.name])
        with self.on_device():
            for each in self.rehearsed(way):
                each.compile()
        return way


def _dense(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives results without gaps in C order, as kernels do: no result changes its order meanwhile."""

    def dense(*arrays: Any) -> Any:
        results = run(*arrays)
        if isinstance(results, tuple):
            return tuple([each.contiguous() for each in results])
        return results.contiguous()

    return dense
