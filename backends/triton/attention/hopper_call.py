"""Launching Hopper's kernels of attention: arrays as the hardware sees them, and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import triton
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.hopper_tiles import HopperTiling, Numbers
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.backends.triton.launch import ALIGNMENT
from einops_fast.backends.triton.memory import Memory
from einops_fast.backends.triton.tma_launch import Descriptor, descriptor_type

__all__ = ["BATCH_AXES", "ITEM", "HopperCall", "Layouts"]

ITEM = 2
"""Bytes of an element."""

BATCH_AXES = 3
"""That an array has as the hardware sees it."""

_LOG2E = math.log2(math.e)

_REGISTERS = {2: 168, 3: 128}
"""That a thread has before the warp groups share them out anew, by number of groups."""


class HopperCall:
    """One kernel with everything fixed but its arrays.

    Args:
        function: the kernel.
        tiling: what it is specialised for.
        described: shape, strides and box of the arrays that the hardware copies, by the kernel's names.
        dtype: of these.
        pointed: names of the arrays that follow them.
        scalars: the numbers after that, by the kernel's names.
        numbers: the last ones.
        programs: how many there are.
    """

    def __init__(
        self,
        function: Any,
        tiling: HopperTiling,
        described: Mapping[str, tuple[list[int], list[int], list[int]]],
        dtype: str,
        pointed: Sequence[str],
        scalars: Mapping[str, float],
        numbers: Numbers,
        programs: int,
    ) -> None:
        self._programs = programs
        self._descriptors = [Descriptor(shape, strides) for shape, strides, _ in described.values()]
        types: dict[str, Any] = {name: descriptor_type(box, dtype) for name, (_, _, box) in described.items()}
        types |= dict.fromkeys(pointed, "*fp32")
        types |= dict.fromkeys(scalars, "fp32")
        types["numbers"] = Numbers(*("fp32" if isinstance(each, float) else "i32" for each in numbers))
        # What begins at a multiple of 16 bytes, numbers included, can be loaded several at a time.
        aligned: list[tuple[int, ...]] = [(list(types).index(name),) for name in pointed]
        if numbers.q_len % ALIGNMENT == 0:
            aligned.append((list(types).index("numbers"), Numbers._fields.index("q_len")))
        self._kind = function, tuple(types.items()), tuple(aligned), tiling
        self._rest = (*scalars.values(), numbers, tiling)

    def __call__(self, memory: Memory, device: int, described: Sequence[Any], pointed: Sequence[Any]) -> bool:
        """Queue the kernel, unless an array lies at an odd address: then do nothing.

        Returns:
            Whether it was queued.
        """
        if not self._programs:
            return True
        addresses = [memory.pointer(array) for array in (*described, *pointed)]
        if any(address % ALIGNMENT for address in addresses):
            return False
        compiled = compiled_for(*self._kind, device)
        arrays = [each.at(address) for each, address in zip(self._descriptors, addresses, strict=False)]
        compiled.run(
            self._programs, 1, 1, memory.stream(device), compiled.function, compiled.packed_metadata,
            None, None, None, *arrays, *addresses[len(arrays) :], *self._rest,
        )  # fmt: skip
        return True


@lru_cache(maxsize=512)
def compiled_for(
    function: Any,
    types: tuple[tuple[str, Any], ...],
    aligned: tuple[tuple[int, ...], ...],
    tiling: HopperTiling,
    device: int,
) -> Any:
    """A kernel for ``device``, the current one: compiled, or taken from Triton's own cache.

    Args:
        function: the kernel.
        types: of its arguments, by name.
        aligned: which of them are multiples of 16.
        tiling: what it is specialised for.
        device: number of the device.
    """
    hints = {path: [["tt.divisibility", ALIGNMENT]] for path in aligned}
    source = GluonASTSource(function, {**dict(types), "tiling": "constexpr"}, {"tiling": tiling}, hints)
    options = {"num_warps": 4, "maxnreg": _REGISTERS[tiling.groups]}
    compiled = triton.compile(source, target=driver.active.get_current_target(), options=options)
    _ = compiled.run  # loads it on the device, which may fail
    return compiled


class Layouts:
    """Arrays as the hardware sees them, and numbers that all kernels take."""

    def __init__(self, spec: AttentionSpec, problem: Problem, tiling: HopperTiling) -> None:
        self._spec, self._problem, self._tiling = spec, problem, tiling
        self._sizes = (*(1,) * (BATCH_AXES - problem.features.axes), *problem.sizes)

    def __call__(self, name: str, rows: int) -> tuple[list[int], list[int], list[int]]:
        """Shape, strides and box of an array, of which a box has so many rows."""
        spec, tiling = self._spec, self._tiling
        of_keys, of_values = name in ("k", "v", "dk", "dv"), name in ("v", "dv", "out", "d_out")
        strides = getattr(self._problem.strides, name)
        own = (*(0,) * (BATCH_AXES + 2 - len(strides)), *strides)
        batch = [size if stride else 1 for size, stride in zip(self._sizes, own[:BATCH_AXES], strict=True)]
        shape = [*batch, spec.kv_len if of_keys else spec.q_len, spec.v_head_dim if of_values else spec.head_dim]
        # Any stride does for an axis of size 1.
        anything = ALIGNMENT // ITEM
        box = [1] * BATCH_AXES + [rows, tiling.v_head if of_values else tiling.head]
        return shape, [stride or anything for stride in own], box

    def numbers(self, elements: int, length: int, units: int) -> Numbers:
        """Of a kernel whose tiles have so many positions to share."""
        spec, problem = self._spec, self._problem
        shift = spec.kv_len - spec.q_len if problem.features.bottom_right else 0
        tiles = -(-length // self._tiling.rows)
        return Numbers(
            elements,
            # With half of a section's tiles after the other half, each program has as much to do.
            max(1, units // max(1, tiles)) if self._tiling.alternating else 1,
            tiles,
            problem.share,
            spec.q_len,
            spec.kv_len,
            shift - int(problem.numbers.left),
            shift + int(problem.numbers.right),
            self._sizes[1],
            self._sizes[2],
            spec.scale * _LOG2E,
            spec.softcap * _LOG2E,
        )

    def programs(self, elements: int, length: int, units: int) -> int:
        """How many are worth starting: one for each multiprocessor, if there are tiles enough."""
        return min(elements * -(-length // self._tiling.rows), units)
