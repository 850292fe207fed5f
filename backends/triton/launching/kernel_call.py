"""The launcher: it compiles a kernel for its arrays, and queues it again and again with little time on the host.

All arguments of a launch are made once for each set of addresses, and kept. Descriptors of boxes are made once for each
address: Triton's launcher makes them at every launch, which takes the host as long as the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from einops_fast.backends.gpu_driver import ask_for_shared, clusters_at_a_time
from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.device.tiling import LANES
from einops_fast.backends.triton.launching.arrays import Array, Descriptor, mapped
from einops_fast.backends.triton.launching.bare_launch import Launch, launch_of
from einops_fast.backends.triton.launching.compiling import Signature, compiled_for, named, signature
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.backends.triton.launching.rehearsing import take_down
from einops_fast.backends.triton_support import interpreted

_MOST_KEPT = 256
"""Sets of addresses of a kernel, and addresses of a box, that arguments are kept for; then all are forgotten."""

T = TypeVar("T")

_Ready = tuple[Callable[..., None], int, int, int, tuple[Any, ...]]
"""What queues a kernel, the numbers of its programs, and its arguments after the stream."""


class KernelCall:
    """A kernel with everything fixed but its arrays, which come first among its arguments.

    They, or tuples of them, are the same ones in all calls; ``tail`` follows, then the ``constants`` that are known
    while compiling, in the kernel's order. It is compiled at the first launch, for the numbers and for the arrays'
    dtypes and alignment; ``even`` says what of the numbers, see :func:`signature`. So many thread blocks (``ctas``) of
    a program are a cluster.
    """

    _given: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    _order: tuple[Any, ...] | None = None
    _boxes = False

    def __init__(
        self,
        function: Any,
        grid: tuple[int, int],
        tail: tuple[Any, ...],
        constants: Mapping[str, Any],
        warps: int,
        stages: int,
        ctas: int = 1,
        registers: int | None = None,
        even: Collection[str] | None = None,
    ) -> None:
        self.function, self.grid, self.tail, self.constants = function, (*grid, 1), tail, dict(constants)
        self.options: dict[str, Any] = {"num_warps": warps, "num_stages": stages, "num_ctas": ctas}
        if registers is not None:
            self.options["maxnreg"] = registers
        self._even = even
        self._rest = (*tail, *self.constants.values())
        self._launches: dict[Any, Launch] = {}
        self._ready: dict[tuple[Any, ...], _Ready] = {}
        self._maps: dict[int, dict[int, list[Any]]] = {}
        self._nested = True
        self._interpreted = interpreted()

    def __call__(self, memory: Memory, device: int, *arrays: Any) -> bool:
        """Queue the kernel on the framework's stream of the device, which is the current one.

        Returns whether it was queued: not where the kernel copies boxes of an array that lies at an odd address.
        """
        # Few attributes are read: the interpreter finds those of a class less fast where others share this code.
        pointer, given = memory.pointer, self._given
        key: tuple[Any, ...]
        if given is not None:
            key = (device, *map(pointer, given(arrays)))
        else:
            every: Sequence[Any] = arrays
            if self._nested:
                every = [each for array in arrays for each in (array if isinstance(array, tuple) else (array,))]
            addresses = [None if array is None else pointer(array) for array in every]
            key = (device, *addresses, *[None if array is None else array.dtype for array in every])
        ready = self._ready.get(key)
        if ready is None:
            ready = self._prepared(memory, device, key, arrays)
            if ready is None:
                return False
        queue, x, y, z, arguments = ready
        queue(x, y, z, memory.stream(device), *arguments)
        return True

    def _ordered(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        return arrays if self._order is None else _picked(arrays, self._order)

    def _prepared(self, memory: Memory, device: int, key: tuple[Any, ...], arrays: tuple[Any, ...]) -> _Ready | None:
        """Return how the kernel is queued for these arrays, and keep it; ``None`` if the kernel can't take them."""
        self._nested = any(isinstance(array, tuple) for array in arrays)
        if not self.grid[0]:
            return _do_nothing, *self.grid, ()
        arrays = self._ordered(arrays)
        described = self._described(memory.pointer, arrays)
        if described is not None and take_down(self, described):
            return _do_nothing, *self.grid, ()
        if self._interpreted:
            self.function[self.grid](*mapped(memory.parts, arrays), *self.tail, **self.constants)
            return _do_nothing, *self.grid, ()
        if described is None:
            return None
        launch = self._launches.get((device, described))
        if launch is None:
            launch = self._launches[device, described] = launch_of(self.compile_for(*described))
        addresses = mapped(memory.pointer, arrays)
        given = self._with_boxes(launch, described, addresses) if self._boxes else addresses
        ready = launch.queue, *self.grid, launch.arguments((*given, *self._rest))
        _keep(self._ready, key, ready)
        return ready

    def _described(self, pointer: Callable[[Any], int], arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return what the kernel is compiled for in place of the arrays; ``None`` if it can't take them."""
        described: tuple[Any, ...] = mapped(
            lambda array: Array(array.dtype, aligned=pointer(array) % ALIGNMENT == 0), arrays
        )
        return described

    def _with_boxes(self, launch: Launch, described: tuple[Any, ...], addresses: tuple[Any, ...]) -> list[Any]:
        """Return the arguments in place of arrays, where the hardware copies boxes of some."""
        from triton.backends.nvidia.driver import make_tensordesc_arg

        given: list[Any] = []
        expansions = iter(launch.boxes)
        for at, (array, address) in enumerate(zip(described, addresses, strict=True)):
            if array is None or not array.box:
                given.append(address)
            elif not launch.bare:
                given.append(Descriptor(array, address))
            else:
                expansion = next(expansions)
                maps = self._maps.setdefault(at, {})
                found = maps.get(address)
                if found is None:
                    found = make_tensordesc_arg(Descriptor(array, address), expansion)
                    _keep(maps, address, found)
                given += found
        return given

    def compile_for(self, *arrays: Any) -> Any:
        """Compile for the current device and an :class:`Array` for each array, or take what was compiled before."""
        compiled = compiled_for(*self.source_for(*arrays))
        if self.options.get("num_ctas", 1) > 1:
            ask_for_shared(compiled.function, compiled.metadata.shared)
        return compiled

    def source_for(self, *arrays: Any) -> tuple[Any, Signature, tuple[tuple[str, Any], ...]]:
        """Return what is compiled for such arrays: the function, its signature, the compiler's options."""
        given = signature(self.function, (*arrays, *self.tail), tuple(self.constants.values()), self._even)
        return named(self.function), given, tuple(self.options.items())

    def at_a_time(self, *arrays: Any) -> int | None:
        """Return how many of its programs, which are clusters, run at a time; ``None`` if that isn't known."""
        if self._interpreted:
            return None
        compiled, threads = self.compile_for(*arrays), LANES * self.options["num_warps"]
        return clusters_at_a_time(compiled.function, self.options["num_ctas"], threads, compiled.metadata.shared)


class DeclaredCall(KernelCall):
    """A kernel whose arrays are described before there are any; some may be copied as boxes.

    There is an :class:`Array` in place of each that the kernel takes, in tuples as the kernel has them, ``None`` where
    there is none. ``even`` are fields of tuples in ``tail`` that the compiler is told to be multiples of 16 where they
    are; ``order`` is where each array is in a call, if a call hasn't the kernel's order.
    """

    def __init__(
        self,
        function: Any,
        grid: tuple[int, int],
        arrays: tuple[Any, ...],
        tail: tuple[Any, ...],
        constants: Mapping[str, Any],
        options: Mapping[str, Any],
        even: Collection[str] = (),
        order: tuple[Any, ...] | None = None,
    ) -> None:
        super().__init__(function, grid, tail, constants, 4, 3, even=even)
        self.options = dict(options)
        self._declared, self._order = arrays, order
        self._anywhere = mapped(lambda array: array._replace(aligned=False), arrays)
        given = [at for at, array in enumerate(arrays) if array is not None]
        self._given = tuple if len(given) == len(arrays) else itemgetter(*given)
        self._aligned = [array is not None and array.aligned for array in _flat(arrays)]
        self._boxes = any(array is not None and array.box for array in _flat(arrays))

    def declared(self, aligned: bool = True) -> tuple[Any, ...]:
        """Return what stands for arrays at aligned addresses, or at any; boxes are copied from aligned ones."""
        return self._declared if aligned or self._boxes else self._anywhere

    def _described(self, pointer: Callable[[Any], int], arrays: tuple[Any, ...]) -> tuple[Any, ...] | None:
        for array, aligned in zip(_flat(arrays), self._aligned, strict=True):
            if aligned and pointer(array) % ALIGNMENT:
                return None if self._boxes else self._anywhere
        return self._declared


def _do_nothing(*given: Any) -> None:
    """Take the place of what queues a kernel, where there is no more to do."""


def _keep(kept: dict[Any, T], key: Any, made: T) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = made


def _flat(arrays: tuple[Any, ...]) -> list[Any]:
    """Return arrays, those in tuples among the others."""
    return [
        each
        for array in arrays
        for each in (array if isinstance(array, tuple) and not isinstance(array, Array) else (array,))
    ]


def _picked(arrays: tuple[Any, ...], order: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arrays at these places, in tuples where these are."""
    return tuple([_picked(arrays, at) if isinstance(at, tuple) else arrays[at] for at in order])
