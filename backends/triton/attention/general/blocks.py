"""Device functions that say which blocks of keys a tile of queries sees, and the other way round.

Each gives four positions: from the first to the second, and from the third to the fourth, blocks have to be masked;
between the second and the third, every query sees every key. All but the last are multiples of the block.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import field

__all__ = ["part_of", "seeing_queries", "seen_keys", "seen_keys_of_segments", "visited"]

_CHUNK = tl.constexpr(1024)
"""Segments that are looked at at once."""


@triton.jit
def _down(position, block: tl.constexpr):
    return position // block * block


@triton.jit
def _up(position, block: tl.constexpr):
    return (position + block - 1) // block * block


@triton.jit
def seen_keys(first, last, head, numbers, f: tl.constexpr, block: tl.constexpr):
    """Return the blocks of keys that queries ``first`` to ``last`` see."""
    begin = 0
    end = head.kv_len
    full_end = _down(head.kv_len, block)
    if field(f, "right"):
        end = min(end, last + head.shift + numbers.right + 1)
        full_end = min(full_end, _down(max(first + head.shift + numbers.right + 1, 0), block))
    if field(f, "left"):
        begin = _down(max(first + head.shift - numbers.left, 0), block)
    full_begin = begin
    if field(f, "left"):
        full_begin = max(_up(max(last + head.shift - numbers.left, 0), block), begin)
    if field(f, "irregular"):
        full_begin = begin
        full_end = begin
    return begin, full_begin, max(full_end, full_begin), end


@triton.jit
def _seeing_queries(first, last, head, numbers, f: tl.constexpr, block: tl.constexpr):
    """Return the blocks of queries that see keys ``first`` to ``last``."""
    begin = 0
    end = head.q_len
    full_end = _down(head.q_len, block)
    if field(f, "left"):
        end = min(end, last - head.shift + numbers.left + 1)
        full_end = min(full_end, _down(max(first - head.shift + numbers.left + 1, 0), block))
    if field(f, "right"):
        begin = _down(max(first - head.shift - numbers.right, 0), block)
    full_begin = begin
    if field(f, "right"):
        full_begin = max(_up(max(last - head.shift - numbers.right, 0), block), begin)
    if field(f, "irregular"):
        full_begin = begin
        full_end = begin
    return begin, full_begin, max(full_end, full_begin), end


@triton.jit
def _segment_range(segments, exists):
    """Return the lowest and the highest segment of the positions that exist."""
    low = tl.min(tl.where(exists, segments, 2147483647))
    return low, tl.max(tl.where(exists, segments, -2147483648))


@triton.jit
def _narrowed(begin, end, segments, stride, low, high, block: tl.constexpr):
    """Return the blocks from ``begin`` to ``end`` but those before and after all of segments ``low`` to ``high``.

    So where documents lie one after the other, a tile visits those that it has a part of.
    """
    first = end + tl.full((), 0, tl.int32)
    last = begin + tl.full((), 0, tl.int32)
    for at in range(begin, end, _CHUNK):
        position = at + tl.arange(0, _CHUNK)
        place = segments + position * (tl.full((), 0, tl.int64) + stride)
        segment = tl.load(place, mask=position < end, other=0)
        inside = (position < end) & (segment >= low) & (segment <= high)
        first = min(first, tl.min(tl.where(inside, position, end)))
        last = max(last, tl.max(tl.where(inside, position + 1, begin)))
    return max(_down(first, block), begin), last


@triton.jit
def seen_keys_of_segments(first, last, head, segments, exists, call, f: tl.constexpr, block: tl.constexpr):
    """Return the blocks of keys that queries ``first`` to ``last`` see, by positions and by the queries' segments."""
    begin, full_begin, full_end, end = seen_keys(first, last, head, call.numbers, f, block)
    if field(f, "segments"):
        low, high = _segment_range(segments, exists)
        stride = call.strides.kv_segments[field(f, "axes")]
        begin, end = _narrowed(begin, end, head.kv_segments, stride, low, high, block)
        full_begin = begin
        full_end = begin
    return begin, full_begin, full_end, end


@triton.jit
def seeing_queries(first, last, head, segments, exists, call, f: tl.constexpr, block: tl.constexpr):
    """Return the blocks of queries that see keys ``first`` to ``last``, by positions and by the keys' segments."""
    begin, full_begin, full_end, end = _seeing_queries(first, last, head, call.numbers, f, block)
    if field(f, "segments"):
        low, high = _segment_range(segments, exists)
        stride = call.strides.q_segments[field(f, "axes")]
        begin, end = _narrowed(begin, end, head.q_segments, stride, low, high, block)
        full_begin = begin
        full_end = begin
    return begin, full_begin, full_end, end


@triton.constexpr_function
def visited(features, side, first):
    """Tell whether there may be blocks before those seen in whole (side 0), such blocks (1), and after them (2).

    ``first`` names the feature that hides blocks before them: ``'left'`` for keys, ``'right'`` for queries.
    """
    return (getattr(features, first), not features.irregular, True)[side]


@triton.jit
def part_of(begin, end, part, parts: tl.constexpr, block: tl.constexpr):
    """Return part number ``part`` of the blocks from ``begin`` to ``end``, of about equal size."""
    blocks = tl.cdiv(max(end - begin, 0), block)
    length = tl.cdiv(blocks, parts) * block
    return begin + part * length, min(end, begin + (part + 1) * length)
