"""Launching a kernel of attention again and again with as little as possible on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from einops_fast.backends.triton.launch import interpreted
from einops_fast.backends.triton.memory import Memory

__all__ = ["KernelCall"]

_ALIGNMENT = 16


class KernelCall:
    """A kernel with everything fixed but its arrays.

    Triton compiles it at the first launch, for what the numbers and the arrays' dtypes and alignment allow, and is then
    passed by.

    Args:
        function: the kernel, whose first arguments are arrays or tuples of arrays.
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
        self._compiled: dict[Any, Any] = {}
        self._interpreted = interpreted()

    def __call__(self, memory: Memory, device: int, *arrays: Any) -> None:
        """Queue the kernel on the framework's stream of the device, which is the current one."""
        grid = self.grid
        if not grid[0]:
            return
        if self._interpreted:
            self.function[grid](*arrays, *self.tail, **self.constants)
            return
        pointer = memory.pointer
        bits = 0
        addresses: list[Any] = []
        kinds: list[Any] = []
        for array in arrays:
            if array is None:
                addresses.append(None)
                kinds.append(None)
            elif isinstance(array, tuple):
                inner = tuple([None if each is None else pointer(each) for each in array])
                for each in inner:
                    bits |= each or 0
                addresses.append(inner)
                kinds.append(tuple([None if each is None else each.dtype for each in array]))
            else:
                address = pointer(array)
                bits |= address
                addresses.append(address)
                kinds.append(array.dtype)
        key = (device, bits % _ALIGNMENT == 0 or _alignments(addresses), *kinds)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = self.compile(*arrays)
        compiled.run(
            grid[0], grid[1], grid[2], memory.stream(device), compiled.function, compiled.packed_metadata,
            None, None, None, *addresses, *self._rest,
        )  # fmt: skip

    def compile(self, *arrays: Any) -> Any:
        """Compile for the current device and arrays such as these, or take the kernel from Triton's own cache."""
        compiled = self.function.warmup(*arrays, *self.tail, grid=self.grid, **self.constants, **self.options)
        _ = compiled.run  # loads it on the device, which may fail
        return compiled


def _alignments(addresses: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(
        _alignments(each) if isinstance(each, tuple) else each is None or each % _ALIGNMENT == 0 for each in addresses
    )
