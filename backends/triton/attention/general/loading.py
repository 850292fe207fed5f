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


@triton.constexpr_function
def _part(features, kind, at):
    """Return the columns of a part of the features of a kind: ``'head'`` or ``'v_head'``."""
    return getattr(features, kind)[at]


@triton.constexpr_function
def _first(features, kind, at):
    return sum(getattr(features, kind)[:at])


@triton.constexpr_function
def _size(features, kind):
    return getattr(features, f"{kind}_dim")


@triton.constexpr_function
def _beyond(features, kind, at):
    """Tell whether a part has more columns than there are features left."""
    return sum(getattr(features, kind)[: at + 1]) > _size(features, kind)


@triton.constexpr_function
def _in_two(features, kind):
    return getattr(features, kind)[1] > 0


@triton.jit
def shared_size(sizes, f: tl.constexpr):
    """Count the queries' heads that share one of k and v."""
    size = tl.full((), 1, tl.int32)
    for at in tl.static_range(f.axes - f.shared, field(f, "axes")):
        size *= sizes[at]
    return size


@triton.jit
def task(tiles, heads, together, backwards: tl.constexpr):
    """Return the tile and the batch element of this program.

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
def head_of(number, anchor, call, f: tl.constexpr):
    """Return what is known of batch element ``number``; or of one for each row, of which ``anchor`` is one."""
    extras = call.extras
    strides = call.strides
    sizes = call.sizes
    lengths = call.lengths
    # What there isn't is 0: a tuple made on the device holds no None.
    q_start = 0
    q_len = lengths.q
    kv_start = 0
    kv_len = lengths.kv
    # The first axis counts the sequences.
    outer = anchor
    for at in tl.static_range(f.axes - 1, 0, -1):
        outer = outer // sizes[at]
    if extras.q_starts is not None:
        q_start, q_len = _sequence(extras.q_starts + outer, lengths.q_rows, lengths.q)
    if extras.kv_starts is not None:
        kv_start, kv_len = _sequence(extras.kv_starts + outer, lengths.kv_rows, lengths.kv)
    if extras.cached is not None:
        kv_len = min(tl.load(extras.cached + outer), kv_len)
    shift = 0
    if f.bottom_right:
        shift = kv_len - q_len
    bias = 0
    if extras.bias is not None:
        bias = extras.bias + counted(number, sizes, strides.bias, 0, f.axes)
    mask = 0
    if extras.mask is not None:
        mask = extras.mask + counted(number, sizes, strides.mask, 0, f.axes)
    slope = 0.0
    if extras.slopes is not None:
        slope = tl.load(extras.slopes + counted(number, sizes, strides.slopes, 0, f.axes)).to(kept_type(f))
    q_segments = 0
    kv_segments = 0
    if f.segments:
        q_segments = extras.q_segments + counted(number, sizes, strides.q_segments, 0, f.axes)
        kv_segments = extras.kv_segments + counted(number, sizes, strides.kv_segments, 0, f.axes)
    table = 0
    if extras.table is not None:
        table = extras.table + outer * (tl.full((), 0, tl.int64) + strides.pages[2])
    return Head(number, q_start, q_len, kv_start, kv_len, shift, bias, mask, slope, q_segments, kv_segments, table)


@triton.jit
def of_element(array, strides, element, call, f: tl.constexpr):
    """Return the pointer to a batch element of an array, counted by those that have keys of their own."""
    return array + counted(element, call.sizes, strides, 0, f.axes - f.shared)


@triton.jit
def query_rows(array, strides, head, start, i, call, f: tl.constexpr, packed: tl.constexpr = False):
    """Return pointers to the rows ``i`` of an array with positions of queries: a column of them.

    If ``packed``, each row has its own ``head``; else ``start`` is the first one.
    """
    zero = tl.full((), 0, tl.int64)
    base = array + counted(head.number, call.sizes, strides, 0, f.axes)
    if packed:
        rows = base + (head.q_start + i) * (zero + strides[f.axes])
    else:
        run = i - start
        if f.wide:
            run = run + zero
        rows = base + (head.q_start + start) * (zero + strides[f.axes]) + run * strides[f.axes]
    return rows


@triton.jit
def _columns(f: tl.constexpr, kind: tl.constexpr, at: tl.constexpr):
    return (_first(f, kind, at) + tl.arange(0, _part(f, kind, at)))[None, :]


@triton.jit
def _gather(rows, stride, exists, f: tl.constexpr, kind: tl.constexpr, at: tl.constexpr, some: tl.constexpr):
    """Load one part of the features of rows, which are given by pointers."""
    columns = _columns(f, kind, at)
    places = rows + columns * stride
    if _beyond(f, kind, at):
        inside = columns < _size(f, kind)
        if some:
            inside = exists & inside
        found = tl.load(places, mask=inside, other=0.0)
    elif some:
        found = tl.load(places, mask=exists, other=0.0)
    else:
        found = tl.load(places)
    return found


@triton.jit
def _load_rows(rows, exists, stride, f: tl.constexpr, kind: tl.constexpr, some: tl.constexpr):
    """Load both parts of the features of rows, which are given by pointers: a column of them.

    With ``some``, those rows may be missing that don't exist.
    """
    first = _gather(rows, stride, exists, f, kind, 0, some)
    if _in_two(f, kind):
        second = _gather(rows, stride, exists, f, kind, 1, some)
    else:
        second = 0.0
    return first, second


@triton.jit
def load_queries(
    array, strides, head, start, i, exists, call,
    f: tl.constexpr, kind: tl.constexpr, some: tl.constexpr = True, packed: tl.constexpr = False,
):  # fmt: skip
    """Load rows of an array with positions of queries; see :func:`query_rows`. ``exists`` may be ``None``."""
    rows = query_rows(array, strides, head, start, i, call, f, packed)
    if exists is None:
        exists = i < head.q_len
    return _load_rows(rows, exists, strides[f.axes + 1], f, kind, some)


@triton.jit
def load_keys(
    base, strides, page, start, head, call,
    f: tl.constexpr, kind: tl.constexpr, block: tl.constexpr, some: tl.constexpr = True,
):  # fmt: skip
    """Load rows ``start``, a multiple of ``block``, to before ``start + block`` of k or v.

    ``base`` points to the batch element, ``page`` is the stride of pages; with ``some``, keys may be missing.
    """
    run = tl.arange(0, block)
    exists = (start + run < head.kv_len)[:, None]
    zero = tl.full((), 0, tl.int64)
    if f.page_size == 0:
        if f.wide:
            run = run + zero
        rows = base + (head.kv_start + start) * (zero + strides[f.axes]) + (run * strides[f.axes])[:, None]
    else:
        entry = call.strides.pages[3]
        if f.page_size % block == 0:
            number = tl.load(head.table + (start // f.page_size) * (zero + entry))
            rows = base + number * (zero + page) + (start % f.page_size) * (zero + strides[f.axes])
            if f.wide:
                run = run + zero
            rows = rows + (run * strides[f.axes])[:, None]
        else:
            run = start + run
            numbers = tl.load(head.table + (run // f.page_size) * (zero + entry), mask=run < head.kv_len, other=0)
            offsets = numbers * (zero + page) + (run % f.page_size) * (zero + strides[f.axes])
            rows = base + offsets[:, None]
    return _load_rows(rows, exists, strides[f.axes + 1], f, kind, some)


@triton.jit
def _store_rows(rows, exists, stride, values, f: tl.constexpr, kind: tl.constexpr):
    """Write both parts of the features of rows, which are given by pointers."""
    for at in tl.static_range(2 if _in_two(f, kind) else 1):
        columns = _columns(f, kind, at)
        place = rows + columns * stride
        tl.store(place, values[at].to(rows.dtype.element_ty), mask=exists & (columns < _size(f, kind)))


@triton.jit
def store_queries(
    array, strides, head, start, i, values, factor, call,
    f: tl.constexpr, kind: tl.constexpr, packed: tl.constexpr = False,
):  # fmt: skip
    """Write values, times a factor if there is one, to rows of an array with positions of queries."""
    rows = query_rows(array, strides, head, start, i, call, f, packed)
    if factor is not None:
        values = values[0] * factor, values[1] * factor
    _store_rows(rows, i < head.q_len, strides[f.axes + 1], values, f, kind)


@triton.jit
def store_keys(base, strides, j, exists, values, f: tl.constexpr, kind: tl.constexpr):
    """Write rows of an array with positions of keys: a column of them, those that exist."""
    rows = base + (j + tl.full((), 0, tl.int64)) * strides[f.axes]
    _store_rows(rows, exists, strides[f.axes + 1], values, f, kind)


@triton.jit
def no_sums(rows: tl.constexpr, f: tl.constexpr, kind: tl.constexpr):
    """Return sums of nothing, in parts like features; a column stands for a part that there isn't."""
    first = tl.zeros((rows, _part(f, kind, 0)), kept_type(f))
    if _in_two(f, kind):
        second = tl.zeros((rows, _part(f, kind, 1)), kept_type(f))
    else:
        second = tl.zeros((rows, 1), kept_type(f))
    return first, second


@triton.jit
def products(rows, columns, f: tl.constexpr, kind: tl.constexpr):
    """Multiply all of some rows with all of others, along their features."""
    shape: tl.constexpr = (rows[0].shape[0], columns[0].shape[0])
    total = product(rows[0], tl.trans(columns[0]), tl.zeros(shape, kept_type(f)), f)
    if _in_two(f, kind):
        total = product(rows[1], tl.trans(columns[1]), total, f)
    return total


@triton.jit
def added(sums, weights, rows, f: tl.constexpr, kind: tl.constexpr, fade=None):
    """Add the product of a matrix with the features of rows to the sums, which may fade before."""
    first = sums[0]
    second = sums[1]
    if fade is not None:
        first = first * fade
    first = product(weights, rows[0], first, f)
    if _in_two(f, kind):
        if fade is not None:
            second = second * fade
        second = product(weights, rows[1], second, f)
    return first, second


@triton.jit
def product(a, b, total, f: tl.constexpr):
    """Return ``total + a @ b``."""
    return matrix_product(a, b, total, field(f, "precision"), kept_type(f), f.upcast)
