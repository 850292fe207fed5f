"""What a call of attention launches, as data: kernels, each with the names of the arrays that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.launching.kernel_call import KernelCall

FORWARD = ("q", "k", "v", "out", "lse", "extras")
"""Arrays that a plan of a forward call is given, in this order. The :class:`Extras` have their own names, too."""

BACKWARD = (*FORWARD, "d_out", "d_lse", "dq", "dk", "dv", "d_bias")
"""The same of a backward call; ``None`` for gradients that aren't wanted."""


_EXTRAS = FORWARD.index("extras")

_NOTHING = (None,)
"""What comes after given arrays, for launches that take nothing in place of one."""


class Room(NamedTuple):
    """A flat workspace of a launch. ``counters`` are integers that are 0 before and after it."""

    name: str
    elements: int
    dtype: str = "float32"
    counters: bool = False


class Launch(NamedTuple):
    """One kernel."""

    # the kernel with everything fixed but its arrays; returns `False` where one lies at an odd address
    call: Callable[..., Any]
    takes: tuple[Any, ...]  # names of its arrays, or tuples of names; `None` for no array
    rooms: tuple[Room, ...] = ()  # workspaces that are made for it, which later launches may take, too
    then: tuple[Launch, ...] = ()  # launches that follow
    # launches in place of it and of those that follow, where an array lies at an odd address
    otherwise: tuple[Launch, ...] = ()


def launch(
    function: Any,
    grid: tuple[int, int],
    tail: tuple[Any, ...],
    constants: Mapping[str, Any],
    warps: int = 4,
    stages: int = 1,
    *,
    registers: int | None = None,
    instead: Mapping[str, str | None] | None = None,
) -> Launch:
    """Return a launch of a kernel that Triton compiles for its arrays, which are called as its first parameters are.

    ``instead`` has other names of arrays; for the rest, see :class:`KernelCall`.
    """
    names = function.arg_names[: -len(tail) - len(constants)]
    call = KernelCall(function, grid, tail, constants, warps, stages, registers=registers)
    return Launch(call, tuple([(instead or {}).get(name, name) for name in names]))


def renamed(launches: Iterable[Launch], names: Mapping[str, str]) -> tuple[Launch, ...]:
    """Return launches that take other arrays in place of some."""
    extras = Extras(*[names.get(name, name) for name in Extras._fields])
    replaced = {**names, "extras": extras} if any(name in names for name in Extras._fields) else names
    return tuple(
        [
            each._replace(
                takes=tuple([replaced.get(name, name) for name in each.takes]),
                then=renamed(each.then, names),
                otherwise=renamed(each.otherwise, names),
            )
            for each in launches
        ]
    )


_Steps = tuple[tuple[Any, ...], ...]
"""Launches with places in a list of arrays in place of names."""


class Plan:
    """The launches of a call; ``run`` queues them, as :meth:`__call__` does, maybe with less on the way.

    Args:
        given: names of the arrays that come with a call.
        launches: what is launched, in order.
        bias_starts_at_zero: whether the array for that gradient has to be full of zeros.
        exact: whether gradients may have the dtype that sums are kept in.
    """

    def __init__(
        self,
        given: tuple[str, ...],
        launches: Sequence[Launch],
        *,
        bias_starts_at_zero: bool = False,
        exact: bool = True,
    ) -> None:
        self.bias_starts_at_zero, self.exact = bias_starts_at_zero, exact
        slots: dict[Any, int] = {name: at for at, name in enumerate((*given, None, *Extras._fields))}
        first = len(slots)
        self._steps = _steps(launches, slots)
        self._rooms = [None] * (len(slots) - first)
        self._delta = slots.get("delta", slots[None])
        self.run = self._shortest(launches[0])

    def __call__(self, memory: Memory, device: int, *arrays: Any) -> Any:
        """Queue the kernels; return ``delta``, a flat array, where that is written."""
        every = [*arrays, None, *arrays[_EXTRAS], *self._rooms]
        self._queue(memory, device, every, self._steps)
        return every[self._delta]

    def _shortest(self, launch: Launch) -> Callable[..., Any]:
        """Return what does the same with less on the way, where there is a single launch."""
        rooms, call, take, then, otherwise = self._steps[0]
        if len(self._steps) > 1 or rooms or then:
            return self
        if launch.takes == FORWARD and not otherwise:
            return launch.call
        has_extras = not {*launch.takes}.isdisjoint(Extras._fields)

        def run(memory: Memory, device: int, *arrays: Any) -> Any:
            every = arrays + _NOTHING + arrays[_EXTRAS] if has_extras else arrays + _NOTHING
            return self(memory, device, *arrays) if call(memory, device, *take(every)) is False else None

        return run

    def _queue(self, memory: Memory, device: int, arrays: list[Any], steps: _Steps) -> None:
        for rooms, call, take, then, otherwise in steps:
            for at, elements, dtype, counters in rooms:
                if counters:
                    arrays[at] = memory.counters(arrays[0], device, elements)
                else:
                    arrays[at] = memory.workspace(arrays[0], elements, dtype)
            following = otherwise if call(memory, device, *take(arrays)) is False else then
            if following:
                self._queue(memory, device, arrays, following)


def _steps(launches: Iterable[Launch], slots: dict[Any, int]) -> _Steps:
    """Give rooms places after all other arrays, and look names up."""
    found = []
    for each in launches:
        rooms = tuple([(slots.setdefault(name, len(slots)), *room) for name, *room in each.rooms])
        take = _picker(each.takes, slots)
        found.append((rooms, each.call, take, _steps(each.then, slots), _steps(each.otherwise, slots)))
    return tuple(found)


def _picker(name: Any, slots: Mapping[Any, int]) -> Callable[[list[Any]], Any]:
    """Return what takes an array from a list, or for a tuple of names a tuple of its kind."""
    if not isinstance(name, tuple):
        return itemgetter(slots[name])
    if type(name) is tuple and len(name) > 1 and not any(isinstance(each, tuple) for each in name):
        return itemgetter(*[slots[each] for each in name])
    make, inner = getattr(name, "_make", tuple), [_picker(each, slots) for each in name]
    return lambda arrays: make([pick(arrays) for pick in inner])
