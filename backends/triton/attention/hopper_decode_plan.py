"""Where Hopper's kernel for few queries can be used, with what tiles, and its launch."""

from __future__ import annotations

from typing import Any

from einops_fast.attention.spec import AttentionSpec
from einops_fast.backends.triton.attention.arguments import Extras
from einops_fast.backends.triton.attention.forward_plan import ForwardPlan
from einops_fast.backends.triton.attention.hopper_call import BATCH_AXES, LOG2E, Array, HopperCall, of_batch
from einops_fast.backends.triton.attention.hopper_decode import hopper_decode_kernel
from einops_fast.backends.triton.attention.hopper_decode_work import DecodeNumbers, DecodeTiling
from einops_fast.backends.triton.attention.hopper_plan import copyable, power
from einops_fast.backends.triton.attention.hopper_tiles import ITEM, Places
from einops_fast.backends.triton.attention.problem import ANY, Problem
from einops_fast.backends.triton.attention.tilings import FEW_QUERIES, shared_memory
from einops_fast.backends.triton.launch import interpreted
from einops_fast.backends.triton.memory import Memory

__all__ = ["HopperDecodePlan", "decode_tilings", "suits_decode"]

_MOST_FEATURES = 256

_MOST_ROWS = 64
"""Of a tile."""

_FAR = 1 << 31
"""Strides of what the hardware doesn't copy are less than this."""

_RESERVED = 1536
"""Bytes of shared memory of each program that aren't for tiles: 1024 of the system's own, barriers, sums."""

_SHAPES = ((128, 3, 1), (64, 3, 1), (64, 2, 1))
"""Keys of a block, blocks that shared memory holds, and programs of a multiprocessor; the first that fits is taken."""

_SMALL_SHAPES = ((128, 3, 2),)
"""The same for 64 features or fewer."""


def suits_decode(spec: AttentionSpec, problem: Problem, capability: tuple[int, int]) -> bool:
    """Whether the kernel can be used.

    Args:
        spec: what is computed.
        problem: the same, as the kernels take it.
        capability: compute capability of the device.
    """
    features, strides = problem.features, problem.strides
    if interpreted() or capability[0] != 9 or spec.dtype not in ("float16", "bfloat16") or spec.scale <= 0:
        return False
    if features.alibi or features.segments or features.dropout or features.biased or features.masked or spec.varlen:
        return False
    if spec.q_len > FEW_QUERIES or not spec.kv_len or features.shared > 1:
        return False
    heads, queries = _rows(spec, problem)
    if heads * queries > _MOST_ROWS or features.axes > BATCH_AXES:
        return False
    if max(spec.head_dim, spec.v_head_dim) > _MOST_FEATURES:
        return False
    if spec.page_size and (spec.page_size % 16 or any(page * ITEM % 16 for page in strides.pages[:2])):
        return False
    if not all(copyable(own, ITEM) for own in (strides.k, strides.v, _of_queries(spec, problem))):
        return False
    if strides.out[-1] != 1 or any(size > 1 and not own for size, own in zip(problem.sizes, strides.q, strict=False)):
        return False
    others = [*strides.out, *strides.lse, *(strides.sinks or ()), *strides.pages[2:]]
    return all(abs(stride) < _FAR for stride in others)


def _rows(spec: AttentionSpec, problem: Problem) -> tuple[int, int]:
    """Heads and queries of a tile, powers of two; 8 rows are the least that the hardware multiplies and copies."""
    heads, queries = (1 << (size - 1).bit_length() for size in (problem.share, spec.q_len))
    return heads, max(queries, 8 // heads)


def _of_queries(spec: AttentionSpec, problem: Problem) -> tuple[int, ...]:
    """Strides of q, with any one for a single query and for axes of size 1."""
    *batch, position, feature = problem.strides.q
    return (*batch, position if spec.q_len > 1 else 16 // ITEM, feature)


def decode_tilings(spec: AttentionSpec, problem: Problem) -> list[DecodeTiling]:
    """Tilings of the kernel that the hardware has shared memory for, the best one first."""
    features, strides = problem.features, problem.strides
    head, v_head = power(spec.head_dim), max(64, power(spec.v_head_dim))
    heads, queries = _rows(spec, problem)
    has = tuple(tuple(stride != 0 for stride in of_batch(own, False)) for own in (strides.k[:-2], strides.v[:-2]))
    found = []
    for block, stages, programs in (*(_SMALL_SHAPES if max(head, v_head) <= 64 else ()), *_SHAPES):
        copied = block
        while spec.page_size % copied:
            copied //= 2
        size = (stages * block * (head + v_head) + heads * queries * (2 * head + block)) * ITEM + _RESERVED
        if size * programs > shared_memory((9, 0)) + (1 << 10):
            continue
        found.append(
            DecodeTiling(
                block,
                copied,
                stages,
                programs,
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
        )
    return found


class HopperDecodePlan:
    """A forward call; see :class:`ForwardPlan`.

    Args:
        spec: what is computed.
        problem: the same, as the kernel takes it.
        units: multiprocessors of the device.
        other: the same by other kernels, for arrays at odd addresses.
        dtypes: of the lengths of sequences and of the block table, where there are these.
        tiling: of the kernel.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        problem: Problem,
        units: int,
        other: ForwardPlan,
        dtypes: tuple[str, str],
        tiling: DecodeTiling,
    ) -> None:
        self._other = other
        self._tiles = tiles = problem.elements // problem.share
        sequences = problem.sizes[0] if spec.cache or spec.page_size else 1
        blocks = tiles * -(-spec.kv_len // tiling.block)
        programs = min(units * tiling.programs, blocks)
        self._kept = 2 * programs * tiling.rows * (spec.v_head_dim + 1)
        of_cached, of_table = dtypes
        arrays = {
            "q_desc": self._queries(spec, problem, tiling),
            "k_desc": self._copied(spec, problem, tiling, "k"),
            "v_desc": self._copied(spec, problem, tiling, "v"),
            "out": Array(spec.dtype, aligned=False),
            "lse": Array("float32", aligned=False),
            "sinks": Array("float32", aligned=False) if spec.sinks else None,
            "cached": Array(of_cached, aligned=False) if spec.cache else None,
            "table": Array(of_table, aligned=False) if spec.page_size else None,
            "parts": Array("float32"),
            "arrived": Array("int32", aligned=False),
        }
        sizes = of_batch(problem.sizes, 1)
        strides, limits = problem.strides, problem.numbers
        numbers = DecodeNumbers(
            tiles,
            sequences,
            tiles // sequences,
            problem.share,
            spec.q_len,
            spec.kv_len,
            int(limits.left),
            int(limits.right),
            sizes[1],
            sizes[2],
            spec.scale * LOG2E,
            spec.softcap * LOG2E,
            _places(strides.out[:-1]),
            _places(strides.lse),
            _places((*strides.sinks, 0)) if spec.sinks else Places(ANY, ANY, ANY, ANY),
            *((strides.pages[2], strides.pages[3] // 2) if spec.page_size else (ANY, ANY)),
        )
        self.kernel = HopperCall(hopper_decode_kernel, tiling, arrays, {}, numbers, programs, even=())

    @staticmethod
    def _queries(spec: AttentionSpec, problem: Problem, tiling: DecodeTiling) -> Array:
        """Of q, as the hardware sees it: a tile is all that shares keys."""
        strides = of_batch(_of_queries(spec, problem)[:-2], 0)
        return Array(
            spec.dtype,
            (*of_batch(problem.sizes, 1), spec.q_len, spec.head_dim),
            tuple(stride or 16 // ITEM for stride in (*strides, *_of_queries(spec, problem)[-2:])),
            (1, 1, tiling.heads, tiling.queries, tiling.head),
        )

    @staticmethod
    def _copied(spec: AttentionSpec, problem: Problem, tiling: DecodeTiling, name: str) -> Array:
        """Of k or v, as the hardware sees it."""
        of_keys = name == "k"
        strides = problem.strides.k if of_keys else problem.strides.v
        features = (tiling.head_dim, tiling.head) if of_keys else (tiling.v_head_dim, tiling.v_head)
        own = of_batch(strides[:-2], 0)
        batch = [size if stride else 1 for size, stride in zip(of_batch(problem.sizes, 1), own, strict=True)]
        if spec.page_size:
            axis = BATCH_AXES - problem.features.axes
            page = problem.strides.pages[0 if of_keys else 1]
            own = (*own[:axis], page, *own[axis + 1 :])
            batch[axis] = (spec.k_batch if of_keys else spec.v_batch)[0]
        # Any stride does for an axis of size 1.
        return Array(
            spec.dtype,
            (*batch, spec.page_size or spec.kv_len, features[0]),
            tuple(stride or 16 // ITEM for stride in (*own, *strides[-2:])),
            (1,) * BATCH_AXES + (tiling.copied, features[1]),
        )

    def __call__(self, memory: Memory, device: int, q: Any, k: Any, v: Any, extras: Extras, out: Any, lse: Any) -> None:
        """Write ``out`` and ``lse``."""
        parts = memory.workspace(q, self._kept, "float32")
        arrived = memory.counters(q, device, self._tiles)
        given = (q, k, v, out, lse, extras.sinks, extras.cached, extras.table, parts, arrived)
        if not self.kernel(memory, device, *given):
            self._other(memory, device, q, k, v, extras, out, lse)


def _places(strides: tuple[int, ...]) -> Places:
    *batch, position = strides
    return Places._make((*of_batch(tuple(batch), 0), position))
