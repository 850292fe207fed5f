"""Where Hopper's kernel for few queries can be used, with what tiles, and its launch."""

from __future__ import annotations

from einops_fast.backends.triton.attention.around.copyable import addressable, copyable
from einops_fast.backends.triton.attention.decode.kernel import hopper_decode_kernel
from einops_fast.backends.triton.attention.decode.work import DecodeNumbers, DecodeTiling
from einops_fast.backends.triton.attention.general.tilings import FEW_QUERIES, power
from einops_fast.backends.triton.attention.hopper.call import (
    BATCH_AXES,
    LOG2E,
    NOWHERE,
    copied,
    is_for_hopper,
    launch,
    of_batch,
    places_of,
)
from einops_fast.backends.triton.attention.hopper.tiles import ITEM
from einops_fast.backends.triton.attention.hopper.tilings import has_added
from einops_fast.backends.triton.attention.launches import Launch, Room
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.launching.arrays import Array
from einops_fast.backends.triton.launching.launch import ALIGNMENT

_MOST_FEATURES = 256

_MOST_ROWS = 32
"""Of a tile; with more, multiplying the other way round takes longer than the general kernels do."""

_ANY = ALIGNMENT // ITEM
"""A stride that the hardware takes, for an axis of size 1."""

_BLOCKS = (256, 128, 64)
"""Keys that are worked on at once."""

_BLOCK_BYTES = 64 << 10
"""Of keys and values that are worked on at once, at most."""

_MOST_SCORES = 128 * 16
"""That are worked on at once: more take more registers than there are."""

_AHEAD = 128 << 10
"""Bytes of keys and values that are on their way to a multiprocessor. With more of them memory isn't faster, and some
multiprocessors get theirs well before others."""

_WHOLE = 0.95
"""Share of the multiprocessors that is enough, if then no tile has to be put together."""


def suits_decode(problem: Problem) -> bool:
    """Return whether the kernel can be used."""
    spec, features, strides = problem.spec, problem.features, problem.strides
    if not is_for_hopper(problem) or has_added(problem) or features.shared > 1:
        return False
    if not (0 < spec.q_len <= FEW_QUERIES and spec.kv_len and problem.elements):
        return False
    heads, queries = _rows(problem)
    if heads * queries > _MOST_ROWS or problem.width > _MOST_FEATURES:
        return False
    if spec.page_size and (spec.page_size % 16 or any(page * ITEM % ALIGNMENT for page in strides.pages[:2])):
        return False
    if not all(copyable(own, ITEM) for own in (strides.k, strides.v, _of_queries(problem))):
        return False
    if strides.out[-1] != 1 or any(size > 1 and not own for size, own in zip(problem.sizes, strides.q, strict=False)):
        return False
    return addressable([*strides.out, *strides.lse, *(strides.sinks or ()), *strides.pages[2:]])


def _rows(problem: Problem) -> tuple[int, int]:
    """Return heads and queries of a tile, powers of two; the hardware multiplies and copies 8 rows at least."""
    heads, queries = (1 << (size - 1).bit_length() for size in (problem.share, problem.spec.q_len))
    return heads, max(queries, 8 // heads)


def _of_queries(problem: Problem) -> tuple[int, ...]:
    """Return the strides of q, with any one for a single query and for axes of size 1."""
    *batch, position, feature = problem.strides.q
    return (*batch, position if problem.spec.q_len > 1 else _ANY, feature)


def decode_tiling(problem: Problem) -> DecodeTiling:
    """Return the tiling of the kernel."""
    spec, features, strides = problem.spec, problem.features, problem.strides
    head, v_head = power(spec.head_dim), max(64, power(spec.v_head_dim))
    heads, queries = _rows(problem)
    has = tuple(tuple(stride != 0 for stride in of_batch(own, False)) for own in (strides.k[:-2], strides.v[:-2]))
    bytes_of_key = (head + v_head) * ITEM
    block = next(
        block
        for block in _BLOCKS
        if block == _BLOCKS[-1] or (block * bytes_of_key <= _BLOCK_BYTES and block * heads * queries <= _MOST_SCORES)
    )
    stages = max(2, round(_AHEAD / (block * bytes_of_key)))
    copied = block
    while spec.page_size % copied:
        copied //= 2
    return DecodeTiling(
        block,
        copied,
        stages,
        heads,
        queries,
        spec.head_dim,
        spec.v_head_dim,
        head,
        v_head,
        features.axes,
        features.shared > 0,
        (has[0], has[1]),
        left=features.left,
        right=features.right,
        bottom_right=features.bottom_right,
        softcap=features.softcap,
        sinks=features.sinks,
        cached=spec.cache,
        page_size=spec.page_size,
    )


def programs_for(units: int, tiles: int, blocks: int) -> int:
    """Return how many programs to start on so many multiprocessors, a few fewer if each then has whole tiles only.

    Each tile has so many ``blocks`` of keys at most; all have as many if lengths of sequences don't differ.

    >>> programs_for(132, 512, 8), programs_for(132, 504, 8), programs_for(132, 510, 8), programs_for(132, 4, 8)
    (128, 126, 132, 32)
    """
    each = -(-tiles // units)
    if tiles % each == 0 and tiles // each >= _WHOLE * units:
        return tiles // each
    return min(units, tiles * blocks)


def forward(problem: Problem, otherwise: tuple[Launch, ...]) -> tuple[Launch, ...]:
    """Return the launch of a forward call, with those of other kernels for arrays at odd addresses."""
    spec, strides, tiling = problem.spec, problem.strides, decode_tiling(problem)
    tiles = problem.elements // problem.share
    sequences = problem.sizes[0] if spec.cache or spec.page_size else 1
    programs = programs_for(problem.units, tiles, -(-spec.kv_len // tiling.block))
    arrays = {
        "q_desc": _queries(problem, tiling),
        "k_desc": _keys(problem, tiling, "k"),
        "v_desc": _keys(problem, tiling, "v"),
        "out": Array(spec.dtype, aligned=False),
        "lse": Array("float32", aligned=False),
        "sinks": Array("float32", aligned=False) if spec.sinks else None,
        "cached": Array(problem.dtype("cached"), aligned=False) if spec.cache else None,
        "table": Array(problem.dtype("table"), aligned=False) if spec.page_size else None,
        "parts": Array("float32"),
        "arrived": Array("int32", aligned=False),
    }
    _, second, third = of_batch(problem.sizes, 1)
    numbers = DecodeNumbers(
        tiles=tiles,
        sequences=sequences,
        each=tiles // sequences,
        share=problem.share,
        q_len=spec.q_len,
        kv_len=spec.kv_len,
        left=int(problem.numbers.left),
        right=int(problem.numbers.right),
        second=second,
        third=third,
        scale=spec.scale * LOG2E,
        cap=spec.softcap * LOG2E,
        out=places_of(strides.out[:-2], strides.out[-2]),
        lse=places_of(strides.lse[:-1], strides.lse[-1]),
        sinks=places_of(strides.sinks, 0) if spec.sinks else NOWHERE,
        rows=strides.pages[2] if spec.page_size else ANY,
        columns=strides.pages[3] if spec.page_size else ANY,
    )
    rooms = (
        Room("parts", 2 * programs * tiling.rows * (spec.v_head_dim + 1)),
        Room("arrived", tiles, "int32", counters=True),
    )
    return (launch(hopper_decode_kernel, tiling, arrays, (numbers,), programs, (), rooms, otherwise),)


def _queries(problem: Problem, tiling: DecodeTiling) -> Array:
    """Return q as the hardware sees it: a tile is all that shares keys."""
    spec = problem.spec
    box = tiling.heads, tiling.queries, tiling.head
    found = copied(problem, "q", spec.dtype, (spec.q_len, spec.head_dim), box)
    return found._replace(strides=(*found.strides[:BATCH_AXES], *_of_queries(problem)[-2:]))


def _keys(problem: Problem, tiling: DecodeTiling, name: str) -> Array:
    """Return k or v as the hardware sees it."""
    spec, of_keys = problem.spec, name == "k"
    features, tile = (tiling.head_dim, tiling.head) if of_keys else (tiling.v_head_dim, tiling.v_head)
    found = copied(problem, name, spec.dtype, (spec.page_size or spec.kv_len, features), (tiling.copied, tile))
    if not spec.page_size:
        return found
    shape, strides, axis = [*found.shape], [*found.strides], BATCH_AXES - problem.features.axes
    shape[axis] = (spec.k_batch if of_keys else spec.v_batch)[0]
    strides[axis] = problem.strides.pages[0 if of_keys else 1]
    return found._replace(shape=tuple(shape), strides=tuple(strides))
