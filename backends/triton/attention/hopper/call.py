"""Launching Hopper's kernels of attention: arrays as the hardware sees them, and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.decode.work import DecodeNumbers, DecodeTiling
from einops_fast.backends.triton.attention.hopper.tiles import GROUP_ROWS, ITEM, PADDED, HopperTiling, Numbers, Places
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.kernel_call import DeclaredCall
from einops_fast.backends.triton.launching.launch import ALIGNMENT
from einops_fast.planning.cost import ITEM_SIZES

__all__ = ["BATCH_AXES", "LOG2E", "NOWHERE", "HopperCall", "Layouts", "array_of", "of_batch", "padded"]

BATCH_AXES = 3
"""That an array has as the hardware sees it."""

LOG2E = math.log2(math.e)

NOWHERE = Places(ANY, ANY, ANY, ANY)
"""Of an array that there isn't."""

_SHARERS = 4
"""Programs at work on the same batch element, at least about so many, where tiles differ in what there is to do."""

_CACHED = 24 << 20
"""Bytes of operands that such programs go through side by side, about: half of the level-2 cache."""


def of_batch(values: tuple[Any, ...], missing: Any) -> tuple[Any, ...]:
    """One value for each of the batch axes that the kernels count; ``missing`` for those in front that there aren't."""
    return (*(missing,) * (BATCH_AXES - len(values)), *values)


class HopperCall(DeclaredCall):
    """One kernel with everything fixed but its arrays.

    Args:
        function: the kernel.
        tiling: what it is specialised for.
        arrays: by the kernel's names and in its order; ``None`` for those that there aren't.
        scalars: the numbers after that, or tuples of these, by the kernel's names.
        numbers: the last ones.
        programs: how many there are.
        even: of the last numbers those for which it matters whether they are multiples of 16.
    """

    def __init__(
        self,
        function: Any,
        tiling: HopperTiling | DecodeTiling,
        arrays: Mapping[str, Array | None],
        scalars: Mapping[str, Any],
        numbers: Numbers | DecodeNumbers,
        programs: int,
        even: Sequence[str] = ("q_len", "padded"),
    ) -> None:
        options = {"num_warps": 4, "maxnreg": tiling.registers}
        tail = *scalars.values(), numbers
        super().__init__(function, (programs, 1), tuple(arrays.values()), tail, {"tiling": tiling}, options, even)


def array_of(parameter: str) -> str:
    """Return the name of the array that a kernel's parameter is, or is a descriptor of."""
    return parameter.removesuffix("desc").rstrip("_")


def padded(spec: AttentionSpec) -> int:
    """Queries of a batch element in the array of rows' numbers."""
    return -(-spec.q_len // PADDED) * PADDED


class Layouts:
    """Arrays as a kernel takes them, and numbers that all kernels take."""

    def __init__(self, spec: AttentionSpec, problem: Problem, tiling: HopperTiling, bias_dtype: str) -> None:
        self._spec, self._problem, self._tiling, self._bias_dtype = spec, problem, tiling, bias_dtype
        self._sizes = of_batch(problem.sizes, 1)

    def __call__(self, name: str) -> Array | None:
        """Return an array of that name as kernels take it; ``None`` if there is none."""
        spec, tiling = self._spec, self._tiling
        if name in ("bias", "mask", "d_bias"):
            return self._added(name)
        if name == "bounds":
            return Array("int32") if tiling.bounded else None
        if name == "rows" and tiling.turned:
            # Of each batch element the logarithms of its queries, then their delta.
            length = padded(spec)
            return Array("float32", (2 * self._problem.elements, length), (length, 1), (1, tiling.block))
        if name in ("rows", "lse"):
            return Array("float32")
        of_keys, of_values = name in ("k", "v", "dk", "dv"), name in ("v", "dv", "out", "d_out")
        # Tiles are of keys or of queries, blocks of the others.
        rows = GROUP_ROWS if of_keys == tiling.turned else tiling.block
        tail = (spec.kv_len if of_keys else spec.q_len, spec.v_head_dim if of_values else spec.head_dim)
        return self._copied(name, spec.dtype, tail, (rows, tiling.box(int(of_values))))

    def _added(self, name: str) -> Array | None:
        """Of the bias, its gradient or the mask: in tiles, or an address."""
        spec, tiling = self._spec, self._tiling
        along = tiling.mask if name == "mask" else tiling.bias
        dtype = "uint8" if name == "mask" else self._bias_dtype
        if along is None or (name == "d_bias" and not tiling.d_bias):
            return None
        if name == "d_bias" and tiling.in_parts:
            return Array("float32", aligned=False)
        if along != (True, True):
            return Array(dtype, aligned=False)
        box = (tiling.block, GROUP_ROWS) if tiling.turned else (GROUP_ROWS, tiling.block)
        return self._copied(name, dtype, (spec.q_len, spec.kv_len), box)

    def _copied(self, name: str, dtype: str, tail: tuple[int, int], box: tuple[int, int]) -> Array:
        strides = getattr(self._problem.strides, name)
        own = (*(0,) * (BATCH_AXES + 2 - len(strides)), *strides)
        batch = [size if stride else 1 for size, stride in zip(self._sizes, own[:BATCH_AXES], strict=True)]
        # Any stride does for an axis of size 1.
        anything = ALIGNMENT // ITEM_SIZES[dtype]
        return Array(dtype, (*batch, *tail), tuple(stride or anything for stride in own), (1,) * BATCH_AXES + box)

    def numbers(self, elements: int, length: int, units: int, bounds: Places | None = None) -> Numbers:
        """Of a kernel whose tiles have so many positions to share, and of which a mask has such bounds."""
        spec, problem = self._spec, self._problem
        shift = spec.kv_len - spec.q_len if problem.features.bottom_right else 0
        tiles = max(1, -(-length // self._tiling.rows))
        together, rounds, sections = elements, 0, 0
        if self._tiling.right and elements:
            # As many elements as fill an even number of rounds, of about those whose blocks the cache holds.
            programs = self.programs(elements, length, units)
            others = problem.share * spec.q_len if self._tiling.turned else spec.kv_len
            size = others * (spec.head_dim + spec.v_head_dim) * ITEM
            fitting = min(max(1, _CACHED // size), -(-units // _SHARERS))
            rounds = 2 * -(-fitting * tiles // (2 * programs))
            together = min(elements, max(1, rounds * programs // tiles))
            rounds = 2 * -(-together * tiles // (2 * programs))
            sections = -(-elements // together)
        return Numbers(
            elements,
            tiles,
            sections * rounds * programs if sections else elements * tiles,
            together,
            rounds,
            problem.share,
            spec.q_len,
            spec.kv_len,
            padded(spec),
            shift - int(problem.numbers.left),
            shift + int(problem.numbers.right),
            self._sizes[1],
            self._sizes[2],
            spec.scale * LOG2E,
            spec.softcap * LOG2E,
            self._places(problem.strides.bias, self._tiling.bias),
            self._places(problem.strides.mask, self._tiling.mask),
            bounds or NOWHERE,
        )

    def _places(self, strides: tuple[int, ...] | None, along: tuple[bool, bool] | None) -> Places:
        if strides is None or along in (None, (True, True)):
            return NOWHERE
        *batch, of_queries, of_keys = strides
        return Places._make((*of_batch(tuple(batch), 0), of_queries or of_keys))

    def programs(self, elements: int, length: int, units: int) -> int:
        """How many are worth starting: as many as share each multiprocessor, if there are tiles enough."""
        return min(elements * -(-length // self._tiling.rows), units * self._tiling.programs)
