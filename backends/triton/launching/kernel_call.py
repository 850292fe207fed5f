"""Launching a kernel that Triton compiles for its arrays, again and again with as little as possible on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.device.tiling import LANES
from einops_fast.backends.triton.launching.bare_launch import Launch, keep, launch_of
from einops_fast.backends.triton.launching.compiling import compiling
from einops_fast.backends.triton.launching.launch import ALIGNMENT, interpreted
from einops_fast.backends.triton.launching.occupancy import ask_for_shared, clusters_at_a_time

__all__ = ["KernelCall"]


class KernelCall:
    """A kernel with everything fixed but its arrays.

    Triton compiles it at the first launch, for what the numbers and the arrays' dtypes and alignment allow, and is then
    passed by.

    Args:
        function: the kernel, whose first arguments are arrays or tuples of arrays, the same ones in all calls.
        grid: how many programs.
        tail: the arguments that follow.
        constants: those that are known while compiling, in the kernel's order.
        warps, stages: of a program.
        ctas: thread blocks of a program, which are then a cluster.
        registers: of a thread, at most.
    """

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
    ) -> None:
        self.function, self.grid, self.tail, self.constants = function, (*grid, 1), tail, dict(constants)
        self.options = {"num_warps": warps, "num_stages": stages, "num_ctas": ctas}
        if registers is not None:
            self.options["maxnreg"] = registers
        self._rest = (*tail, *self.constants.values())
        self._launches: dict[Any, Launch] = {}
        self._ready: dict[Any, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._interpreted = interpreted()
        self._nested: bool | None = None

    def __call__(self, memory: Memory, device: int, *arrays: Any) -> None:
        """Queue the kernel on the framework's stream of the device, which is the current one."""
        grid = self.grid
        if not grid[0]:
            return
        if self._interpreted:
            self.function[grid](*arrays, *self.tail, **self.constants)
            return
        if self._nested is None:
            self._nested = any(isinstance(array, tuple) for array in arrays)
        pointer = memory.pointer
        every: Sequence[Any] = arrays
        if self._nested:
            every = [each for array in arrays for each in (array if isinstance(array, tuple) else (array,))]
        addresses = [None if array is None else pointer(array) for array in every]
        kinds = [None if array is None else array.dtype for array in every]
        key = (device, *addresses, *kinds)
        ready = self._ready.get(key)
        if ready is None:
            launch = self._launch(device, addresses, kinds, arrays)
            given = [_of_each(pointer, array) for array in arrays]
            ready = keep(self._ready, key, (launch.queue, launch.arguments((*given, *self._rest))))
        queue, arguments = ready
        queue(grid[0], grid[1], grid[2], memory.stream(device), *arguments)

    def _launch(self, device: int, addresses: Sequence[Any], kinds: Sequence[Any], arrays: tuple[Any, ...]) -> Launch:
        """How the kernel is queued for arrays of these kinds at such addresses."""
        key = (device, *[each is None or each % ALIGNMENT == 0 for each in addresses], *kinds)
        found = self._launches.get(key)
        if found is None:
            found = self._launches[key] = launch_of(self.compile(*arrays))
        return found

    def compile(self, *arrays: Any) -> Any:
        """Compile for the current device and arrays such as these, or take the kernel from Triton's own cache."""
        with compiling():
            compiled = self.function.warmup(*arrays, *self.tail, grid=self.grid, **self.constants, **self.options)
        _ = compiled.run  # loads it on the device, which may fail
        if self.options["num_ctas"] > 1:
            ask_for_shared(compiled.function, compiled.metadata.shared)
        return compiled

    def at_a_time(self, *arrays: Any) -> int | None:
        """How many of its programs run at a time, if these are clusters; ``None`` if that isn't known."""
        if self._interpreted:
            return None
        compiled, threads = self.compile(*arrays), LANES * self.options["num_warps"]
        return clusters_at_a_time(compiled.function, self.options["num_ctas"], threads, compiled.metadata.shared)


def _of_each(get: Callable[[Any], Any], array: Any) -> Any:
    """What there is to get of an array, or of each in a tuple."""
    if isinstance(array, tuple):
        return tuple([None if each is None else get(each) for each in array])
    return None if array is None else get(array)
