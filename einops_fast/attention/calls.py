"""A call as an implementation does it: of the caller's arrays, past all thinking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from einops_fast.attention.prepare import Plan
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionInputs
from einops_fast.attention.torch_state import seed_for

__all__ = ["GivenCall", "Runs", "by_views"]


class Runs(NamedTuple):
    """What gives the caller's result.

    Attributes:
        by_name: of the arrays by name.
        straight: of the arrays one by one, in the order of their names.
        length_axis: see :meth:`~einops_fast.attention.registry.Implementation.length_axis`.
    """

    by_name: Callable[[Mapping[str, Any]], Any]
    straight: Callable[..., Any]
    length_axis: int | None = None


@dataclass(frozen=True)
class GivenCall:
    """A plan and arrays as a caller has them, which stand for all calls of their kind.

    Attributes:
        plan: the plan.
        arrays: the arrays by name.
    """

    plan: Plan
    arrays: Mapping[str, Any]

    @cached_property
    def inputs(self) -> AttentionInputs:
        """The arrays as canonical views."""
        return self.plan.inputs(self.arrays)

    def by(self, way: Implementation, recorded: bool = False) -> Runs:
        """What an implementation does in such calls; ``recorded``: also in those of other sizes."""
        plan = self.plan
        if recorded:
            run = by_views(way, plan)
            return Runs(run, _by_name(run, (*self.arrays,)))
        arrays = [self.arrays[name] for name, _, _ in plan.views]
        straight = way.straight(plan, arrays)
        if straight is not None:
            return Runs(_in_order(straight), straight, way.length_axis(plan, arrays))
        run = way.prepared(plan) or by_views(way, plan)
        return Runs(run, _by_name(run, (*self.arrays,)))


def by_views(way: Implementation, plan: Plan) -> Callable[[Mapping[str, Any]], Any]:
    """The call by an implementation that takes arrays in canonical order."""
    run = way.compiled(plan.spec)
    seeded = plan.spec.dropout_p > 0 and way.seeded

    def call(arrays: Mapping[str, Any]) -> Any:
        inputs = plan.inputs(arrays)
        if seeded:
            inputs.seed = seed_for(inputs.q)
        return plan.answer(*run(inputs))

    return call


def _in_order(straight: Callable[..., Any]) -> Callable[[Mapping[str, Any]], Any]:
    return lambda arrays: straight(*arrays.values())


def _by_name(run: Callable[[Mapping[str, Any]], Any], names: tuple[str, ...]) -> Callable[..., Any]:
    return lambda *arrays: run(dict(zip(names, arrays, strict=True)))
