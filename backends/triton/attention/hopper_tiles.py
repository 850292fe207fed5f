"""What Hopper's kernels of attention share: their tiles, and where these lie."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from einops_fast.backends.triton.indexing import field

__all__ = [
    "BIAS",
    "D_BIAS",
    "GROUP_ROWS",
    "ITEM",
    "MASK",
    "OPERANDS",
    "OUT",
    "PADDED",
    "HopperTiling",
    "K",
    "Numbers",
    "Pipe",
    "Places",
    "Q",
    "V",
    "added_bytes",
    "beside",
    "blocks_seen",
    "coordinates",
    "fetch",
    "flat",
    "has",
    "keys_of",
    "own_bytes",
    "pair_bytes",
    "pipe",
    "pipe_of",
    "queries_of",
    "released",
    "room",
    "second_pipe",
    "second_stages",
    "sides",
    "stage_bytes",
    "there",
    "without",
]

GROUP_ROWS = 64
"""Rows of a tile that a warp group has."""

PADDED = 128
"""Queries are padded to a multiple of these in the array of rows' numbers."""

ITEM = 2
"""Bytes of an element of what has features."""

OPERANDS = ("q", "k", "v", "out", "bias", "mask", "d_bias")
"""What has tiles; gradients have those of their operands."""

Q, K, V, OUT, BIAS, MASK, D_BIAS = (gl.constexpr(at) for at in range(len(OPERANDS)))


@dataclass(frozen=True)
class HopperTiling:
    """What a kernel is specialised for.

    Attributes:
        groups: warp groups, each with 64 rows of a tile.
        block: keys (or, where a tile has keys, queries) that are worked on at once.
        stages: blocks that shared memory holds.
        head, v_head: features, each a power of two.
        has: for each of :data:`OPERANDS`, which of the three batch axes it has.
        left, right: whether keys far before or after the facing one are hidden.
        softcap: whether scores are capped.
        grouped: whether several elements of the batch share keys.
        turned: a tile has keys, and a block queries.
        bias, mask: whether there is one, and whether it varies along queries and along keys.
        bias_item: bytes of an element of the bias.
        d_bias: whether the gradient of the bias is written.
        own: tiles that shared memory holds; with two, the next one comes early.
        second: stages of the second of a block's two arrays, where it has fewer; else 0.
        three_quarters: whether of ``head`` and of ``v_head`` only so many features are there.
        turns: warp groups take turns at beginning products.
        dv: whether the kernel that owns keys writes the gradient of v, too.
    """

    groups: int
    block: int
    stages: int
    head: int
    v_head: int
    has: tuple[tuple[bool, ...], ...]
    left: bool = False
    right: bool = False
    softcap: bool = False
    grouped: bool = False
    turned: bool = False
    bias: tuple[bool, bool] | None = None
    mask: tuple[bool, bool] | None = None
    bias_item: int = 2
    d_bias: bool = False
    own: int = 1
    second: int = 0
    three_quarters: tuple[bool, bool] = (False, False)
    turns: bool = False
    dv: bool = True

    @property
    def rows(self) -> int:
        """Of a tile."""
        return GROUP_ROWS * self.groups

    @property
    def registers(self) -> int:
        """That a thread has before the warp groups share them out anew."""
        return 128 if self.groups == 3 else 168

    @property
    def patchy(self) -> bool:
        """Whether a query may see no key of a block that positions let it see."""
        return self.bias is not None or self.mask is not None

    @property
    def wide(self) -> bool:
        """Whether there are so many features that a program has memory and registers for one sum of them only."""
        return max(self.head, self.v_head) > 128

    @property
    def bias_tiles(self) -> bool:
        """Whether tiles of the bias are copied."""
        return self.bias == (True, True)

    @property
    def mask_tiles(self) -> bool:
        """Whether tiles of the mask are copied."""
        return self.mask == (True, True)

    @property
    def name(self) -> str:
        """The tiles in short, unique among those of one problem."""
        return f"{self.rows}×{self.block}, {self.stages} stages, copied by hardware"


@gluon.constexpr_function
def own_bytes(tiling):
    """Bytes of a tile of two arrays with features."""
    return tiling.rows * (tiling.head + tiling.v_head) * ITEM * tiling.own


@gluon.constexpr_function
def added_bytes(tiling):
    """Bytes of the bias and the mask of a block."""
    return tiling.rows * tiling.block * (tiling.bias_item * tiling.bias_tiles + tiling.mask_tiles)


@gluon.constexpr_function
def stage_bytes(tiling):
    """Bytes of a block of two arrays with features, of the bias and the mask."""
    return tiling.block * (tiling.head + tiling.v_head) * ITEM + added_bytes(tiling)


@gluon.constexpr_function
def pair_bytes(tiling):
    """Bytes of a tile and a block of two arrays with features each, and of the mask."""
    both = (tiling.rows + tiling.block) * (tiling.head + tiling.v_head) * ITEM
    return both + tiling.rows * tiling.block * tiling.mask_tiles


class Places(NamedTuple):
    """Strides of a bias or mask that doesn't vary along both positions: of the batch axes and of the other position."""

    first: Any
    second: Any
    third: Any
    position: Any


class Numbers(NamedTuple):
    """What the kernels take that nothing is compiled anew for.

    Attributes:
        elements: of the batch; where tiles are of keys, those that have keys of their own.
        tiles: of each element.
        turns: of all programs.
        together, rounds: elements, and every program's turns, of a section of tiles that differ in what there is to do.
        share: elements that share keys.
        q_len, kv_len: queries and keys.
        padded: queries in the array of rows' numbers.
        left, right: what to add to a query's position to get the first and the last key that it sees.
        second, third: sizes of these batch axes.
        scale, cap: of scores, both times ``log2(e)``.
        bias, mask: where these are.
    """

    elements: Any
    tiles: Any
    turns: Any
    together: Any
    rounds: Any
    share: Any
    q_len: Any
    kv_len: Any
    padded: Any
    left: Any
    right: Any
    second: Any
    third: Any
    scale: Any
    cap: Any
    bias: Places
    mask: Places


class Pipe(NamedTuple):
    """Tiles in shared memory, and barriers that say when each of them is full and when it's empty again."""

    buffers: Any
    full: Any
    empty: Any


@gluon.constexpr_function
def has(tiling, operand, axis):
    """Whether one of :data:`OPERANDS` has a batch axis."""
    return tiling.has[operand][axis]


@gluon.jit
def _position(turn, numbers, most_last: gl.constexpr, tiling: gl.constexpr):
    """Batch element of the tile that a program has at a turn, and which of its tiles it is; beyond the last if none.

    Where tiles differ in what there is to do, those of ``together`` elements make up a section, and are dealt out in
    rounds: those with most to do first, and to the programs there and back. So all programs have as much to do.
    """
    tiles = numbers.tiles
    element = turn // tiles
    at = turn % tiles
    if field(tiling, "right"):
        programs = gl.num_programs(0)
        section = turn // programs // numbers.rounds
        lap = turn // programs % numbers.rounds
        program = turn % programs
        program = program if (lap + section) % 2 == 0 else programs - 1 - program
        width = gl.minimum(numbers.elements - section * numbers.together, numbers.together)
        card = lap * programs + program
        element = section * numbers.together + card % width
        at = card // width
        if most_last:
            at = at if at >= tiles else tiles - 1 - at
    elif most_last:
        at = tiles - 1 - at
    return element, at


@gluon.jit
def keys_of(turn, numbers, tiling: gl.constexpr):
    """Of the tile of queries at a turn: its batch element, its first query, and the blocks of keys that it sees.

    Blocks from ``first`` to ``end`` are seen, those from ``full`` to ``full_end`` by all queries of the tile in whole.
    """
    element, at = _position(turn, numbers, field(tiling, "right"), tiling)
    start = at * field(tiling, "rows")
    first, full, full_end, end = blocks_seen(start, numbers, tiling)
    return element, start, first, full, full_end, end if at < numbers.tiles else first


@gluon.jit
def blocks_seen(start, numbers, tiling: gl.constexpr):
    """The blocks of keys that the tile of queries from ``start`` on sees; see :func:`keys_of`."""
    rows: gl.constexpr = field(tiling, "rows")
    block: gl.constexpr = field(tiling, "block")
    end = numbers.kv_len
    full_end = numbers.kv_len // block
    first = 0
    full = 0
    if field(tiling, "right"):
        end = gl.minimum(end, gl.maximum(start + rows + numbers.right, 0))
        full_end = gl.minimum(full_end, gl.maximum(start + numbers.right + 1, 0) // block)
    if field(tiling, "left"):
        first = gl.maximum(start + numbers.left, 0) // block
        full = (gl.maximum(start + rows - 1 + numbers.left, 0) + block - 1) // block
    end = (end + block - 1) // block
    return gl.minimum(first, end), full, full_end, end


@gluon.jit
def queries_of(turn, numbers, tiling: gl.constexpr):
    """Of the tile of keys at a turn: its batch element, its first key, and the blocks of queries that see it.

    See :func:`keys_of`; ``element`` counts what has keys of its own.
    """
    rows: gl.constexpr = field(tiling, "rows")
    block: gl.constexpr = field(tiling, "block")
    element, at = _position(turn, numbers, False, tiling)
    start = at * rows
    # Beyond the last query, and after the last key, weights are zero or go nowhere.
    end = numbers.q_len
    full_end = (numbers.q_len + block - 1) // block
    first = 0
    full = 0
    if field(tiling, "right"):
        first = gl.maximum(start - numbers.right, 0) // block
        full = (gl.maximum(start + rows - 1 - numbers.right, 0) + block - 1) // block
    if field(tiling, "left"):
        end = gl.minimum(end, gl.maximum(start + rows - numbers.left, 0))
        full_end = gl.minimum(full_end, gl.maximum(start - numbers.left + 1, 0) // block)
    end = (end + block - 1) // block if at < numbers.tiles else 0
    return element, start, gl.minimum(first, end), full, full_end, end


@gluon.jit
def sides(at, full, full_end):
    """0 for a block that is seen in whole; 1 for one before ``full``, 2 for one from ``full_end`` on, 3 for both."""
    return (at < full).to(gl.int32) + 2 * (at >= full_end).to(gl.int32)


@gluon.jit
def without(values, i, j, value: gl.constexpr, partly, numbers, tiling: gl.constexpr):
    """``values``, but ``value`` where key ``j`` isn't seen by query ``i``; the tile's positions make up a column.

    In a tile of queries also where there is no key. ``partly`` is what :func:`sides` says of the block.
    """
    # Bounds are worked out for the column, of which a thread has two numbers.
    left: gl.constexpr = field(tiling, "left")
    right: gl.constexpr = field(tiling, "right")
    if field(tiling, "turned"):
        if _hides(partly, 1, right, tiling):
            values = gl.where(i < j - numbers.right, value, values)
        if _hides(partly, 2, left, tiling):
            values = gl.where(i > j - numbers.left, value, values)
    else:
        if _hides(partly, 2, True, tiling):
            last = numbers.kv_len - 1
            if right:
                last = gl.minimum(i + numbers.right, last)
            values = gl.where(j > last, value, values)
        if _hides(partly, 1, left, tiling):
            values = gl.where(j < i + numbers.left, value, values)
    return values


@gluon.jit
def _hides(partly, side: gl.constexpr, ever: gl.constexpr, tiling: gl.constexpr):
    """Whether keys may be hidden at a side, if they ever are; without keys hidden at the left there is but one side."""
    found = ever
    if ever and field(tiling, "left"):
        found = (partly & side) > 0
    return found


@gluon.jit
def coordinates(element, row, column, operand: gl.constexpr, numbers, tiling: gl.constexpr):
    """Where a tile of an operand begins."""
    a = 0
    b = 0
    c = 0
    if has(tiling, OUT, 0) or has(tiling, OUT, 1):
        a = element // numbers.third // numbers.second if has(tiling, operand, 0) else 0
        b = element // numbers.third % numbers.second if has(tiling, operand, 1) else 0
        c = element % numbers.third if has(tiling, operand, 2) else 0
    elif has(tiling, operand, 2):
        # There is no other axis; divisions take long.
        c = element
    return a, b, c, row, column


@gluon.jit
def fetch(array, buffers, at, full, element, row, operand: gl.constexpr, numbers, tiling: gl.constexpr, column=0):
    """Have a tile of an operand copied to buffer number ``at``; the barrier ``full`` is told when it's there."""
    place = coordinates(element, row, column, operand, numbers, tiling)
    tma.async_copy_global_to_shared(array, place, full, buffers.index(at))


@gluon.jit
def flat(buffers, at):
    """Tile ``at`` of some as a matrix."""
    shape: gl.constexpr = buffers.type.shape
    return buffers.index(at).reshape([shape[4], shape[5]])


@gluon.jit
def pipe(descriptor, count: gl.constexpr, stages: gl.constexpr, readers: gl.constexpr):
    """Memory for so many tiles of an array, which come at once, or in so many stages one by one."""
    return pipe_of(_tiles(descriptor, count), stages, readers)


@gluon.jit
def pipe_of(buffers, stages: gl.constexpr, readers: gl.constexpr):
    """The same with memory that there is."""
    full = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(stages):
        mbarrier.init(full.index(at), count=1)
        mbarrier.init(empty.index(at), count=readers)
    return Pipe(buffers, full, empty)


@gluon.jit
def beside(other, descriptor, count: gl.constexpr):
    """The same for an array whose tiles come together with those of another one."""
    return Pipe(_tiles(descriptor, count), other.full, other.empty)


@gluon.constexpr_function
def second_stages(tiling):
    """Stages of the second of a block's two arrays."""
    return tiling.second or tiling.stages


@gluon.jit
def second_pipe(first, descriptor, tiling: gl.constexpr):
    """Memory for the second of a block's two arrays; see :func:`pipe`.

    Its tiles come with those of the first one, unless it has fewer stages.
    """
    stages: gl.constexpr = second_stages(tiling)
    if field(tiling, "second"):
        return pipe(descriptor, stages, stages, field(tiling, "groups"))
    else:
        return beside(first, descriptor, stages)


@gluon.jit
def _tiles(descriptor, count: gl.constexpr):
    return gl.allocate_shared_memory(descriptor.dtype, [count] + descriptor.block_type.shape, descriptor.layout)


@gluon.jit
def room(tiles, count, stages: gl.constexpr, size: gl.constexpr):
    """Wait until stage number ``count`` is empty, announce so many bytes for it, and return its barrier."""
    mbarrier.wait(tiles.empty.index(count % stages), count // stages & 1 ^ 1)
    full = tiles.full.index(count % stages)
    mbarrier.expect(full, size)
    return full


@gluon.jit
def there(tiles, count, stages: gl.constexpr):
    """Wait until stage number ``count`` is full."""
    mbarrier.wait(tiles.full.index(count % stages), count // stages & 1)


@gluon.jit
def released(tiles, count, stages: gl.constexpr):
    """Say that a warp group doesn't need stage number ``count`` any more."""
    mbarrier.arrive(tiles.empty.index(count % stages))
