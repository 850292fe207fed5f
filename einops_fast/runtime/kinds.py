"""What problems that differ in sizes only have in common: what kernels would have saved, and kernels for any size."""

from __future__ import annotations

import statistics
from collections.abc import Hashable
from concurrent.futures import Future
from typing import Any

from einops_fast.runtime.plan_cache import emptied_with_plans, keep

__all__ = ["Kind", "Shared", "kind_of"]

_SHAPES = 3
"""Problems that a kernel is tried on before all others take it, or leave it, untried."""


class Shared:
    """A compiled kernel that serves many sizes."""

    def __init__(self, future: Future[Any] | None) -> None:
        self._future, self._ratios = future, list[float]()
        self.trials = 0  # problems that have begun to try it

    @property
    def ready(self) -> bool:
        """Whether nothing is to be waited for any more."""
        return self._future is None or self._future.done()

    @property
    def failed(self) -> bool:
        """Whether it can't be compiled."""
        return self._future is not None and self._future.exception() is not None

    @property
    def faster(self) -> bool | None:
        """Whether it is faster than the library; ``None`` as long as too few problems have told."""
        return statistics.median(self._ratios) < 1 if len(self._ratios) >= _SHAPES else None

    def begin(self, anyhow: bool) -> bool:
        """Whether one more problem is to try it: enough do, unless it has waited for them for long."""
        if self.trials >= _SHAPES and not anyhow:
            return False
        self.trials += 1
        return True

    def tell(self, ratio: float) -> None:
        """Keep how many times as long as the library it took."""
        self._ratios.append(ratio)


class Kind:
    """Problems that differ in sizes only."""

    def __init__(self) -> None:
        self.saved = 0.0  # predicted seconds that kernels would have saved by now, less what was paid
        self._all, self._calls = 0.0, 0
        self.shares: bool | None = None  # whether there are kernels for any size; `None` as long as nobody has asked
        self.shared: dict[Hashable, Shared] = {}  # these, by what they are compiled for

    @property
    def a_call(self) -> float:
        """Predicted seconds that kernels would have saved of a call, on average."""
        return self._all / max(self._calls, 1)

    def count(self, seconds: float, calls: int) -> None:
        """Add what kernels would have saved of some calls."""
        self.saved += seconds
        self._all += seconds
        self._calls += calls

    def pays(self, price: float) -> bool:
        """Whether a price is saved; then it is paid."""
        paid = self.saved >= price
        self.saved -= price if paid else 0.0
        return paid


_kinds: dict[Hashable, Kind] = emptied_with_plans({})


def kind_of(key: Hashable) -> Kind:
    """Return the kind of this key."""
    kind = _kinds.get(key)
    if kind is None:
        kind = Kind()
        keep(_kinds, key, kind)
    return kind
