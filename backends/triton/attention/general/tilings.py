"""Tiles of the general kernels of attention: the best ones that shared memory has room for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from einops_fast.backends.capabilities import shared_memory
from einops_fast.backends.triton.attention.around.copyable import copyable
from einops_fast.backends.triton.attention.problem import Problem
from einops_fast.planning.cost import ITEM_SIZES

_MOST_PACKED = 64
"""Rows of all batch elements that share k and v, up to which one tile holds them all."""

FEW_QUERIES = 16
"""Up to so many, a GPU isn't kept busy by tiles of queries alone, and the keys are cut into parts."""

_MOST_PARTS = 64


@dataclass(frozen=True)
class Tiling:
    """Tiles of one kernel."""

    block_m: int  # queries
    block_n: int  # keys
    # of a program
    warps: int = 4
    stages: int = 3
    packed: bool = False  # a tile's rows are queries of all batch elements that share k and v
    parts: int = 1  # into how many the keys are cut, a power of two; each is worked on by programs of its own


@dataclass(frozen=True)
class BackwardTilings:
    """Tiles of the kernels that own keys, queries, and a tile of the bias."""

    keys: Tiling
    queries: Tiling
    bias: Tiling


_Table = dict[int, dict[int, list[tuple[int, int, int, int]]]]
"""By bytes of an element and by features at most: queries, keys, warps, stages of tiles, the best one first.

Of tiles that compile without spilling registers for sm_90, mostly; the order is that of the FlashAttention papers.
Later ones are for GPUs with less shared memory, and for a bias or a mask, which takes some.
"""

_FORWARD: _Table = {
    2: {
        32: [(128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)],
        64: [(128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)],
        128: [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (64, 64, 4, 2), (64, 32, 4, 2)],
        256: [(128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2), (32, 32, 4, 1)],
    },
    4: {64: [(64, 32, 8, 2)], 128: [(32, 32, 8, 1)], 256: [(32, 16, 8, 1)]},
    8: {64: [(32, 32, 4, 1)], 128: [(16, 32, 4, 1)], 256: [(16, 16, 4, 1)]},
}

_FORWARD_UNEVEN: _Table = {
    **_FORWARD,
    2: {
        64: [(128, 64, 8, 3), (64, 64, 4, 3)],
        128: [(128, 32, 8, 3), (64, 64, 8, 3), (64, 32, 4, 3)],
        256: [(64, 32, 8, 2), (32, 32, 4, 2)],
    },
}
"""Where elements of a bias or a mask are loaded one by one, which takes registers: of larger tiles, threads spill
thousands of bytes, and they took 15 times as long."""

_KEYS: _Table = {
    2: {
        64: [(64, 128, 8, 2), (64, 64, 4, 2)],
        128: [(32, 128, 8, 2), (64, 64, 8, 2), (32, 64, 4, 2)],
        256: [(64, 32, 8, 1), (32, 32, 4, 1)],
    },
    4: {64: [(32, 32, 8, 2)], 128: [(32, 32, 8, 2), (16, 32, 4, 1)], 256: [(16, 16, 8, 1)]},
    8: {64: [(16, 16, 4, 1)], 128: [(16, 16, 4, 1)], 256: [(16, 16, 8, 1)]},
}

_QUERIES: _Table = {
    2: {
        64: [(128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)],
        128: [(128, 64, 8, 2), (64, 64, 4, 2), (128, 32, 8, 2), (64, 32, 4, 2)],
        256: [(32, 64, 8, 2), (64, 32, 8, 1), (64, 16, 8, 1), (32, 32, 4, 1)],
    },
    4: {64: [(32, 32, 8, 2), (32, 16, 4, 1)], 128: [(32, 32, 8, 2), (32, 16, 4, 1)], 256: [(16, 16, 8, 1)]},
    8: {64: [(16, 16, 4, 1)], 128: [(16, 16, 4, 1)], 256: [(16, 16, 8, 1)]},
}


def forward_tiling(problem: Problem) -> Tiling:
    """Return the tiles of the forward kernel."""
    if problem.spec.q_len <= FEW_QUERIES:
        candidates = _decode_tilings(problem)
    else:
        features, strides = problem.features, problem.strides
        uneven = any(
            along == (True, True) and not copyable(own, ITEM_SIZES["float16"])
            for along, own in ((features.bias, strides.bias), (features.mask, strides.mask))
        )
        candidates = _from_table(_FORWARD_UNEVEN if uneven else _FORWARD, problem)
    return _fitting(candidates, partial(_forward_bytes, problem), problem)[0]


def _decode_tilings(problem: Problem) -> list[Tiling]:
    spec = problem.spec
    packed = problem.share > 1 and spec.q_len * problem.share <= _MOST_PACKED
    rows = spec.q_len * (problem.share if packed else 1)
    heads = problem.elements // (problem.share if packed else 1)
    found = []
    for block_n, warps, stages in ((64, 4, 3), (128, 4, 2), (32, 4, 2), (32, 4, 1), (16, 4, 1)):
        # Sequences that are packed along the positions share their rows of the result.
        parts = 1
        while not spec.varlen and parts < _MOST_PARTS and parts * heads < problem.units * 2:
            if parts * 2 * block_n > spec.kv_len:
                break
            parts *= 2
        found.append(Tiling(power(rows), min(block_n, power(spec.kv_len)), warps, stages, packed, parts))
    return found


def backward_tilings(problem: Problem) -> BackwardTilings:
    """Return the tiles of the backward kernels."""

    def fitted(table: _Table, owns_keys: bool) -> list[Tiling]:
        return _fitting(_from_table(table, problem), partial(_backward_bytes, problem, owns_keys), problem)

    keys, queries = fitted(_KEYS, True), fitted(_QUERIES, False)
    return BackwardTilings(keys[0], queries[0], queries[-1])


def _from_table(table: _Table, problem: Problem) -> list[Tiling]:
    """Return tiles that are no longer than they need to be."""
    spec = problem.spec
    rows = next(found for most, found in table[ITEM_SIZES[spec.dtype]].items() if problem.width <= most)
    return [Tiling(min(m, power(spec.q_len)), min(n, power(spec.kv_len)), w, s) for m, n, w, s in rows]


def power(extent: int) -> int:
    """Return the smallest tile that holds so many positions or features."""
    return max(16, 1 << (max(1, extent) - 1).bit_length())


def _score_bytes(problem: Problem, tiling: Tiling) -> int:
    """Count the bytes of tiles of the bias and the mask while they're loaded."""
    features = problem.features
    item = ITEM_SIZES[problem.spec.dtype] * (features.bias == (True, True)) + (features.mask == (True, True))
    return tiling.stages * tiling.block_m * tiling.block_n * item


def _forward_bytes(problem: Problem, tiling: Tiling) -> int:
    head, v_head = sum(problem.features.head), sum(problem.features.v_head)
    rows = tiling.block_m * head + tiling.stages * tiling.block_n * (head + v_head)
    return rows * ITEM_SIZES[problem.spec.dtype] + _score_bytes(problem, tiling)


def _backward_bytes(problem: Problem, owns_keys: bool, tiling: Tiling) -> int:
    features = sum(problem.features.head) + sum(problem.features.v_head)
    own, other = (tiling.block_n, tiling.block_m) if owns_keys else (tiling.block_m, tiling.block_n)
    # The weights and their gradients go through shared memory, too.
    rows = (own + tiling.stages * other) * features + 2 * tiling.block_m * tiling.block_n
    return rows * ITEM_SIZES[problem.spec.dtype] + _score_bytes(problem, tiling)


def _fitting(found: list[Tiling], size: Callable[[Tiling], int], problem: Problem) -> list[Tiling]:
    """Return the tiles that the device has shared memory for, each once; the smallest if there are none."""
    fits = [tiling for tiling in dict.fromkeys(found) if size(tiling) <= shared_memory(problem.capability)]
    return fits or [min(found, key=size)]
