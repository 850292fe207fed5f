"""Who does what when few queries see many keys: blocks of all keys, dealt out in equal shares.

What queries of a tile see of their keys is cut into blocks, and the blocks of all tiles, one tile's after the
other's, are dealt out to the programs: each has one run of them, and no two runs differ by more than a block. A run
may begin and end within a tile, whose result then has to be put together from those of several programs.

After Stream-K (Osama et al., 2023, https://arxiv.org/abs/2301.03598).
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from einops_fast.backends.triton.attention.hopper.tiles import Places

_TOGETHER = gl.constexpr(128)
"""Sequences that are looked at at once."""


@dataclass(frozen=True)
class DecodeTiling:
    """What the kernel is specialised for."""

    block: int  # keys that are worked on at once, 64 or 128
    copied: int  # how many of them the hardware copies at once: all, or as many as lie in a page
    stages: int  # blocks that shared memory holds
    # rows of a tile, powers of two that hold all heads that share keys and all queries of each
    heads: int
    queries: int
    # features
    head_dim: int
    v_head_dim: int
    # the same, rounded up to powers of two; of the values, 64 at least
    head: int
    v_head: int
    axes: int  # batch axes, of three at most; the first of them counts sequences where these have lengths or pages
    shared: bool  # whether the last of them is one that k and v lack
    has: tuple[tuple[bool, ...], tuple[bool, ...]]  # which of the three batch axes k and v have
    # whether keys far before or after the facing one are hidden
    left: bool = False
    right: bool = False
    bottom_right: bool = False  # the last query faces the last key
    softcap: bool = False  # whether scores are capped
    sinks: bool = False  # whether there are any
    cached: bool = False  # whether sequences have lengths
    page_size: int = 0  # keys of a page; 0 without pages

    bias = None
    """There is none."""

    @property
    def rows(self) -> int:
        """Of a tile."""
        return self.heads * self.queries

    registers = 168
    """That a thread has before the warps share them out anew."""


class DecodeNumbers(NamedTuple):
    """What the kernel takes that nothing is compiled anew for."""

    tiles: Any  # batch elements that have keys of their own
    sequences: Any  # of them; 1 where they have no lengths
    each: Any  # tiles of a sequence
    share: Any  # batch elements that share keys: the size of the last axis, if k and v lack it, else 1
    # queries and keys, or places for these
    q_len: Any
    kv_len: Any
    # how many keys are seen before and after the facing one
    left: Any
    right: Any
    # sizes of these batch axes
    second: Any
    third: Any
    # of scores, both times `log2(e)`
    scale: Any
    cap: Any
    # where these are
    out: Places
    lse: Places
    sinks: Places
    # strides of the block table
    rows: Any
    columns: Any


class Arrays(NamedTuple):
    """Addresses, ``None`` for what there isn't."""

    out: Any
    lse: Any
    sinks: Any
    cached: Any
    table: Any
    parts: Any
    logs: Any
    arrived: Any


class Shared(NamedTuple):
    """What is in shared memory; ``weights`` of one block."""

    q: Any
    k: Any
    v: Any
    weights: Any


class Run(NamedTuple):
    """The blocks of a program."""

    # of them, counted through all tiles
    first: Any
    end: Any
    tile: Any  # that the first one is of
    base: Any  # the first block of that tile
    total: Any  # blocks of all tiles


@gluon.jit
def outer_of(tile, numbers, tiling: gl.constexpr):
    """Where a tile is along the three batch axes; 0 along one that its rows count."""
    c = tile * 0
    if not tiling.shared:
        c = tile % numbers.third
        tile = tile // numbers.third
    return tile // numbers.second, tile % numbers.second, c


@gluon.jit
def _blocks(kv_len, numbers, tiling: gl.constexpr):
    """The first block of keys that a tile sees, and how many; one at least, so that every tile is somebody's."""
    shift = kv_len * 0
    if tiling.bottom_right:
        shift = kv_len - numbers.q_len
    end = kv_len
    first = kv_len * 0
    if tiling.right:
        end = gl.minimum(end, numbers.q_len + shift + numbers.right)
    if tiling.left:
        first = gl.maximum(shift - numbers.left, 0) // tiling.block
    return shift, first, gl.maximum((end + tiling.block - 1) // tiling.block - first, 1)


@gluon.jit
def keys_seen(tile, cached, numbers, tiling: gl.constexpr):
    """How many keys a tile has, which of them its first query faces, its first block of them and how many it sees."""
    kv_len = numbers.kv_len
    if tiling.cached:
        kv_len = gl.minimum(gl.load(cached + tile // numbers.each).to(gl.int32), kv_len)
    shift, first, blocks = _blocks(kv_len, numbers, tiling)
    return kv_len, shift, first, blocks


@gluon.jit
def _counts(at, cached, numbers, tiling: gl.constexpr):
    """Blocks that each tile of some sequences sees; 0 beyond the last one."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    sequence = at + gl.arange(0, _TOGETHER, layout=layout)
    exists = sequence < numbers.sequences
    kv_len = gl.minimum(gl.load(cached + sequence, mask=exists, other=0).to(gl.int32), numbers.kv_len)
    _, _, blocks = _blocks(kv_len, numbers, tiling)
    return gl.where(exists, blocks, 0)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _start(program, programs, total):
    """Where the run of a program begins."""
    return program * (total // programs) + gl.minimum(program, total % programs)


@gluon.jit
def _owner(block, programs, total):
    """The program in whose run a block is."""
    size = total // programs
    longer = total % programs
    border = longer * (size + 1)
    after = longer + (block - border) // gl.maximum(size, 1)
    return after if block >= border else block // (size + 1)


@gluon.jit
def run_of(program, programs, cached, numbers, tiling: gl.constexpr):
    """What a program has to do. All four warps have to ask."""
    if tiling.cached:
        total = numbers.sequences * 0
        for at in range(0, numbers.sequences, _TOGETHER):
            total += gl.sum(_counts(at, cached, numbers, tiling), 0)
        total = total * numbers.each
        first = _start(program, programs, total)
        # The sequences that end before it, and the blocks of these.
        sequence = numbers.sequences * 0
        base = sequence
        before = sequence
        for at in range(0, numbers.sequences, _TOGETHER):
            counts = _counts(at, cached, numbers, tiling)
            ends = (before + gl.associative_scan(counts, 0, _add)) * numbers.each
            past = (ends <= first) & (counts > 0)
            sequence += gl.sum(past.to(gl.int32), 0)
            base = gl.maximum(base, gl.max(gl.where(past, ends, 0), 0))
            before += gl.sum(counts, 0)
        tile = gl.minimum(sequence, numbers.sequences - 1) * numbers.each
        _, _, _, blocks = keys_seen(tile, cached, numbers, tiling)
    else:
        _, _, _, blocks = keys_seen(program * 0, cached, numbers, tiling)
        total = blocks * numbers.tiles
        first = _start(program, programs, total)
        tile = program * 0
        base = program * 0
    within = (first - base) // blocks
    return Run(first, _start(program + 1, programs, total), tile + within, base + within * blocks, total)


@gluon.jit
def parts_of(base, blocks, programs, total):
    """The first program that works on a tile, and how many do."""
    first = _owner(base, programs, total)
    return first, _owner(base + blocks - 1, programs, total) - first + 1


@gluon.jit
def slot_of(program, begins):
    """Where a program leaves what others need: there is a place for a tile that it begins, and one for one that
    others began."""
    return 2 * program + begins
