"""Tiles of the contraction kernel by threads: which thread has what of them, in registers and in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.contraction.pointers.kernel import ContractionTiling
from einops_fast.backends.triton.contraction.tiling import LEFT, OUT, RIGHT
from einops_fast.backends.triton.device.tiling import LANES, Group, Role

_REGISTERS, _SHARED, _RESERVED = 1 << 16, 228 << 10, 1 << 10
"""Registers and bytes of shared memory of a multiprocessor, of which each program takes some more
than it has."""

_RUN = 4
"""Elements that a thread loads, stores or multiplies next to each other."""

_BANKS = 32
"""Of shared memory, each as wide as an element."""


@dataclass(frozen=True)
class FmaTiling(ContractionTiling):
    """What the kernel is specialised for; ``factored``, ``rest`` and ``epilogue`` aren't used.

    More parts of each tile's rows and columns are ``below`` and ``further``. Operands that are contiguous along
    contracted axes may be copied ``one_by_one``: then rows, or columns, are neighbours in shared memory.
    """

    below: tuple[Role, ...] = ()
    further: tuple[Role, ...] = ()
    one_by_one: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        tile = "×".join(str(role.width) for role in (self.rows, self.columns, self.contracted))
        turned = "".join(f", {('left', 'right')[operand]} turned" for operand in self.one_by_one)
        shape = f"{tile}, {self.warps} warps, {self.stages} stages, split {self.split}"
        return f"contraction by threads {shape}{turned}"

    @property
    def tiles(self) -> int:
        """Of the result."""
        return self.grid[0]

    def parts_of(self, operand: int) -> tuple[Role, ...]:
        """The rows of a tile, or its columns."""
        return (self.rows, *self.below) if operand == LEFT else (self.columns, *self.further)

    @property
    def threads(self) -> tuple[int, int]:
        """Down the rows and across the columns: about as many sums of each lie down as across."""
        count = LANES * self.warps
        narrowest = min(part.block for part in self.parts_of(RIGHT))
        across = 1
        while across < narrowest and 2 * across * across * self.rows.width <= count * self.columns.width:
            across *= 2
        return count // across, across

    @property
    def sums_of_thread(self) -> tuple[float, float]:
        """How many sums a thread has, down and across."""
        down, across = self.threads
        return self.rows.width / down, self.columns.width / across

    @property
    def each_its_own(self) -> bool:
        """Whether all threads have sums of their own of every part."""
        return all(
            part.block >= count
            for operand, count in zip((LEFT, RIGHT), self.threads, strict=True)
            for part in self.parts_of(operand)
        )

    @property
    def most_registers(self) -> int:
        """That a thread may use: for its sums, and for what it multiplies and counts."""
        down, across = self.sums_of_thread
        if self.contracted.tiles == 1 and down * across <= 32 and self.at_once == 1:
            return 64  # more warps wait for each other's stores
        return 255 if down * across > 80 else 168 if down * across > 56 and self.warps < 8 else 128

    @property
    def resident(self) -> int:
        """How many programs a multiprocessor runs at once."""
        shared = 4 * self.stages * (self.rows.width + self.columns.width) * self.contracted.block
        if self.chunk:
            shared += 4 * self.rows.width * self.columns.width
        return min(_REGISTERS // (LANES * self.warps * self.most_registers), _SHARED // (shared + _RESERVED))

    @property
    def _lanes(self) -> tuple[tuple[int, int], tuple[int, int], list[int]]:
        """Lanes of a warp, and warps, down and across; and which dimension is the first that lanes are along."""
        down, across = self.threads
        lanes = min(across, 8 if self._bits(OUT)[0][0] == 1 else 4)
        while LANES // lanes > down:
            lanes *= 2
        order = [0, 1] if self._bits(OUT)[0][0] == 0 else [1, 0]
        return (LANES // lanes, lanes), (down * lanes // LANES, across // lanes), order

    def _unit(self, operand: int, part: int) -> int:
        """How many neighbours a thread has of a part's rows, or columns."""
        if self.in_runs(operand, part) and self._lanes[0][operand] > self.contracted.block // _RUN:
            # More lanes read from different banks where their rows are neighbours.
            return 1
        return max(1, min(_RUN, self.block_of(operand, part) // self.threads[operand]))

    def block_of(self, operand: int, part: int) -> int:
        """How many rows, or columns, a part has."""
        return self.parts_of(operand)[part].block

    def product_layout(self, row_part: int, column_part: int) -> Any:
        """Of sums of products: each thread has 4 × 4 of them, or fewer, at several places."""
        lanes, warps, order = self._lanes
        return gl.BlockedLayout([self._unit(LEFT, row_part), self._unit(RIGHT, column_part)], [*lanes], [*warps], order)

    def sums_layout(self, row_part: int, column_part: int) -> Any:
        """The same, in the order in which they are added to: what is next to each other then has a factor in common.

        A thread's registers are in two banks, and a factor that is used again is read from neither. The compiler has
        the last word; a column after the other is better by 4 to 8 % where no numbers are read in runs.
        """
        if self.at_once > 1:
            return self.product_layout(row_part, column_part)
        shape = [self.block_of(LEFT, row_part), self.block_of(RIGHT, column_part)]
        return gl.DistributedLinearLayout(*self._spread_of_sums(row_part, column_part), [], shape)

    def totals_layout(self, row_part: int, column_part: int) -> Any:
        """Of sums in shared memory: four of a thread's next to each other, beside those of the next thread."""
        registers, lanes, warps = self._spread_of_sums(row_part, column_part)
        some = _log2(_RUN)
        return gl.SharedLinearLayout(registers[:some] + lanes + warps + registers[some:])

    def _spread_of_sums(self, row_part: int, column_part: int) -> tuple[list[list[int]], ...]:
        """Of sums, the places that bits of a thread's registers, of its lane and of its warp stand for."""
        down, across = self._spread(LEFT, row_part), self._spread(RIGHT, column_part)
        registers = [[at, 0] for at in down[0]] + [[0, at] for at in across[0]]
        return registers, *(
            [[first, second] for first, second in zip(down[level], across[level], strict=True)] for level in (1, 2)
        )

    def vector_layout(self, operand: int, part: int) -> Any:
        """Of one position's numbers, that are multiplied with those of the other operand."""
        if operand == LEFT:
            return gl.SliceLayout(1, self.sums_layout(part, 0))
        return gl.SliceLayout(0, self.sums_layout(0, part))

    def _spread(self, operand: int, part: int) -> tuple[list[int], list[int], list[int]]:
        """Of a vector, the places that bits of a thread's registers, of its lane and of its warp stand for."""
        size, unit = self.block_of(operand, part), self._unit(operand, part)
        lanes, warps, order = self._lanes
        placed = [
            _doubled(unit * over, count) for over, count in ((1, lanes[operand]), (lanes[operand], warps[operand]))
        ]
        reached = unit * lanes[operand] * warps[operand]
        registers = _doubled(1, unit) + _doubled(reached, max(1, size // reached))
        spread = []
        for here, others in zip(placed, (lanes, warps), strict=True):
            # Where there are more threads than numbers, several have the same ones.
            bits, rest = [at if at < size else 0 for at in here], [0] * _log2(others[1 - operand])
            spread.append(bits + rest if order[0] == operand else rest + bits)
        return registers, spread[0], spread[1]

    @property
    def at_once(self) -> int:
        """How many contracted positions' numbers a thread reads together."""
        return 2 if any(self.in_runs(operand, 0) for operand in (LEFT, RIGHT)) else 1

    def reading_layout(self, operand: int, part: int, positions: int) -> Any:
        """Of the numbers of one position, or of two, both of which a thread has."""
        registers, lanes, warps = ([[at, 0] for at in bits] for bits in self._spread(operand, part))
        both = [[0, 1]] if positions == 2 else []
        return gl.DistributedLinearLayout(both + registers, lanes, warps, [], [self.block_of(operand, part), positions])

    def in_runs(self, operand: int, part: int) -> bool:
        """Whether contracted positions are next to each other in shared memory.

        They are where an operand is contiguous along contracted axes, unless it's turned on the way.
        """
        return operand not in self.one_by_one and self._bits(operand, part)[0][0] == 1

    def loading_layout(self, operand: int, part: int) -> Any:
        """Of a part of an operand's tile when it is copied: rows, or columns, × contracted."""
        shape = [self.block_of(operand, part), self.contracted.block]
        return self._loading(operand, part, shape, 1 if operand in self.one_by_one else _RUN)

    def shared_layout(self, operand: int, part: int) -> Any:
        """Of a part of an operand's tile in shared memory, so that lanes read from all banks at once."""
        depth = self.contracted.block
        if operand in self.one_by_one:
            return _turned(self.block_of(operand, part), depth)
        if not self.in_runs(operand, part):
            return gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
        phase = max(1, _BANKS // depth, self._unit(operand, part))
        return gl.SwizzledSharedLayout(_RUN, phase, min(8, depth // _RUN), [1, 0])

    def out_layout(self, row_part: int, column_part: int) -> Any:
        """Of a part of the result's tile when it is stored."""
        if not self.regrouped:
            return self.product_layout(row_part, column_part)
        shape = [self.block_of(LEFT, row_part), self.block_of(RIGHT, column_part)]
        return self._loading(OUT, (row_part, column_part), shape)

    @property
    def regrouped(self) -> bool:
        """Whether neighbours in the result's memory aren't neighbours in a tile."""
        return [value for _, value in self._bits(OUT)[:2]] != [1, 2]

    def _bits(self, array: int, part: int | tuple[int, int] = 0) -> list[tuple[int, int]]:
        """The bits of a position in an array's tile, as dimension and value, those of neighbours in memory first."""
        if array == OUT:
            row_part, column_part = part if isinstance(part, tuple) else (part, part)
            dims = self.parts_of(LEFT)[row_part], self.parts_of(RIGHT)[column_part]
        else:
            assert isinstance(part, int)
            dims = self.parts_of(array)[part], self.contracted
        found: list[tuple[int, int, int]] = []
        for dim, role in enumerate(dims):
            slow, fast = role.groups
            for group, unit in ((fast, 1), (slow, fast.block)):
                found += [(_stride(group, array), dim, unit << at) for at in range(_log2(group.block))]
        return [(dim, value) for _, dim, value in sorted(found, key=lambda bit: bit[0])]

    def _loading(self, array: int, part: int | tuple[int, int], shape: list[int], neighbours: int = _RUN) -> Any:
        """Which thread has what of a tile: some neighbours each, then neighbouring threads neighbouring elements."""
        bits = [[value if at == dim else 0 for at in range(2)] for dim, value in self._bits(array, part)]
        run = _log2(neighbours)
        lanes = run + _log2(LANES)
        warps = lanes + _log2(self.warps)

        def some(first: int, last: int) -> list[list[int]]:
            # Where there are fewer elements than threads, several have the same ones.
            return bits[first:last] + [[0, 0]] * (last - max(first, min(last, len(bits))))

        return gl.DistributedLinearLayout(bits[:run] + bits[warps:], some(run, lanes), some(lanes, warps), [], shape)


def _turned(rows: int, depth: int) -> Any:
    """Of a tile in shared memory: four rows, then eight positions, in an order that depends on the rows.

    Lanes that write have neighbouring positions, and lanes that read have neighbouring rows; both have all banks.
    """
    down, along = _doubled(1, rows), _doubled(1, depth)
    some, eight = _log2(_RUN), _log2(_BANKS // _RUN)
    mixed = [[row, at] for row, at in zip(down[some:], along[:eight], strict=False)]
    first = [[row, 0] for row in down[:some]] + [[0, at] for at in along[:eight]]
    return gl.SharedLinearLayout(
        first + mixed + [[row, 0] for row in down[some + len(mixed) :]] + [[0, at] for at in along[eight:]]
    )


def _stride(group: Group, array: int) -> int:
    """From one position of a group to the next; where an array has none of its axes, more than any."""
    stride = abs(group.axes[-1].strides[array]) if group.axes else 0
    return stride or 1 << 62


def _log2(count: int) -> int:
    return count.bit_length() - 1


def _doubled(first: int, count: int) -> list[int]:
    """What the bits of a number below ``count`` stand for, in steps of ``first``."""
    return [first << at for at in range(_log2(count))]
