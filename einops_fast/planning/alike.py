"""Steps of pairs that differ in labels and slots alone: chosen once, and written with other labels from then on.

Networks repeat a few pairs along their chains and bonds. How a pair is contracted follows from the places of its
labels, from sizes and strides: which letters these labels are, and which slots hold the terms, makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from einops_fast.planning.layout import Term
from einops_fast.planning.pairs import contract_pair
from einops_fast.planning.steps import Native, Step
from einops_fast.planning.target import Numerics, Target

_MOST = 1 << 12
"""The most steps that are kept for one target; all of them go when there are more."""


class _Made(NamedTuple):
    """A step but for its labels and slots."""

    kind: Callable[..., Any]
    turned: bool  # whether it reads the second term first
    places: tuple[int, ...]  # its labels among those of both terms
    fields: tuple[Any, ...]  # all others, but for an equation

    def step(self, left: Term, right: Term, labels: str) -> Step:
        """Return the step for two terms that have these labels."""
        kind, turned, places, fields = self
        own = "".join([labels[at] for at in places])
        if turned:
            left, right = right, left
        if kind is Native:
            inputs = left.labels, right.labels
            return Native.of((left.slot, right.slot), inputs, own, *fields)
        step: Step = kind((left.slot, right.slot), own, *fields)
        return step


class Alike:
    """The steps of pairs for one target and numerics, by all else that they depend on."""

    def __init__(self, target: Target, numerics: Numerics) -> None:
        self._target, self._numerics = target, numerics
        self._made: dict[Hashable, _Made] = {}

    def step(self, left: Term, right: Term, wanted: str, sizes: Mapping[str, int]) -> Step:
        """Return what :func:`contract_pair` does, as it was chosen for a pair that is like this one."""
        labels = left.labels + right.labels + wanted
        key = left.layout, right.layout, *map(labels.index, labels)
        made = self._made.get(key)
        if made is not None:
            return made.step(left, right, labels)
        step = contract_pair(left, right, wanted, sizes, self._target, self._numerics)
        made = _made(step, left, labels)
        # An equation may have letters of axes without labels.
        if made.kind is not Native or made.step(left, right, labels) == step:
            if len(self._made) >= _MOST:
                self._made.clear()
            self._made[key] = made
        return step


def _made(step: Step, left: Term, labels: str) -> _Made:
    fields: Any = step
    turned, places = step.reads[0] != left.slot, tuple(map(labels.index, step.labels))
    if isinstance(step, Native):
        return _Made(Native, turned, places, (step.shape, step.reason, step.full, step.plain))
    return _Made(type(step), turned, places, fields[2:])


alike = lru_cache(maxsize=64)(Alike)
"""The steps of pairs that were chosen for a target and numerics."""
