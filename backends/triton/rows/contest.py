"""A contest: the ways to run one kind of call of an operator, of which the chooser takes the fastest.

The first of the ways is a rule's. It is taken where nothing may be timed or where the call takes little time anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import interpreted
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.backends.triton_support import circumstances
from einops_fast.runtime.choosing import Chooser, Record
from einops_fast.runtime.measuring import ROWS

__all__ = ["NONE", "Call", "ClusterWay", "Contest", "Launch", "Site", "Step", "Way"]

_SMALL = 8 << 20
"""Bytes of all arrays below which the rule is good enough."""

NONE = -1
"""The position of an array that a kernel isn't given."""

Launch = tuple[KernelCall, tuple[Any, ...]]

Step = tuple[KernelCall, Sequence[int]]
"""A kernel, and which arrays it takes: positions among those of the call, the workspaces behind them, or ``NONE``."""


class Site(NamedTuple):
    """Where a call runs, and how its way is chosen.

    Attributes:
        memory: the framework's arrays.
        device: where they are.
        limits: bytes of shared memory that a program may have there, and how many multiprocessors there are.
        mode: of :func:`einops_fast.autotune`.
        aligned: arrays whose addresses matter begin at multiples of 16 bytes.
    """

    memory: Memory
    device: int
    limits: tuple[int, int]
    mode: str
    aligned: bool = True


class Way:
    """Kernels that compute a kind of call, one after the other.

    Args:
        name: unique among the ways for a kind of call, and stable, so that a measured choice can be kept.
        steps: the kernels.
        work: elements and dtype of each workspace.
    """

    def __init__(self, name: str, steps: Sequence[Step], work: Sequence[tuple[int, str]] = ()) -> None:
        self.name = name
        # In one attribute, which another thread sees as a whole.
        self._plan = [(kernel, itemgetter(*positions)) for kernel, positions in steps], work

    def prepare(self, memory: Memory, *arrays: Any) -> None:
        """Do what has to be done once before the first launch."""

    def launches(self, memory: Memory, *arrays: Any) -> Sequence[Launch]:
        """Return the kernels and their arrays; workspaces are new."""
        steps, work = self._plan
        every = (*arrays, *[memory.workspace(arrays[0], *each) for each in work], None)
        return [(kernel, take(every)) for kernel, take in steps]

    def queue(self, memory: Memory, device: int, *arrays: Any) -> None:
        """Queue the kernels on the device, which is the current one."""
        steps, work = self._plan
        if work:
            arrays = (*arrays, *[memory.workspace(arrays[0], *each) for each in work])
        arrays = (*arrays, None)
        for kernel, take in steps:  # without the list of launches: every call comes through here
            kernel(memory, device, *take(arrays))


class ClusterWay(Way):
    """A way whose first kernel has clusters, no more of which are launched than run at a time if each has several rows.

    Others would come when the first ones have done all of their rows.

    Args:
        name: as for :class:`Way`.
        clusters: how many there are rows for.
        several: whether clusters have several rows.
        steps: the steps for so many clusters, and the workspaces.
    """

    def __init__(
        self,
        name: str,
        clusters: int,
        several: bool,
        steps: Callable[[int], tuple[Sequence[Step], Sequence[tuple[int, str]]]],
    ) -> None:
        super().__init__(name, *steps(clusters))
        self._clusters, self._several, self._steps_for = clusters, several, steps

    def prepare(self, memory: Memory, *arrays: Any) -> None:
        if self._several:
            self._several = False
            kernel, given = self.launches(memory, *arrays)[0]
            clusters = min(self._clusters, kernel.at_a_time(*given) or self._clusters)
            super().__init__(self.name, *self._steps_for(clusters))


@dataclass(frozen=True)
class Call:
    """A kind of call, as far as it makes a difference for time.

    Attributes:
        problem: what it computes, in a line for people.
        details: all else about it that matters; ready for JSON.
        kind: what it has in common with calls that differ in sizes only.
        in_place: a result is written over what is read, so that no run may be repeated.
    """

    problem: str
    details: Mapping[str, Any]
    kind: Hashable = ""
    in_place: bool = False


class _Trial:
    """A way on the arrays of a call, for whoever measures it."""

    def __init__(self, way: Way, memory: Memory, arrays: Sequence[Any]) -> None:
        self.name, self.way, self._memory, self._arrays = way.name, way, memory, arrays

    def compile(self) -> None:
        self.way.prepare(self._memory, *self._arrays)
        for kernel, arrays in self.way.launches(self._memory, *self._arrays):
            kernel.compile(*arrays)

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        return partial(self.way.queue, memory, device)


class Contest:
    """Runs one kind of call in the way that is found to be the fastest when it is first run.

    Args:
        site: where it runs.
        call: the kind.
        ways: the rule's first.
    """

    def __init__(self, site: Site, call: Call, ways: Sequence[Way]) -> None:
        self.site, self.call, self.ways = site, call, ways
        self.chosen: Way | None = None
        self._memory, self._device, self._current_device = site.memory, site.device, site.memory.current_device
        self._chooser: Chooser[Way] = Chooser((call.kind, site.device), site.mode)

    def __call__(self, *arrays: Any) -> None:
        """Queue the kernels. Results are written by trials, too, if there are any."""
        way = self.chosen
        if way is None:
            way = self._first(arrays)
        memory, device = self._memory, self._device
        if self._current_device() == device:
            way.queue(memory, device, *arrays)
            return
        with memory.on_device(device):
            way.queue(memory, device, *arrays)

    def _first(self, arrays: Sequence[Any]) -> Way:
        with self._memory.on_device(self._device):
            way, final = self.choose(arrays)
            way.prepare(self._memory, *arrays)
            if final:
                self.chosen, self.ways = way, [way]  # the others are free to go
            return way

    def choose(self, arrays: Sequence[Any]) -> tuple[Way, bool]:
        """Return the way to run a call on these arrays, and whether it is the one for all that follow."""
        rule, memory, device = self.ways[0], self._memory, self._device
        if interpreted() or len(self.ways) == 1:
            return rule, True
        if self._chooser.waits():
            return rule, False
        trials = {way.name: _Trial(way, memory, arrays) for way in self.ways}
        moved = sum(each.nbytes for each in arrays if each is not None)

        def named(name: str) -> Way | None:
            return trials[name].way if name in trials and works(trials[name]) else None

        def measured(ways: Sequence[Way]) -> Record | None:
            return measure([trials[way.name] for way in ways], {rule.name}, arrays, memory, device, ROWS)

        choice = self._chooser.choose(
            {"problem": self.call.problem, **self.call.details, **circumstances(memory, device)},
            named,
            near=lambda: self.ways,
            predicted=lambda: rule,
            meanwhile=rule,
            measure=measured,
            may_measure=memory.may_measure,
            pays=not (self.call.in_place or (self.site.mode == "auto" and moved < _SMALL)),
        )
        return choice.way, choice.final
