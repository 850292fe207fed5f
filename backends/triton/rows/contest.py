"""A contest: the ways to run one kind of call of an operator, of which the chooser takes the fastest.

The first of the ways is a rule's. It is taken where nothing may be timed or where the call takes little time anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import KernelCall
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.backends.triton.launching.measuring import measure, works
from einops_fast.backends.triton.launching.rehearsing import is_rehearsal
from einops_fast.backends.triton_support import circumstances, interpreted
from einops_fast.runtime.choosing import Chooser, Record
from einops_fast.runtime.measuring import ROWS
from einops_fast.runtime.tuning import ANY_SIZE

_LEAST = {"wait": 8 << 20, "always": 0}
"""Bytes of all arrays, by mode, below which the rule is good enough."""

NONE = -1
"""The position of an array that a kernel isn't given."""

Step = tuple[KernelCall, Sequence[int]]
"""A kernel, and which arrays it takes: positions among those of the call, the workspaces behind them, or ``NONE``."""

Steps = tuple[Sequence[Step], Sequence[tuple[int, str]]]
"""Kernels that run one after the other, and elements and dtype of each of their workspaces."""


class Site(NamedTuple):
    """Where a call runs, and how its way is chosen.

    ``limits`` are the bytes of shared memory that a program may have there, and how many multiprocessors there are;
    arrays whose addresses matter begin at multiples of 16 bytes if the call is ``aligned``.
    """

    memory: Memory
    device: int
    limits: tuple[int, int]
    mode: str
    aligned: bool = True

    @property
    def any_size(self) -> bool:
        """Whether the kernels are to serve any size."""
        return self.mode == ANY_SIZE


class Call(NamedTuple):
    """A kind of call, as far as it makes a difference for time: in a line for people, and all else, ready for JSON.

    Where a result is written ``in_place`` of what is read, no run may be repeated.
    """

    problem: str
    details: Mapping[str, Any]
    in_place: bool = False


class Way:
    """Kernels that compute a kind of call, one after the other.

    A measured choice is kept by the name, which is unique among the ways for a kind of call. Where each of the first
    kernel's clusters has several rows, ``for_fewer`` gives the steps for fewer clusters: no more are launched than run
    at a time, since others would come when the first ones have done all of their rows.
    """

    def __init__(
        self,
        name: str,
        steps: Sequence[Step],
        work: Sequence[tuple[int, str]] = (),
        for_fewer: Callable[[int], Steps] | None = None,
    ) -> None:
        self.name, self._for_fewer = name, for_fewer
        self._set(steps, work)

    def _set(self, steps: Sequence[Step], work: Sequence[tuple[int, str]]) -> None:
        # In one attribute, which another thread sees as a whole.
        self._plan = [(kernel, itemgetter(*positions)) for kernel, positions in steps], work

    def prepare(self, arrays: Sequence[Array | None]) -> None:
        """Do what has to be done once before the first launch, for arrays such as these."""
        for_fewer, self._for_fewer = self._for_fewer, None
        if for_fewer is not None:
            kernel, given = self._kernels(arrays)[0]
            most = kernel.at_a_time(*given)
            if most is not None and most < kernel.grid[0]:
                self._set(*for_fewer(most))

    def compile(self, arrays: Sequence[Array | None]) -> None:
        """Compile the kernels for arrays such as these."""
        self.prepare(arrays)
        for kernel, given in self._kernels(arrays):
            kernel.compile_for(*given)

    def _kernels(self, arrays: Sequence[Array | None]) -> Sequence[tuple[KernelCall, tuple[Array | None, ...]]]:
        """Return the kernels, and what is known of the arrays of each."""
        steps, work = self._plan
        every = (*arrays, *[Array(dtype) for _, dtype in work], None)
        return [(kernel, take(every)) for kernel, take in steps]

    def queue(self, memory: Memory, device: int, *arrays: Any) -> None:
        """Queue the kernels on the device, which is the current one."""
        steps, work = self._plan
        if work:
            arrays = (*arrays, *[memory.workspace(arrays[0], *each) for each in work])
        arrays = (*arrays, None)
        for kernel, take in steps:  # without the list of launches: every call comes through here
            kernel(memory, device, *take(arrays))


class _Trial:
    """A way on the arrays of a call, for whoever measures it."""

    def __init__(self, way: Way, arrays: Sequence[Array | None]) -> None:
        self.name, self.way, self.compile = way.name, way, partial(way.compile, arrays)

    def run(self, memory: Memory, device: int) -> Callable[..., Any]:
        return partial(self.way.queue, memory, device)


class Contest:
    """Runs one kind of call in the way that its first call finds to be the fastest; the rule's comes first."""

    def __init__(self, site: Site, call: Call, ways: Sequence[Way]) -> None:
        self.site, self.call, self.ways = site, call, ways
        self.chosen: Way | None = None
        self._memory, self._device, self._current_device = site.memory, site.device, site.memory.current_device
        self._chooser: Chooser[Way] = Chooser(site.mode)

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
            if is_rehearsal():  # its kernels aren't there yet
                return way
            way.prepare(self._described(arrays))
            if final:
                self.chosen, self.ways = way, [way]  # the others are free to go
            return way

    def _described(self, arrays: Sequence[Any]) -> list[Array | None]:
        pointer = self._memory.pointer
        return [None if each is None else Array(each.dtype, aligned=pointer(each) % ALIGNMENT == 0) for each in arrays]

    def choose(self, arrays: Sequence[Any]) -> tuple[Way, bool]:
        """Return the way to run a call on these arrays, and whether it is the one for all that follow.

        Where no call may wait, that is what was measured earlier, or the rule's.
        """
        rule, memory, device = self.ways[0], self._memory, self._device
        if interpreted() or len(self.ways) == 1:
            return rule, True
        described = self._described(arrays)
        trials = {way.name: _Trial(way, described) for way in self.ways}
        moved = sum(each.nbytes for each in arrays if each is not None)

        def named(name: str) -> Way | None:
            trial = trials.get(name)
            if trial is None or (self.site.mode != "auto" and not works(trial)):
                return None
            return trial.way

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
            pays=not self.call.in_place and self.site.mode in ("wait", "always") and moved >= _LEAST[self.site.mode],
        )
        return choice.way, choice.final
