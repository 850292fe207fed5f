"""Device functions that say which blocks of keys a tile of queries sees, and the other way round.

Each gives four positions: from the first to the second, and from the third to the fourth, blocks have to be masked;
between the second and the third, every query sees every key. All but the last are multiples of the block.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import field

_CHUNK = tl.constexpr(1024)
"""Segments that are looked at at once."""


@triton.jit
def _down(position, block: tl.constexpr):
    return position // block * block


@triton.jit
def _up(position, block: tl.constexpr):
    return (position + block - 1) // block * block


@triton.jit
def _facing(position, head, turned: tl.constexpr):
    """Return the key that a query faces; if ``turned``, the query that a key faces."""
    if turned:
        return position - head.shift
    else:
        return position + head.shift


@triton.jit
def blocks_by_position(first, last, head, numbers, f: tl.constexpr, block: tl.constexpr, turned: tl.constexpr = False):
    """Return the blocks of keys that queries ``first`` to ``last`` see; if ``turned``, the other way round."""
    ends: tl.constexpr = field(f, "left" if turned else "right")
    begins: tl.constexpr = field(f, "right" if turned else "left")
    length = head.q_len if turned else head.kv_len
    before = numbers.right if turned else numbers.left
    after = numbers.left if turned else numbers.right
    begin = 0
    end = length
    full_end = _down(length, block)
    if ends:
        end = min(end, _facing(last, head, turned) + after + 1)
        full_end = min(full_end, _down(max(_facing(first, head, turned) + after + 1, 0), block))
    if begins:
        begin = _down(max(_facing(first, head, turned) - before, 0), block)
    full_begin = begin
    if begins:
        full_begin = max(_up(max(_facing(last, head, turned) - before, 0), block), begin)
    if f.irregular:
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
def blocks_met(
    first, last, head, segments, exists, call, f: tl.constexpr, block: tl.constexpr, turned: tl.constexpr = False
):
    """Return what :func:`blocks_by_position` does, by the segments of the positions ``first`` to ``last``, too."""
    begin, full_begin, full_end, end = blocks_by_position(first, last, head, call.numbers, f, block, turned)
    if f.segments:
        low, high = _segment_range(segments, exists)
        others = head.q_segments if turned else head.kv_segments
        strides = call.strides.q_segments if turned else call.strides.kv_segments
        begin, end = _narrowed(begin, end, others, strides[f.axes], low, high, block)
        full_begin = begin
        full_end = begin
    return begin, full_begin, full_end, end


@triton.jit
def spans_of(begin, full_begin, full_end, end):
    """Return where the blocks before those seen in whole begin and end, such blocks, and those after them."""
    return (begin, min(full_begin, end)), (full_begin, full_end), (full_end, end)


@triton.constexpr_function
def visited(features, side, first):
    """Tell whether there may be blocks in a span: ``'left'`` or, of queries, ``'right'`` may hide those before it."""
    return (getattr(features, first), not features.irregular, True)[side]


@triton.jit
def part_of(begin, end, part, parts: tl.constexpr, block: tl.constexpr):
    """Return part number ``part`` of the blocks from ``begin`` to ``end``, of about equal size."""
    blocks = tl.cdiv(max(end - begin, 0), block)
    length = tl.cdiv(blocks, parts) * block
    return begin + part * length, min(end, begin + (part + 1) * length)
