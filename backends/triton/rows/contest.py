"""Several ways to run one kind of call of an operator: the fastest is found at the first call, and kept on disk.

What decides, in this order: what this process has measured, what is on disk, a measurement. The first of the ways is
that of a rule, and is taken where nothing may be timed or where the call takes little time anyway.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.backends.triton_support import circumstances
from einops_fast.runtime.choosing import Chooser, Record
from einops_fast.runtime.measuring import ROWS

__all__ = ["Call", "Contest", "Launch", "Way"]

_SMALL = 8 << 20
"""Bytes of all arrays below which the rule is good enough."""


class Kernel(Protocol):
    """What is launched, such as :class:`~einops_fast.backends.triton.launching.kernel_call.KernelCall`."""

    def __call__(self, memory: Memory, device: int, *arrays: Any) -> object:
        """Queue it on the device, which is the current one."""

    def compile(self, *arrays: Any) -> Any:
        """Compile it for arrays such as these."""


Launch = tuple[Kernel, tuple[Any, ...]]


class Way(ABC):
    """Kernels that compute a kind of call.

    Attributes:
        name: unique among the ways for a kind of call, and stable, so that a measured choice can be kept.
    """

    name: str

    @abstractmethod
    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        """The kernels, one after the other, and their arrays: those of the call, and working memory that is new."""


@dataclass(frozen=True)
class Call:
    """A kind of call, as far as it makes a difference for time.

    Attributes:
        problem: what it computes, in a line for people.
        details: all else about it that matters; ready for JSON.
        mode: of :func:`einops_fast.autotune`.
        in_place: a result is written over what is read, so that no run may be repeated.
        kind: what it has in common with calls that differ in sizes only.
    """

    problem: str
    details: Mapping[str, Any]
    mode: str
    in_place: bool = False
    kind: str = ""


def _queue(way: Way, memory: Memory, device: int, *arrays: Any) -> None:
    for kernel, given in way.launches(memory, *arrays):
        kernel(memory, device, *given)


class _Trial:
    """A way on the arrays of a call, as what measures takes it."""

    def __init__(self, way: Way, memory: Memory, arrays: Sequence[Any]) -> None:
        self.name, self.way, self._memory, self._arrays = way.name, way, memory, arrays

    def compile(self) -> None:
        for kernel, arrays in self.way.launches(self._memory, *self._arrays):
            kernel.compile(*arrays)

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        return partial(_queue, self.way, memory, device)


class Contest:
    """Runs one kind of call, in the way that is found to be the fastest when it is first run.

    Args:
        memory: the framework's arrays.
        device: where they are.
        call: what is called.
        ways: the rule's first.
    """

    def __init__(self, memory: Memory, device: int, call: Call, ways: Sequence[Way]) -> None:
        self.call, self.ways = call, ways
        self.chosen: Way | None = None
        self._chooser: Chooser[Way] | None = None
        self._memory, self._device, self._current_device = memory, device, memory.current_device

    def __call__(self, *arrays: Any) -> None:
        """Queue the kernels. Results are written by trials, too, if there are any."""
        way = self.chosen
        if way is None:
            way = self._first(arrays)
        memory, device = self._memory, self._device
        if self._current_device() == device:
            for kernel, given in way.launches(memory, *arrays):
                kernel(memory, device, *given)
            return
        with memory.on_device(device):
            _queue(way, memory, device, *arrays)

    def _first(self, arrays: Sequence[Any]) -> Way:
        with self._memory.on_device(self._device):
            way, final = self.choose(arrays)
            if final:
                self.chosen, self.ways = way, [way]  # the others are free to go
            return way

    def choose(self, arrays: Sequence[Any]) -> tuple[Way, bool]:
        """The way to run a call on these arrays, and whether it is the one for all that follow."""
        rule, mode = self.ways[0], self.call.mode
        if interpreted() or len(self.ways) == 1:
            return rule, True
        if self._chooser is not None and self._chooser.waits():
            return rule, False
        dtypes = [None if each is None else self._memory.dtype(each) for each in arrays]
        if self._chooser is None:
            self._chooser = Chooser((self.call.kind, *dtypes, self._device), mode)
        trials = {way.name: _Trial(way, self._memory, arrays) for way in self.ways}
        moved = sum(each.nbytes for each in arrays if each is not None)
        pays = not (self.call.in_place or (mode == "auto" and moved < _SMALL))

        def named(name: str) -> Way | None:
            return trials[name].way if name in trials and works(trials[name]) else None

        def measured(ways: Sequence[Way]) -> Record | None:
            return measure([trials[way.name] for way in ways], {rule.name}, arrays, self._memory, self._device, ROWS)

        choice = self._chooser.choose(
            self._key(dtypes),
            named,
            lambda: self.ways,
            lambda: rule,
            rule,
            measured,
            self._memory.may_measure,
            pays=pays,
        )
        return choice.way, choice.final

    def _key(self, dtypes: Sequence[str | None]) -> dict[str, Any]:
        return {
            "problem": self.call.problem,
            "dtype": dtypes[0],
            "arrays": dtypes,
            **self.call.details,
            **circumstances(self._memory, self._device),
        }
