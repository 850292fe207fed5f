"""Tiles of the contraction kernel by threads: which thread has what of them, in registers and in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.contraction import ContractionTiling
from einops_fast.backends.triton.matrix_tiles import LEFT, OUT, RIGHT
from einops_fast.backends.triton.tiling import Group, Role

__all__ = ["FmaTiling"]

_LANES, _REGISTERS = 32, 1 << 16
"""Threads of a warp; registers of a multiprocessor."""

_RUN = 4
"""Elements that a thread loads, stores or multiplies next to each other."""


@dataclass(frozen=True)
class FmaTiling(ContractionTiling):
    """What the kernel is specialised for, besides what the other contraction kernel is.

    ``factored``, ``turned``, ``rest`` and ``epilogue`` aren't used.

    Attributes:
        further: more parts of each tile's columns, where their number is no power of two.
        programs: how many there are; where there are fewer than tiles, each goes on to another one.
        registers: that a thread may use at most; 0 for as many as it has use for.
    """

    further: tuple[Role, ...] = ()
    programs: int = 0
    registers: int = 0

    @property
    def name(self) -> str:
        tile = "×".join(str(role.width) for role in (self.rows, self.columns, self.contracted))
        again = ", one after the other" if self.persistent else ""
        return f"contraction by threads {tile}, {self.warps} warps, split {self.split}{again}"

    @property
    def grid(self) -> tuple[int, int, int]:
        tiles, split, _ = super().grid
        return min(self.programs or tiles, tiles), split, 1

    @property
    def tiles(self) -> int:
        """Of the result."""
        return super().grid[0]

    @property
    def persistent(self) -> bool:
        """Whether a program computes several tiles."""
        return self.grid[0] < self.tiles

    @property
    def parts(self) -> tuple[Role, ...]:
        """The columns of a tile."""
        return (self.columns, *self.further)

    @property
    def threads(self) -> tuple[int, int]:
        """Down the rows and across the columns: about as many sums of each lie down as across."""
        count = _LANES * self.warps
        narrowest = min(part.block for part in self.parts)
        across = 1
        while across < narrowest and 2 * across * across * self.rows.block <= count * self.columns.width:
            across *= 2
        return count // across, across

    @property
    def sums_of_thread(self) -> tuple[float, float]:
        """How many sums a thread has, down and across."""
        down, across = self.threads
        return self.rows.block / down, self.columns.width / across

    @property
    def options(self) -> dict[str, int]:
        """For the compiler."""
        return {"maxnreg": self.most_registers}

    @property
    def most_registers(self) -> int:
        """That a thread may use: for its sums, and for what it loads, multiplies and counts."""
        down, across = self.sums_of_thread
        if self.registers:
            return self.registers
        return 255 if down * across > 104 else 168 if down * across > 56 and self.warps < 8 else 128

    @property
    def resident(self) -> int:
        """How many programs a multiprocessor runs at once."""
        return _REGISTERS // (_LANES * self.warps * self.most_registers)

    @property
    def product_layouts(self) -> tuple[Any, ...]:
        """Of the sums of products: each thread has 4 × 4 of them, or fewer, at several places of every part."""
        down, across = self.threads
        # A warp is as square as can be.
        lanes = min(across, 8 if _bits(self, OUT, 0)[0][0] == 1 else 4)
        while _LANES // lanes > down:
            lanes *= 2
        order = [0, 1] if _bits(self, OUT, 0)[0][0] == 0 else [1, 0]
        high = max(1, min(_RUN, self.rows.block // down))
        return tuple(
            gl.BlockedLayout(
                [high, max(1, min(_RUN, part.block // across))],
                [_LANES // lanes, lanes],
                [down * lanes // _LANES, across // lanes],
                order,
            )
            for part in self.parts
        )

    @property
    def left_layout(self) -> Any:
        """Of the left operand's tile when it is loaded, rows × contracted."""
        return _loading(self, LEFT, 0, (self.rows.block, self.contracted.block))

    @property
    def right_layouts(self) -> tuple[Any, ...]:
        """Of the parts of the right operand's tile when they are loaded, contracted × columns."""
        return tuple(
            _loading(self, RIGHT, at, (self.contracted.block, part.block)) for at, part in enumerate(self.parts)
        )

    @property
    def out_layouts(self) -> tuple[Any, ...]:
        """Of the parts of the result's tile when they are stored."""
        return tuple(_loading(self, OUT, at, (self.rows.block, part.block)) for at, part in enumerate(self.parts))

    @property
    def regrouped(self) -> bool:
        """Whether neighbours in the result's memory aren't neighbours in a tile."""
        return [value for _, value in _bits(self, OUT, 0)[:2]] != [1, 2]

    @property
    def left_shared(self) -> Any:
        """Of the left operand's tile in shared memory: rows lie next to each other."""
        return _shared(self, LEFT, 0, self.rows, [0, 1])

    @property
    def right_shared(self) -> tuple[Any, ...]:
        """Of the parts of the right operand's tile in shared memory: columns lie next to each other."""
        return tuple(_shared(self, RIGHT, at, part, [1, 0]) for at, part in enumerate(self.parts))


def _dims(tiling: FmaTiling, array: int, part: int) -> tuple[Role, Role]:
    """The roles that an array's tile, or a part of it, extends along."""
    if array == LEFT:
        return tiling.rows, tiling.contracted
    if array == RIGHT:
        return tiling.contracted, tiling.parts[part]
    return tiling.rows, tiling.parts[part]


def _bits(tiling: FmaTiling, array: int, part: int) -> list[tuple[int, int]]:
    """The bits of a position in an array's tile, as dimension and value, those of neighbours in memory first."""
    found: list[tuple[int, int, int]] = []
    for dim, role in enumerate(_dims(tiling, array, part)):
        slow, fast = role.groups
        for group, unit in ((fast, 1), (slow, fast.block)):
            found += [(_stride(group, array), dim, unit << at) for at in range(group.block.bit_length() - 1)]
    return [(dim, value) for _, dim, value in sorted(found, key=lambda bit: bit[0])]


def _stride(group: Group, array: int) -> int:
    """From one position of a group to the next; where an array has none of its axes, more than any."""
    stride = abs(group.axes[-1].strides[array]) if group.axes else 0
    return stride or 1 << 62


def _loading(tiling: FmaTiling, array: int, part: int, shape: tuple[int, int]) -> Any:
    """Which thread has what of a tile: some neighbours each, then neighbouring threads neighbouring elements."""
    bits = [[value if at == dim else 0 for at in range(2)] for dim, value in _bits(tiling, array, part)]
    run = _RUN.bit_length() - 1
    lanes = run + _LANES.bit_length() - 1
    warps = lanes + tiling.warps.bit_length() - 1

    def some(first: int, last: int) -> list[list[int]]:
        # Where there are fewer elements than threads, several have the same ones.
        return bits[first:last] + [[0, 0]] * (last - max(first, min(last, len(bits))))

    return gl.DistributedLinearLayout(bits[:run] + bits[warps:], some(run, lanes), some(lanes, warps), [], list(shape))


def _shared(tiling: FmaTiling, array: int, part: int, free: Role, order: list[int]) -> Any:
    """Shared memory, in which threads that turn an operand around while they store it use all banks at once."""
    dim, _ = _bits(tiling, array, part)[0]
    if _dims(tiling, array, part)[dim] is free:
        return gl.SwizzledSharedLayout(_RUN, 1, 1, order)
    lanes = tiling.contracted.block // _RUN
    shape = [role.block for role in _dims(tiling, array, part)]
    return gl.PaddedSharedLayout.with_identity_for([[_RUN * free.block, max(_RUN, _LANES // lanes)]], shape, order)
