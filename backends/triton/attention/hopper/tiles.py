"""What Hopper's kernels of attention are specialised for, and what they take that nothing is compiled anew for."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUP_ROWS = 64
"""Rows of a tile that a warp group has."""

_GROUP_THREADS = 128

_MULTIPROCESSOR_REGISTERS = 1 << 16

COPYING = gl.constexpr(24)
"""Registers of a thread of the warp that copies, which has as many others beside it as make a warp group."""

PADDED = 128
"""Queries are padded to a multiple of these in the array of rows' numbers."""

ITEM = 2
"""Bytes of an element of what has features."""

OPERANDS = ("q", "k", "v", "out", "bias", "mask", "d_bias", "dk", "dv")
"""What has tiles; other gradients have those of their operands. Those of k and v may have more axes than they have."""

Q, K, V, OUT, BIAS, MASK, D_BIAS, DK, DV = (gl.constexpr(at) for at in range(len(OPERANDS)))


@dataclass(frozen=True)
class HopperTiling:
    """What a kernel is specialised for."""

    groups: int  # warp groups, each with 64 rows of a tile
    block: int  # keys (or, where a tile has keys, queries) that are worked on at once
    stages: int  # blocks that shared memory holds
    # features, each a power of two
    head: int
    v_head: int
    has: tuple[tuple[bool, ...], ...]  # for each of `OPERANDS`, which of the three batch axes it has
    # whether keys far before or after the facing one are hidden
    left: bool = False
    right: bool = False
    softcap: bool = False  # whether scores are capped
    grouped: bool = False  # whether several elements of the batch share keys
    turned: bool = False  # a tile has keys, and a block queries
    # whether there is one, and whether it varies along queries and along keys
    bias: tuple[bool, bool] | None = None
    mask: tuple[bool, bool] | None = None
    bounded: bool = False  # what the mask hides at both ends of a tile is left out
    bias_item: int = 2  # bytes of an element of the bias
    d_bias: bool = False  # whether the gradient of the bias is written
    in_parts: bool = False  # it is a sum whose parts are written, each by programs of their own
    own: int = 1  # tiles that shared memory holds; with two, the next one comes early
    second: int = 0  # stages of the second of a block's two arrays, where it has fewer; else 0
    # whether of `head` and of `v_head` only so many features are there; see `boxes`
    three_quarters: tuple[bool, bool] = (False, False)
    turns: bool = False  # warp groups take turns at beginning products
    dv: bool = True  # whether the kernel that owns keys writes the gradient of v, too
    programs: int = 1  # that share a multiprocessor: one works while another begins or ends a tile

    @property
    def rows(self) -> int:
        """Of a tile."""
        return GROUP_ROWS * self.groups

    @property
    def registers(self) -> int:
        """That a thread has before the warp groups share them out anew: a multiple of 8."""
        threads = self.programs * (self.groups + 1) * _GROUP_THREADS
        return _MULTIPROCESSOR_REGISTERS // threads // 8 * 8

    @property
    def group_registers(self) -> int:
        """The same afterwards, of a warp group that works; the first one has what the others leave."""
        return (self.registers * (self.groups + 1) - int(COPYING.value)) // self.groups // 8 * 8

    @property
    def patchy(self) -> bool:
        """Whether a query may see no key of a block that positions let it see."""
        return self.bias is not None or self.mask is not None

    @property
    def wide(self) -> bool:
        """Whether there are so many features that a program has memory and registers for one sum of them only."""
        return max(self.head, self.v_head) > 128

    def boxes(self, which: int) -> int:
        """In how many parts a tile of ``head`` or, for 1, of ``v_head`` is copied, each of a quarter of the features.

        Three where three quarters of a wide head are there: the fourth takes no memory. Else the tile is one part.
        """
        return 3 if self.three_quarters[which] and (self.head, self.v_head)[which] > 128 else 1

    def box(self, which: int) -> int:
        """Features of such a part."""
        width = (self.head, self.v_head)[which]
        return width // 4 if self.boxes(which) > 1 else width

    def kept(self, which: int) -> int:
        """Features that shared memory has room for."""
        return self.boxes(which) * self.box(which)

    @property
    def apart(self) -> bool:
        """Whether a warp group leaves out the tile's blocks of which its own rows see nothing.

        They are at the ends of tiles that are longer than a block. Where several elements of the batch share keys, the
        blocks of all of them make up one row, and all that a tile sees of a bias has to have a gradient. The gradients
        of up to 64 features take as long or longer with it.
        """
        some = (self.left or self.right) and self.rows > self.block
        whole = (self.turned and self.grouped) or self.d_bias
        return some and not whole and (self.groups > 2 or max(self.head, self.v_head) > 64)

    @property
    def alike(self) -> bool:
        """Whether tiles of ``head`` and of ``v_head`` fit into each other's memory."""
        return (self.head, self.boxes(0)) == (self.v_head, self.boxes(1))

    @property
    def bias_tiles(self) -> bool:
        """Whether tiles of the bias are copied."""
        return self.bias == (True, True)

    @property
    def mask_tiles(self) -> bool:
        """Whether tiles of the mask are copied."""
        return self.mask == (True, True)

    @property
    def second_stages(self) -> int:
        """Stages of the second of a block's two arrays."""
        return self.second or self.stages

    @property
    def reused(self) -> bool:
        """Whether the result leaves from where the queries were: there is no memory for both."""
        return self.wide and self.alike

    @property
    def own_bytes(self) -> int:
        """Bytes of a tile of two arrays with features."""
        return self.rows * (self.kept(0) + self.kept(1)) * ITEM * self.own

    @property
    def added_bytes(self) -> int:
        """Bytes of the bias and the mask of a block."""
        return self.rows * self.block * (self.bias_item * self.bias_tiles + self.mask_tiles)

    @property
    def stage_bytes(self) -> int:
        """Bytes of a block of two arrays with features, of the bias and the mask."""
        return self.block * (self.kept(0) + self.kept(1)) * ITEM + self.added_bytes

    @property
    def pair_bytes(self) -> int:
        """Bytes of a tile and a block of two arrays with features each, and of the mask."""
        both = (self.rows + self.block) * (self.kept(0) + self.kept(1)) * ITEM
        return both + self.rows * self.block * self.mask_tiles


class Places(NamedTuple):
    """Strides of a bias or mask that doesn't vary along both positions: of the batch axes and of the other position.

    Or of a mask's bounds: there, of 64 positions.
    """

    first: Any
    second: Any
    third: Any
    position: Any


class Numbers(NamedTuple):
    """What the kernels take that nothing is compiled anew for."""

    elements: Any  # of the batch; where tiles are of keys, those that have keys of their own
    tiles: Any  # of each element
    turns: Any  # of all programs
    # elements, and every program's turns, of a section of tiles that differ in what there is to do
    together: Any
    rounds: Any
    share: Any  # elements that share keys
    # queries and keys
    q_len: Any
    kv_len: Any
    padded: Any  # queries in the array of rows' numbers
    # what to add to a query's position to get the first and the last key that it sees
    left: Any
    right: Any
    # sizes of these batch axes
    second: Any
    third: Any
    # of scores, both times `log2(e)`
    scale: Any
    cap: Any
    # where these are
    bias: Places
    mask: Places
    bounds: Places


@gluon.constexpr_function
def along(operand):
    """0 for one of :data:`OPERANDS` with the features of scores, 1 with those of values; else -1."""
    return {"q": 0, "k": 0, "dk": 0, "v": 1, "out": 1, "dv": 1}.get(OPERANDS[operand], -1)


@gluon.constexpr_function
def boxes(tiling, operand):
    """In how many parts a tile of one of :data:`OPERANDS` is copied."""
    return tiling.boxes(along(operand)) if along(operand) >= 0 else 1


@gluon.constexpr_function
def box(tiling, operand):
    """Features of such a part."""
    return tiling.box(along(operand)) if along(operand) >= 0 else 0
