"""How calls of attention begin on a GPU: by a library, until it's known which implementation is the fastest."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch

from einops_fast.attention.choice import Undecided, choose
from einops_fast.attention.prepare import GivenCall, Plan
from einops_fast.attention.registry import Implementation
from einops_fast.backends.torch.beginning import Beginning, CallProblem, meta_like, sample_like
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.torch.types import is_recomputed, is_traced
from einops_fast.runtime.measuring import ATTENTION
from einops_fast.runtime.plan_cache import emptied_with_plans, keep
from einops_fast.runtime.tiers import Run

__all__ = ["FirstCalls"]

_LEAST_SAVED = 0.1
"""Of the library's time, whatever is predicted."""

_exhausted = TorchMemory.exhausted

_beginnings: dict[str, Beginning[Implementation]] = emptied_with_plans({})
"""By the key of a choice."""


class FirstCalls:
    """Calls of one kind, from the first one on.

    Args:
        plan: of the calls.
        undecided: the implementations that may be chosen.
        arrays: of a call, as they are given.
    """

    def __init__(self, plan: Plan, undecided: Undecided, arrays: Sequence[Any]) -> None:
        self._plan, self._undecided = plan, undecided
        self._like = [meta_like(each) for each in arrays]
        self._runs: dict[str, Callable[..., Any]] = {}
        self._run: Callable[..., Any] | None = None
        self._pinned: Callable[..., Any] | None = None
        text = json.dumps(undecided.key, sort_keys=True)
        found = _beginnings.get(text)
        if found is None:
            found = Beginning(_AttentionProblem(plan, undecided, undecided.key, self._like))
            keep(_beginnings, text, found)
        chosen = undecided.chosen
        # What this process has measured and loaded, in another mode, needn't be tried.
        if found.decided is None and chosen is not None and "triton" in sys.modules:  # noqa: SIM102
            if found.problem.is_loaded(chosen.name):
                found.decide(chosen)
        self._beginning = found

    def __call__(self, *arrays: Any) -> Any:
        """Return what a call does."""
        run = self._run
        if self._pinned is not None and is_recomputed():
            run = self._pinned
        if run is not None:
            return run(*arrays)
        beginning = self._beginning
        if beginning.decided is None and self._plan.spec.gradients and is_recomputed():
            # A checkpoint's second run of a call has to save what the first one has: the library does both for good.
            self._pinned = run = self._prepared(beginning.problem.library, arrays)
            return run(*arrays)
        if beginning.decided is None:
            try:
                return beginning(self._prepared, arrays)
            except _exhausted:
                # A library may need room for the scores. Kernels don't, and are waited for.
                ours = next((way for way in self._undecided.ways if way.compiles), None)
                if ours is None or not beginning.problem.may_measure():
                    raise
                return self._prepared(ours, arrays)(*arrays)
        way = beginning.decided
        if way.compiles:
            # It was decided for a class of calls, of which this one may have kernels of its own.
            key = {**self._undecided.key, "shapes": [[*each.shape, *each.stride()] for each in arrays]}
            own = _AttentionProblem(self._plan, self._undecided, key, self._like)
            if not own.is_loaded(way.name):
                self._beginning = Beginning(own)
                return self(*arrays)
        self._run = run = self._prepared(way, arrays)
        return run(*arrays)

    def _prepared(self, way: Implementation, arrays: Sequence[Any]) -> Callable[..., Any]:
        found = self._runs.get(way.name)
        if found is None:
            run = way.prepared(self._plan, arrays).run
            found = self._runs[way.name] = run if way.compiles else _dense(run)
        return found


def _dense(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return what gives results without gaps in C order, as kernels do: no result changes its order meanwhile."""

    def dense(*arrays: Any) -> Any:
        results = run(*arrays)
        if isinstance(results, tuple):
            return tuple([each.contiguous() for each in results])
        return results.contiguous()

    return dense


class _AttentionProblem(CallProblem[Implementation]):
    """Calls of attention that are alike.

    Args:
        plan: of a call.
        undecided: the implementations that may be chosen.
        key: see :meth:`key`.
        like: the arrays of a call, without memory.
    """

    def __init__(self, plan: Plan, undecided: Undecided, key: Mapping[str, Any], like: Sequence[Any]) -> None:
        device = torch.device(plan.spec.device).index or 0
        super().__init__(device, undecided.kind, undecided.ways[0], ATTENTION, key)
        self._plan, self._predicted, self._like = plan, undecided.predicted, like
        self._ways = {way.name: way for way in undecided.ways}

    def key(self) -> Mapping[str, Any]:
        return self.details

    def saves(self) -> float:
        library = self._predicted[self.library.name]
        return max(library - min(self._predicted[name] for name in self._ways), _LEAST_SAVED * library)

    def near(self) -> Sequence[str]:
        return [*self._ways]

    def rehearse(self, name: str) -> None:
        way = self._ways[name]
        if not way.compiles:
            return
        with torch.set_grad_enabled(self._plan.spec.gradients):
            results = way.prepared(self._plan, self._like).run(*self._like)
        result = results[0] if self._plan.spec.lse else results
        leaves = [each for each in self._like if each.requires_grad]
        if self._plan.spec.gradients and leaves:
            torch.autograd.grad(result, leaves, torch.ones_like(result), allow_unused=True)

    def named(self, name: str) -> Implementation:
        return self._ways[name]

    def run(self, way: Implementation) -> Run:
        return lambda prepared, arrays: prepared(way, arrays)(*arrays)

    def preferred(self, ways: Iterable[Implementation]) -> Collection[str]:
        return [way.name for way in ways if way.preferred]

    def may_measure(self) -> bool:
        return super().may_measure() and not is_traced()

    def settle(self) -> Implementation:
        if all(each.dtype.is_floating_point or each.dtype == torch.bool for each in self._like):
            given = tuple([sample_like(each, self.device) for each in self._like])
            way = choose(self._plan.spec, "wait", GivenCall(self._plan, given)).implementation
        else:  # lengths and pages can't be made up
            way = min(self._ways.values(), key=lambda way: self._predicted[way.name])
        with self.on_device():
            for each in self.rehearsed(way.name):
                each.compile()
        return way
