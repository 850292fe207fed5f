"""Compile ways to compute the same side by side, then time them."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from einops_fast.backends.clock import DeviceClock
from einops_fast.backends.memory import Memory
from einops_fast.runtime import choosing
from einops_fast.runtime.measuring import Policy, Run, record_of, time_runs


class Measurable(Protocol):
    """One of several ways to compute the same; a measured choice is kept by the name."""

    name: str

    def compile(self) -> None:
        """Do beforehand what takes long the first time."""

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        """What takes the operands, on a device that is the current one."""


Way = TypeVar("Way", bound=Measurable)


def works(way: Measurable) -> bool:
    """Whether it compiles."""
    try:
        way.compile()
    except Exception:  # whatever the compiler says: too large a tile for this device is the usual reason
        return False
    return True


def measure(
    ways: Sequence[Way],
    preferred: Collection[str],
    operands: Sequence[Any],
    memory: Memory,
    device: int,
    policy: Policy,
) -> choosing.Record | None:
    """Return a record of the fastest of these ways on the operands of a call; ``None`` if none works.

    Those whose names are ``preferred`` may take a little longer.
    """

    def compiles(way: Way) -> bool:
        with memory.on_device(device):  # each thread has a current device of its own
            return works(way)

    with ThreadPoolExecutor(min(len(ways), os.cpu_count() or 1, 8)) as pool:
        working = [way for way, ready in zip(ways, pool.map(compiles, ways), strict=True) if ready]

    def maker(way: Way) -> Callable[[], Run]:
        return lambda: partial(way.run(memory, device), *operands)

    times = time_runs({way.name: maker(way) for way in working}, DeviceClock(memory, device), policy)
    return record_of(times, [way.name for way in ways], preferred, policy)
