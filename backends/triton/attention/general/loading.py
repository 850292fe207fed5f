"""Device functions that move tiles: from a batch element's number to addresses, loads of rows, stores, products.

A tile's features come in two parts, both powers of two, so that 80 or 96 of them needn't be padded to 128. Where
there is no second part, a dummy stands for it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.attention.arguments import Head
from einops_fast.backends.triton.contraction.matrix_product import matrix_product
from einops_fast.backends.triton.device.indexing import field
from einops_fast.backends.triton.device.offsets import counted, in_swaths, kept_type

__all__ = [
    "head_of",
    "load_keys",
    "load_rows",
    "product",
    "query_rows",
    "shared_size",
    "store_rows",
    "task",
    "width",
]


@triton.constexpr_function
def _part(parts, at):
    return parts[at]


@triton.constexpr_function
def width(parts, at):
    """Columns of a part of a tile; 1 for the dummy."""
    return max(parts[at], 1)


@triton.jit
def shared_size(sizes, f: tl.constexpr):
    """How many queries' heads share one of k and v."""
    size = tl.full((), 1, tl.int32)
    for at in tl.static_range(field(f, "axes") - field(f, "shared"), field(f, "axes")):
        size *= sizes[at]
    return size


@triton.jit
def task(tiles, heads, together, backwards: tl.constexpr):
    """The tile and the batch element of this program.

    ``together`` elements are worked on side by side, so that what they read stays in the L2 cache, and of each the
    tiles with the most work come first: the last ones where queries see only what is before them.
    """
    element, tile = in_swaths(tl.program_id(0), heads, tiles, together)
    if backwards:
        tile = tiles - 1 - tile
    return tile, element


@triton.jit
def _sequence(starts, rows, longest):
    """Where a packed sequence begins and how long it is: whatever is said, it is inside the array, and no longer than
    what a bias and a mask have positions for."""
    start = min(max(tl.load(starts), 0), rows)
    end = min(tl.load(starts + 1), rows)
    return start, min(max(end - start, 0), longest)


@triton.jit
def head_of(number, anchor, extras, strides, sizes, lengths, f: tl.constexpr):
    """What there is to know of batch element ``number``; or of one for each row, of which ``anchor`` is one."""
    axes: tl.constexpr = field(f, "axes")
    # What there isn't is 0: a tuple made on the device holds no None.
    q_start = 0
    q_len = lengths.q
    kv_start = 0
    kv_len = lengths.kv
    # The first axis counts the sequences.
    outer = anchor
    for at in tl.static_range(axes - 1, 0, -1):
        outer = outer // sizes[at]
    if extras.q_starts is not None:
        q_start, q_len = _sequence(extras.q_starts + outer, lengths.q_rows, lengths.q)
    if extras.kv_starts is not None:
        kv_start, kv_len = _sequence(extras.kv_starts + outer, lengths.kv_rows, lengths.kv)
    if extras.cached is not None:
        kv_len = min(tl.load(extras.cached + outer), kv_len)
    shift = 0
    if field(f, "bottom_right"):
        shift = kv_len - q_len
    bias = 0
    if extras.bias is not None:
        bias = extras.bias + counted(number, sizes, strides.bias, 0, axes)
    mask = 0
    if extras.mask is not None:
        mask = extras.mask + counted(number, sizes, strides.mask, 0, axes)
    slope = 0.0
    if extras.slopes is not None:
        slope = tl.load(extras.slopes + counted(number, sizes, strides.slopes, 0, axes)).to(kept_type(f))
    q_segments = 0
    kv_segments = 0
    if field(f, "segments"):
        q_segments = extras.q_segments + counted(number, sizes, strides.q_segments, 0, axes)
        kv_segments = extras.kv_segments + counted(number, sizes, strides.kv_segments, 0, axes)
    table = 0
    if extras.table is not None:
        table = extras.table + outer * (tl.full((), 0, tl.int64) + strides.pages[2])
    return Head(number, q_start, q_len, kv_start, kv_len, shift, bias, mask, slope, q_segments, kv_segments, table)


@triton.jit
def query_rows(array, strides, sizes, head, start, i, f: tl.constexpr, packed: tl.constexpr):
    """Pointers to the rows of an array with positions of queries: a column of them.

    Args:
        array: the array.
        strides: its strides.
        sizes: of the batch axes.
        head: the batch element; if ``packed``, one for each row.
        start: the first query, unless packed.
        i: the queries, a column.
        f: the features of the attention.
        packed: whether rows are of several batch elements.
    """
    axes: tl.constexpr = field(f, "axes")
    zero = tl.full((), 0, tl.int64)
    base = array + counted(head.number, sizes, strides, 0, axes)
    if packed:
        rows = base + (head.q_start + i) * (zero + strides[axes])
    else:
        run = i - start
        if field(f, "wide"):
            run = run + zero
        rows = base + (head.q_start + start) * (zero + strides[axes]) + run * strides[axes]
    return rows


@triton.jit
def _columns(first: tl.constexpr, count: tl.constexpr):
    return first + tl.arange(0, count)


@triton.jit
def _gather(rows, stride, first: tl.constexpr, count: tl.constexpr, size: tl.constexpr, exists, some: tl.constexpr):
    """One part of the features of rows, given by pointers."""
    columns = _columns(first, count)[None, :]
    places = rows + columns * stride
    if some:
        if first + count > size:
            found = tl.load(places, mask=exists & (columns < size), other=0.0)
        else:
            found = tl.load(places, mask=exists, other=0.0)
    else:
        if first + count > size:
            found = tl.load(places, mask=columns < size, other=0.0)
        else:
            found = tl.load(places)
    return found


@triton.jit
def load_rows(rows, exists, stride, parts: tl.constexpr, size: tl.constexpr, some: tl.constexpr):
    """Both parts of the features of rows: ``rows`` are pointers to their beginnings, a column of them.

    Args:
        rows: pointers, with a second axis of size 1.
        exists: which rows there are; looked at where ``some`` may be missing.
        stride: from one feature to the next.
        parts: how many features are in either part.
        size: how many there are.
        some: whether a row may be missing.
    """
    first = _gather(rows, stride, 0, _part(parts, 0), size, exists, some)
    if _part(parts, 1) > 0:
        second = _gather(rows, stride, _part(parts, 0), _part(parts, 1), size, exists, some)
    else:
        second = 0.0
    return first, second


@triton.jit
def load_keys(
    base,
    strides,
    page,
    start,
    head,
    entry,
    parts: tl.constexpr,
    size: tl.constexpr,
    f: tl.constexpr,
    block: tl.constexpr,
    some: tl.constexpr,
):
    """Rows ``start`` to before ``start + block`` of k or v. The one place that says how these are loaded.

    Args:
        base: pointer to the batch element.
        strides: of the array.
        page: the array's stride from page to page.
        start: the first key; a multiple of ``block``.
        head: the batch element.
        entry: the block table's stride from entry to entry.
        parts: how many features are in either part.
        size: how many there are.
        f: the features of the attention.
        block: how many keys.
        some: whether a key may be missing.
    """
    axes: tl.constexpr = field(f, "axes")
    page_size: tl.constexpr = field(f, "page_size")
    run = tl.arange(0, block)
    exists = (start + run < head.kv_len)[:, None]
    zero = tl.full((), 0, tl.int64)
    if page_size == 0:
        if field(f, "wide"):
            run = run + zero
        rows = base + (head.kv_start + start) * (zero + strides[axes]) + (run * strides[axes])[:, None]
    else:
        if page_size % block == 0:
            number = tl.load(head.table + (start // page_size) * (zero + entry))
            rows = base + number * (zero + page) + (start % page_size) * (zero + strides[axes])
            if field(f, "wide"):
                run = run + zero
            rows = rows + (run * strides[axes])[:, None]
        else:
            run = start + run
            numbers = tl.load(head.table + (run // page_size) * (zero + entry), mask=run < head.kv_len, other=0)
            offsets = numbers * (zero + page) + (run % page_size) * (zero + strides[axes])
            rows = base + offsets[:, None]
    return load_rows(rows, exists, strides[axes + 1], parts, size, some)


@triton.jit
def store_rows(rows, exists, stride, first, second, parts: tl.constexpr, size: tl.constexpr):
    """Write both parts of the features of rows, which are given by pointers."""
    columns = _columns(0, _part(parts, 0))[None, :]
    tl.store(rows + columns * stride, first.to(rows.dtype.element_ty), mask=exists & (columns < size))
    if _part(parts, 1) > 0:
        columns = _columns(_part(parts, 0), _part(parts, 1))[None, :]
        tl.store(rows + columns * stride, second.to(rows.dtype.element_ty), mask=exists & (columns < size))


@triton.jit
def product(a, b, total, f: tl.constexpr):
    """``total + a @ b``."""
    return matrix_product(a, b, total, field(f, "precision"), kept_type(f), field(f, "upcast"))
