"""Compiling a kernel for one tiling, and launching it with as little as possible on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import triton
import triton.language as tl
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from einops_fast.backends.memory import Memory
from einops_fast.backends.triton.contraction.chain.kernel import ChainTiling, chain_kernel
from einops_fast.backends.triton.contraction.loops.kernel import ReductionTiling, reduce_kernel
from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling, contract_kernel
from einops_fast.backends.triton.contraction.threads.kernel import fma_kernel
from einops_fast.backends.triton.contraction.threads.tiles import FmaTiling
from einops_fast.backends.triton.launching.bare_launch import Launch, keep, launch_of
from einops_fast.backends.triton.launching.compiling import compiling
from einops_fast.planning.cost import is_integer

__all__ = ["ALIGNMENT", "DTYPES", "Kernel", "accumulator", "follow_early", "interpreted", "spelled"]

DTYPES = {
    "float16": tl.float16,
    "bfloat16": tl.bfloat16,
    "float32": tl.float32,
    "float64": tl.float64,
    "int8": tl.int8,
    "uint8": tl.uint8,
    "int16": tl.int16,
    "int32": tl.int32,
    "int64": tl.int64,
}
"""What the kernels compute on."""

ALIGNMENT = 16
"""Bytes: a pointer that isn't a multiple gets a kernel of its own, and the hardware copies no box from there."""


def accumulator(dtype: str) -> str:
    """The dtype that sums are kept in. Those of integers wrap around, and what is cut off in the end is the same."""
    if is_integer(dtype):
        return "int64" if dtype == "int64" else "int32"
    return "float64" if dtype == "float64" else "float32"


def spelled(dtype: str) -> str:
    """A type as Triton's compiler spells it; that of an array's address begins with an asterisk."""
    return str(DTYPES[dtype].name.replace("int", "i").replace("ui", "u"))


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on arrays in the memory of the CPU."""
    return bool(triton.knobs.runtime.interpret)


def follow_early() -> bool:
    """Whether the current device lets a kernel begin while the one before it ends: Hopper and later."""
    if interpreted():
        return False
    target = driver.active.get_current_target()
    return target.backend == "cuda" and int(target.arch) >= 90


class Kernel:
    """A kernel for one tiling, compiled when it is launched first, once per alignment of its arrays.

    Args:
        tiling: what the kernel is specialised for.
        dtype: of the operands.
        result: of the result.
    """

    def __init__(self, tiling: ChainTiling | ContractionTiling | ReductionTiling, dtype: str, result: str) -> None:
        self.tiling = tiling
        self._grid = tiling.grid
        acc = DTYPES[accumulator(dtype)]
        operand, out = "*" + spelled(dtype), "*" + spelled(result)
        self._function: Any
        self._types: dict[str, Any]
        self._constants: dict[str, Any] = {"tiling": tiling, "acc_type": acc}
        self._options = {"num_warps": tiling.warps, "num_stages": 1}
        if not isinstance(tiling, ChainTiling) and tiling.follows:
            self._options["launch_pdl"] = True
        if isinstance(tiling, ReductionTiling):
            self._function = reduce_kernel
            self._types = {"arrays": (operand,) * tiling.operands, "out": out}
        else:
            self._constants["upcast"] = interpreted() and dtype == "bfloat16"
            self._options["num_stages"] = tiling.stages
            if isinstance(tiling, ChainTiling):
                self._function = chain_kernel
                self._types = {"arrays": (operand,) * (len(tiling.links) + 1), "out": out}
            else:
                self._function = contract_kernel
                if isinstance(tiling, FmaTiling):
                    self._function = fma_kernel
                    self._options |= tiling.options
                self._types = dict.fromkeys(("left", "right", "third"), operand) | {"out": out, "before": out}
        self._together = "arrays" in self._types
        self._rest = tuple(self._constants.values())
        self._compiled: dict[bool, Any] = {}
        self._launches: dict[bool, Launch] = {}
        self._ready: dict[tuple[int, ...], tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._interpreted = interpreted()

    def launch(self, memory: Memory, device: int, operands: Sequence[Any], *results: Any) -> None:
        """Queue the kernel on the framework's stream of the device, which is the current one.

        Args:
            memory: whose arrays they are.
            device: where they are.
            operands: what is read; a bias comes last.
            results: what is written: one array, and what an epilogue keeps.
        """
        if self._interpreted:
            self._function[self._grid](*self._arguments(tuple(operands), results), **self._constants)
            return
        pointer = memory.pointer
        addresses = tuple([pointer(array) for array in (*operands, *results)])
        ready = self._ready.get(addresses)
        if ready is None:
            ready = keep(self._ready, addresses, self._prepared(addresses, len(operands)))
        queue, arguments = ready
        grid = self._grid
        queue(grid[0], grid[1], grid[2], memory.stream(device), *arguments)

    def _prepared(self, addresses: tuple[int, ...], operands: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        """What queues the kernel for arrays at these addresses, operands first, and what it takes after the stream."""
        aligned = all(address % ALIGNMENT == 0 for address in addresses)
        launch = self._launches.get(aligned)
        if launch is None:
            launch = self._launches[aligned] = launch_of(self._compiled.get(aligned) or self.compile(aligned))
        arrays = self._arguments(addresses[:operands], addresses[operands:])
        return launch.queue, launch.arguments((*arrays, *self._rest))

    def _arguments(self, operands: tuple[Any, ...], results: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arrays as the kernel takes them. In a contraction, the first one stands in for what isn't there."""
        if self._together:
            return operands, *results
        third = operands[0] if len(operands) == 2 else operands[2]
        return operands[0], operands[1], third, results[0], results[-1]

    def compile(self, aligned: bool = True) -> Any:
        """Compile for the current device, or take the kernel from Triton's own cache."""
        types = {**self._types, **dict.fromkeys(self._constants, "constexpr")}
        arrays: list[tuple[int, ...]]
        arrays = [(0, at) for at in range(len(self._types["arrays"]))] if self._together else []
        arrays += [(at,) for at, name in enumerate(self._types) if name != "arrays"]
        hints = {path: [["tt.divisibility", ALIGNMENT]] for path in arrays} if aligned else {}
        written_in = GluonASTSource if isinstance(self.tiling, FmaTiling) else ASTSource
        source = written_in(self._function, types, self._constants, hints)
        with compiling():
            compiled = triton.compile(source, target=driver.active.get_current_target(), options=self._options)
        _ = compiled.run  # loads it on the device, which may fail
        self._compiled[aligned] = compiled
        return compiled
