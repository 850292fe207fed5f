"""The clock of a GPU, and the host's clock around calls on it."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from einops_fast.backends.memory import Memory
from einops_fast.runtime.measuring import Run

__all__ = ["DeviceClock"]

_SETTLING = 0.15
"""Seconds after which the clock of a device at work has fallen as far as it does, about."""

_WARM_UP = 2
"""Runs that don't count: after those of another way, caches and pools of memory aren't what they are in a loop."""


class DeviceClock:
    """The clock of one device of a framework."""

    def __init__(self, memory: Memory, device: int) -> None:
        self._memory, self._device = memory, device

    def seconds(self, run: Run, repeat: int) -> list[float]:
        return self._memory.seconds(run, self._device, repeat)

    def wall_seconds(self, run: Run, calls: int) -> float:
        for _ in range(_WARM_UP):
            run()
        self._memory.synchronize(self._device)
        began = perf_counter()
        for _ in range(calls):
            run()
        self._memory.synchronize(self._device)
        return (perf_counter() - began) / calls

    def settle(self, runs: Sequence[Run]) -> None:
        end = perf_counter() + _SETTLING
        while perf_counter() < end:
            for run in runs:
                run()
            self._memory.synchronize(self._device)
