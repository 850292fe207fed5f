"""The reference: attention by einsum and elementwise calls, on any framework, in pieces that fit in memory.

It has every feature, and says what each one means; the fused implementations are tested against it. Low precision is
computed in float32, float64 in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from math import inf, prod
from typing import Any

from einops_fast.attention.arrays import Arrays, arrays_of, merge_batch
from einops_fast.attention.memory import current_score_memory
from einops_fast.attention.prediction import unfused_seconds
from einops_fast.attention.registry import Implementation
from einops_fast.attention.spec import AttentionInputs, AttentionSpec
from einops_fast.errors import OperandError, ShapeError
from einops_fast.planning.cost import ITEM_SIZES, Ceilings

_LIVE = 4
"""Arrays of the size of the scores that are there at a time."""

_OF_KEYS = (1, 2, 8)
"""Which operands have positions of keys where others have those of queries."""


def reference_attention(spec: AttentionSpec, inputs: AttentionInputs, on: Arrays, memory: int) -> tuple[Any, Any]:
    """Return the result and the log of the denominator in canonical order; scores take ``memory`` bytes at a time."""
    wide = "float64" if spec.dtype == "float64" else "float32"
    operands = canonical_operands(spec, inputs, on)
    # Of packed sequences, the first axis counts them, and neither queries nor the result have it.
    merged, arrays = merge_batch(spec.batch, operands.all(), on, 1 if spec.varlen else 0)
    few = replace(spec, batch=merged)
    if spec.varlen:
        result, lse = _one_by_one(few, inputs, AttentionInputs(*arrays), on, wide, memory)
    else:
        result, lse = _in_pieces(few, AttentionInputs(*arrays), on, wide, memory)
    if merged != spec.batch:
        batch = (1, *spec.batch[1:]) if spec.varlen else spec.batch
        result = result.reshape((*batch, *result.shape[-2:]))
        lse = lse.reshape((*batch, lse.shape[-1]))
    return on.in_order(on.cast(result, spec.dtype), spec.order), lse


class Math(Implementation):
    """The implementation that is always there."""

    name = "math"
    recordable = True
    efficiency = 0.0

    def lacks(self, spec: AttentionSpec) -> None:
        return None

    def seconds(self, spec: AttentionSpec, on: Ceilings) -> float:
        return unfused_seconds(spec, on)

    def run(self, spec: AttentionSpec, inputs: AttentionInputs) -> tuple[Any, Any]:
        result, lse = reference_attention(spec, inputs, arrays_of(spec.framework), current_score_memory())
        return result, lse if spec.lse else None


def canonical_operands(spec: AttentionSpec, inputs: AttentionInputs, on: Arrays) -> AttentionInputs:
    """Return the inputs with as many axes each: batch, positions or 1, and features, keys or 1. Pages are gathered.

    Beyond a sequence's end, keys and values of a cache may be anything.
    """
    k, v = inputs.k, inputs.v
    cache = inputs.cache_seqlens
    looked_at = cache is not None and not spec.transforms and on.can_look(cache)
    if cache is not None:
        if looked_at:
            _check_cache(cache)
        # No sequence has more keys than there are places for.
        cache = on.where(cache > spec.kv_len, on.full((1,), spec.kv_len, cache), cache)
        cache = _with_axes(cache, len(spec.batch) + 1)
    if spec.page_size:
        table = _used_pages(spec, inputs, on)
        if looked_at:
            _check_pages(table, k.shape[0])
        k, v = (_gathered(each, table, on) for each in (k, v))
    return AttentionInputs(
        inputs.q,
        k,
        v,
        inputs.bias,
        inputs.mask,
        _with_axes(inputs.alibi_slopes, 2),
        _with_axes(inputs.sinks, 2),
        _with_axes(inputs.q_segments, 1),
        None if inputs.kv_segments is None else inputs.kv_segments[..., None, :],
        cache_seqlens=cache,
    )


def _with_axes(array: Any, count: int) -> Any:
    return None if array is None else array.reshape((*array.shape, *(1,) * count))


def _used_pages(spec: AttentionSpec, inputs: AttentionInputs, on: Arrays) -> Any:
    """Return the block table with page 0 where nobody looks: what is written there may be no page at all."""
    table = on.cast(inputs.block_table, "int64")
    starts = on.positions(0, table.shape[1], table) * spec.page_size
    used = starts < on.cast(inputs.cache_seqlens, "int64").reshape((-1, 1))
    return on.where(used, table, on.full((1, 1), 0, table))


def _check_cache(lengths: Any) -> None:
    if lengths.shape[0] and int(lengths.min()) < 0:
        raise OperandError(f"cache_seqlens says that a sequence has {int(lengths.min())} keys")


def _check_pages(used: Any, pages: int) -> None:
    ends = (int(used.min()), int(used.max())) if all(used.shape) else ()
    for page in ends:
        if not 0 <= page < pages:
            raise OperandError(
                f"block_table has page {page} where a sequence has keys, but axis 0 of k and v has size {pages}"
            )


def _gathered(pages: Any, table: Any, on: Arrays) -> Any:
    """Return keys of pages, side by side: (sequences, *heads, pages * page_size, features)."""
    found = pages[table]  # sequences, pages, *heads, page_size, features
    rank = len(found.shape)
    found = on.permute(found, (0, *range(2, rank - 2), 1, rank - 2, rank - 1))
    shape = found.shape
    return found.reshape((*shape[:-3], shape[-3] * shape[-2], shape[-1]))


def _one_by_one(
    spec: AttentionSpec, inputs: AttentionInputs, operands: AttentionInputs, on: Arrays, wide: str, memory: int
) -> tuple[Any, Any]:
    q_ends, kv_ends = on.integers(inputs.cu_seqlens_q), on.integers(inputs.cu_seqlens_kv)
    total = operands.q.shape[-2]
    _check_ends("q", q_ends, total, spec.q_len)
    _check_ends("kv", kv_ends, operands.k.shape[-2], spec.kv_len)
    results, lses = [], []
    for at in range(len(q_ends) - 1):
        q_len, kv_len = q_ends[at + 1] - q_ends[at], kv_ends[at + 1] - kv_ends[at]
        one = AttentionInputs(
            operands.q[..., q_ends[at] : q_ends[at + 1], :],
            operands.k[..., kv_ends[at] : kv_ends[at + 1], :],
            operands.v[..., kv_ends[at] : kv_ends[at + 1], :],
            *[_of_sequence(each, at, q_len, kv_len) for each in operands.all()[3:]],
        )
        alone = replace(spec, batch=(1, *spec.batch[1:]), q_len=q_len, kv_len=kv_len, varlen=False)
        result, lse = _in_pieces(alone, one, on, wide, memory)
        results.append(result)
        lses.append(lse)
    if q_ends[-1] < total or not results:  # places that belong to no sequence
        shape = (1, *spec.batch[1:], total - q_ends[-1])
        arrays = [on.cast(each[..., :0, :], wide) for each in (operands.q, operands.k, operands.v)]
        results.append(on.nothing((*shape, spec.v_head_dim), *arrays))
        lses.append(on.nothing(shape, *arrays[:2]) - inf)
    return on.concatenate(results, len(spec.batch)), on.concatenate(lses, len(spec.batch))


def _check_ends(of: str, ends: Sequence[int], total: int, longest: int) -> None:
    if ends[0] != 0 or any(start > end for start, end in pairwise(ends)) or ends[-1] > total:
        raise ShapeError(
            f"cu_seqlens_{of} is {_shortened(ends)}; it begins with 0, doesn't decrease, and ends by {total}, the "
            f"positions that {'q has' if of == 'q' else 'k and v have'}"
        )
    most = max((end - start for start, end in pairwise(ends)), default=0)
    if most > longest:
        raise ShapeError(f"max_seqlen_{of} is {longest}, but cu_seqlens_{of} says that a sequence has length {most}")


def _shortened(ends: Sequence[int]) -> str:
    return str(ends) if len(ends) <= 8 else f"[{', '.join(map(str, ends[:4]))}, …, {ends[-1]}]"


def _of_sequence(array: Any, at: int, q_len: int, kv_len: int) -> Any:
    """Return the part of bias, mask, slopes, sinks, segments for one sequence."""
    if array is None:
        return None
    if array.shape[0] != 1:
        array = array[at : at + 1]
    if array.shape[-2] != 1:
        array = array[..., :q_len, :]
    return array if array.shape[-1] == 1 else array[..., :kv_len]


def _in_pieces(spec: AttentionSpec, operands: AttentionInputs, on: Arrays, wide: str, memory: int) -> tuple[Any, Any]:
    """Cut batch and queries so that the scores of a piece fit."""
    sizes = (*spec.batch, spec.q_len)
    rows = prod(sizes)
    # Without keys there are no scores, and nothing to cut. Nor is what is recorded for any sizes, which are no numbers.
    if isinstance(rows * spec.kv_len, int) and spec.kv_len:
        rows = max(1, memory // (_LIVE * ITEM_SIZES[wide] * spec.kv_len))
    piece = list(sizes)
    for axis, size in enumerate(sizes):
        if prod(piece) <= rows:
            break
        piece[axis] = max(1, rows // (prod(piece) // max(1, size)))
    whole = tuple(piece) == sizes
    again = spec.gradients and not spec.transforms and not whole and (spec.dropout_p == 0 or not on.sums_gradients)

    def go(axis: int, start: int, arrays: tuple[Any, ...]) -> tuple[Any, Any]:
        if axis == len(sizes):
            # Keywords would be lost on the way through a checkpoint of older versions.
            pair: tuple[Any, Any] = on.block(partial(_block, on, spec, wide, start), again, *arrays)
            return pair
        if piece[axis] >= sizes[axis]:
            return go(axis + 1, start, arrays)
        queries = axis == len(sizes) - 1
        parts = [
            None
            if array is None or array.shape[axis] == 1 or (queries and at in _OF_KEYS)
            else on.pieces(array, axis, piece[axis])
            for at, array in enumerate(arrays)
        ]
        found = []
        for number in range(-(-sizes[axis] // piece[axis])):
            cut = tuple(array if part is None else part[number] for array, part in zip(arrays, parts, strict=True))
            found.append(go(axis + 1, number * piece[axis] if queries else start, cut))
        return tuple(on.concatenate([each[at] for each in found], axis) for at in range(2))

    arrays = operands.all()
    if again and on.sums_gradients:
        cuts = _cuts(sizes, piece, arrays)
        pieces = [(partial(_block, on, spec, wide, starts[-1]), *cut) for starts, *cut in cuts]
        result: tuple[Any, Any] = on.whole(partial(go, 0, 0), pieces, arrays)
        return result
    return go(0, 0, arrays)


def _cuts(
    sizes: Sequence[int], piece: Sequence[int], arrays: Sequence[Any]
) -> list[tuple[tuple[int, ...], list[tuple[slice, ...]], tuple[slice, ...]]]:
    """Return where each piece starts along each axis, its part of each array, and of the results."""
    found = []
    for starts in product(*[range(0, size, step) for size, step in zip(sizes, piece, strict=True)]):
        own = tuple([slice(start, start + step) for start, step in zip(starts, piece, strict=True)])
        parts = [
            ()
            if array is None
            else tuple([
                slice(None) if array.shape[axis] == 1 or (axis == len(own) - 1 and at in _OF_KEYS) else cut
                for axis, cut in enumerate(own)
            ])
            for at, array in enumerate(arrays)
        ]  # fmt: skip
        found.append((starts, parts, own))
    return found


def _block(on: Arrays, spec: AttentionSpec, wide: str, start: int, *arrays: Any) -> tuple[Any, Any]:
    """Compute one piece, whose first query is number ``start``. All scores are there at once."""
    x = AttentionInputs(*arrays)
    q, k, v = (on.cast(each, wide) for each in (x.q, x.k, x.v))
    rank = len(q.shape)
    batch = tuple([
        max(q.shape[axis], k.shape[axis], v.shape[axis])
        if 0 not in (q.shape[axis], k.shape[axis], v.shape[axis]) else 0
        for axis in range(rank - 2)
    ])  # fmt: skip
    shape = (*batch, q.shape[-2])
    if k.shape[-2] == 0 or 0 in shape:
        result = on.nothing((*shape, v.shape[-1]), q, k, v)
        if x.sinks is None:
            return result, on.nothing(shape, q, k) - inf
        return result, on.expand(on.cast(x.sinks, wide)[..., 0], shape)

    if x.cache_seqlens is not None:
        # Beyond a sequence's end may be anything, and no number of times of it need be 0.
        exist = on.positions(0, k.shape[-2], q).reshape((-1, 1)) < on.cast(x.cache_seqlens, "int64")
        k, v = (on.where(exist, each, 0.0) for each in (k, v))

    # What can be done to queries and results isn't done to all scores.
    scores = on.einsum("...id,...jd->...ij", q * (spec.scale / (spec.softcap or 1.0)), k)
    if spec.softcap:
        scores = on.xp.tanh(scores) * spec.softcap
    if x.bias is not None:
        scores = scores + on.cast(x.bias, wide)
    ahead = distance(spec, x, on, start)
    if x.alibi_slopes is not None:
        scores = scores - on.cast(x.alibi_slopes, wide) * on.cast(abs(ahead), wide)
    allowed = allowed_keys(spec, x, on, ahead)
    if allowed is not None:
        scores = on.where(allowed, scores, -inf)

    largest = on.largest(scores)
    sinks = None if x.sinks is None else on.cast(x.sinks, wide)
    if sinks is not None:
        largest = on.maximum(largest, sinks)
    # A row without any key has no largest score.
    largest = on.where(largest == -inf, on.full((1,) * rank, 0.0, q), largest)
    weights = on.xp.exp(scores - largest)
    total = on.sum(weights)
    if sinks is not None:
        total = total + on.xp.exp(sinks - largest)
    empty = total == 0
    one = on.where(empty, on.full((1,) * rank, 1.0, q), total)
    lse = on.where(empty, -inf, on.xp.log(one) + largest)[..., 0]
    if spec.dropout_p:
        weights = on.dropout(weights, spec.dropout_p)
    result = on.quotient(on.einsum("...ij,...je->...ie", weights, v), one)
    return on.expand(result, (*shape, v.shape[-1])), on.expand(lse, shape)


def distance(spec: AttentionSpec, x: AttentionInputs, on: Arrays, start: int) -> Any:
    """Return how far the key that a query faces is ahead of each key; ``None`` where nobody asks.

    Whole numbers for the queries of ``x``, of which the first is number ``start``, and all keys: (queries, keys), or
    with a cache (batch, queries, keys).
    """
    if not (spec.causal or spec.window != (None, None) or x.alibi_slopes is not None):
        return None
    queries = on.positions(start, x.q.shape[-2], x.q).reshape((-1, 1))
    keys = on.positions(0, x.k.shape[-2], x.q)
    if spec.alignment == "top_left":
        return queries - keys
    if x.cache_seqlens is not None:
        return queries - keys + (on.cast(x.cache_seqlens, "int64") - spec.q_len)
    return queries - keys + (spec.kv_len - spec.q_len)


def allowed_keys(spec: AttentionSpec, x: AttentionInputs, on: Arrays, ahead: Any) -> Any:
    """Return which keys may be seen, in booleans that broadcast to (batch, queries, keys); ``None`` for all.

    ``ahead`` is what :func:`distance` gave.
    """
    left, right = spec.window
    conditions = []
    if x.mask is not None:
        conditions.append(x.mask)
    if x.q_segments is not None:
        conditions.append(x.q_segments == x.kv_segments)
    if spec.causal:
        conditions.append(ahead >= 0)
    if left is not None:
        conditions.append(ahead <= left)
    if right is not None:
        conditions.append(ahead >= -right)
    if x.cache_seqlens is not None:
        keys = on.positions(0, x.k.shape[-2], x.q)
        conditions.append(keys < on.cast(x.cache_seqlens, "int64"))
    allowed = None
    for condition in conditions:
        allowed = condition if allowed is None else allowed & condition
    return allowed
