"""Device functions for kernels that work along rows: where rows and their elements are, and which exist.

A tile has rows along its first axis and columns along its second.

*Pieces*: a tile has a power of two of columns. In one tile, a row of 5000 elements would have 8192, of which a third is
nothing: registers and instructions that load no bytes. Five tiles of 1024 have hardly more than the row. All pieces
have the same shape, and so the same threads at the same places; they are added up place by place before threads
exchange anything.

*Cut rows* begin at odd places, and are read in whole vectors: an edge up to the first even address, a body, and an
edge. A program has one such row, or a part of its body; ``f.vector`` is how many neighbours a vector has, and 0 if rows
aren't cut. Then the body is the whole row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.offsets import counted, kept_type, multiple


@triton.jit
def in_units(number, f: tl.constexpr):
    """The same number of columns, or of elements before a row, of which ``f.unit`` go together."""
    return multiple(number, f.unit)


@triton.jit
def in_runs(number, f: tl.constexpr):
    """The same number of rows, or of elements between them, of which ``f.across`` go together in all arrays."""
    return multiple(number, f.across)


@triton.jit
def own_rows(rows, columns, f: tl.constexpr, together: tl.constexpr):
    """The rows of a program, which of these there are, and the number of columns."""
    columns = in_units(columns, f)
    rows = in_runs(rows, f)
    row = tl.program_id(0) * together + tl.arange(0, together)
    return row, row < rows, columns


@triton.jit
def row_place(row, sizes, strides, f: tl.constexpr):
    """The offset of each row, in 64 bits."""
    return counted(row, sizes, strides, 0, f.axes, f.across)


@triton.jit
def element_place(rows, column, strides, f: tl.constexpr):
    """The offset of each element of a tile, from the offsets of its rows."""
    rows = in_units(rows, f)
    if f.wide:
        column = column.to(tl.int64)
    return rows[:, None] + (column * in_runs(strides[f.axes], f))[None, :]


@triton.jit
def load_tile(array, rows, column, strides, exists, other, f: tl.constexpr):
    """A tile in the type that is computed in, with ``other`` where nothing exists."""
    place = element_place(rows, column, strides, f)
    return tl.load(array + place, mask=exists, other=other).to(kept_type(f))


@triton.jit
def load_parameter(array, strides, column, columns):
    """One row of what all rows share, in its own type, with a first axis as tiles have it; anything if there is none.

    A tile of one row is laid out over threads in the same way, and needn't be exchanged between these.
    """
    found = column[None, :]
    if array is not None:
        found = tl.load(array + found * strides[0], mask=found < columns, other=0)
    return found


@triton.jit
def store_tile(array, value, rows, column, strides, exists, f: tl.constexpr):
    """Write a tile in the array's own type."""
    place = element_place(rows, column, strides, f)
    tl.store(array + place, value.to(array.dtype.element_ty), mask=exists)


@triton.jit
def last_block(begin, end, block: tl.constexpr):
    """Where the last of the blocks of a part begins."""
    return begin + (end - begin - 1) // block * block


@triton.jit
def lowest(f: tl.constexpr):
    """The least number that isn't infinite, as a scalar; minus it, any other one has a difference."""
    if f.double:
        found = tl.full((), -1.7976931348623157e308, tl.float64)
    else:
        found = tl.full((), -3.4028234663852886e38, tl.float32)
    return found


@triton.jit
def exponential(value):
    """``exp``. Of float32, what is below the least normal number is 0: the other way takes three more instructions."""
    if value.dtype == tl.float64:
        found = tl.exp(value)
    else:
        found = tl.exp2(value * 1.4426950408889634)
    return found


@triton.jit
def exponentials(score, most, total):
    """One more tile for maxima and sums of exponentials of each group of neighbours in a row, which a thread has alone.

    This is the formula of Milakov and Gimelshein (2018, https://arxiv.org/abs/1805.02867). The maxima begin with
    :func:`lowest`: infinities would have no difference.
    """
    group: tl.constexpr = score.shape[1] // most.shape[1]
    groups = score.reshape(most.shape[0], most.shape[1], group)
    both = tl.maximum(most, tl.max(groups, 2))
    total = total * exponential(most - both) + tl.sum(exponential(groups - both[:, :, None]), 2)
    return both, total


@triton.jit
def exponentials_of_rows(most, total):
    """Those of whole rows."""
    of_rows = tl.max(most, 1)
    return of_rows, tl.sum(total * tl.exp(most - of_rows[:, None]), 1)


@triton.jit
def _philox(seed, place):
    """Four words for each group of four elements, of which ``place`` is one: Philox 4x32 of seven rounds.

    That is the fewest with which it passes all tests of TestU01 (Salmon et al., 2011,
    https://doi.org/10.1145/2063384.2063405).
    """
    group = place >> 2
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c0 = group.to(tl.uint32)
    c1 = (group >> 32).to(tl.uint32)
    c2 = c0 * 0
    c3 = c2
    for _ in tl.static_range(7):
        # Both halves of a product are one instruction's.
        product = c2.to(tl.uint64) * 0xCD9E8D57
        product_before = c0.to(tl.uint64) * 0xD2511F53
        c0 = (product >> 32).to(tl.uint32) ^ c1 ^ k0
        c1 = product.to(tl.uint32)
        c2 = (product_before >> 32).to(tl.uint32) ^ c3 ^ k1
        c3 = product_before.to(tl.uint32)
        k0 = tl.add(k0, 0x9E3779B9, sanitize_overflow=False)
        k1 = tl.add(k1, 0xBB67AE85, sanitize_overflow=False)
    return c0, c1, c2, c3


@triton.jit
def _word(place, seed):
    """The word that decides over the element of each number: Philox makes four at a time."""
    first, second, third, fourth = _philox(seed, place)
    lane = place & 3
    return tl.where(lane < 2, tl.where(lane == 0, first, second), tl.where(lane == 2, third, fourth))


@triton.jit
def _kept(word, drop):
    return word.to(tl.int32, bitcast=True) > drop[0]


@triton.jit
def kept_tile(rows, start, strides, seed, drop, f: tl.constexpr, block: tl.constexpr):
    """Which elements of a tile from column ``start`` on aren't dropped.

    The random words are numbered by the elements' places in C order, which ``rows`` and ``strides`` give: the same ones
    are dropped again whatever the strides of an array are.
    ``drop`` is from :func:`~einops_fast.backends.triton.rows.rows.dropping`.
    """
    number = tl.load(seed)
    if f.fours:
        # Four neighbours are one group, and a tile begins with one.
        place = rows[:, None] + (start + 4 * tl.arange(0, block // 4))[None, :]
        first, second, third, fourth = _philox(number, place)
        word = tl.join(tl.join(first, third), tl.join(second, fourth)).reshape(first.shape[0], block)
    else:
        word = _word(element_place(rows, start + tl.arange(0, block), strides, f), number)
    return _kept(word, drop)


@triton.jit
def kept_elements(rows, column, strides, seed, drop, f: tl.constexpr):
    """The same of a tile with these columns.

    Where rows begin at multiples of four, and a thread has neighbours, what they have in common is computed once: their
    columns are constants but for the number of the thread, and the compiler sees it.
    """
    number = tl.load(seed)
    if f.fours:
        first, second, third, fourth = _philox(number, rows[:, None] + (column >> 2 << 2)[None, :])
        lane = (column & 3)[None, :]
        word = tl.where(lane < 2, tl.where(lane == 0, first, second), tl.where(lane == 2, third, fourth))
    else:
        word = _word(element_place(rows, column, strides, f), number)
    return _kept(word, drop)


@triton.jit
def dropped_tile(value, kept, drop, f: tl.constexpr):
    """A tile with some elements 0 and the others made up for it."""
    if f.double:
        rest: tl.constexpr = 1.0 - f.drop
        value = value / rest
    else:
        value = value * drop[1]
    return tl.where(kept, value, 0.0)


@triton.jit
def piece_columns(at, block: tl.constexpr):
    """The columns of a piece."""
    return at * block + tl.arange(0, block)


@triton.jit
def pieces_exist(there, columns, block: tl.constexpr, pieces: tl.constexpr):
    """Which elements of each piece there are, of rows of which some are ``there``."""
    exist = ()
    for at in tl.static_range(pieces):
        exist += (there[:, None] & (piece_columns(at, block) < columns)[None, :],)
    return exist


@triton.jit
def load_parameters(array, strides, columns, block: tl.constexpr, pieces: tl.constexpr):
    """The pieces of what all rows share, see :func:`load_parameter`."""
    found = ()
    for at in tl.static_range(pieces):
        found += (load_parameter(array, strides, piece_columns(at, block), columns),)
    return found


@triton.jit
def total_of(tiles):
    """The sum of tiles, place by place."""
    total = tiles[0]
    for at in tl.static_range(1, len(tiles)):
        total += tiles[at]
    return total


@triton.jit
def most_of(tiles):
    """The largest of the elements of tiles at each place."""
    most = tiles[0]
    for at in tl.static_range(1, len(tiles)):
        most = tl.maximum(most, tiles[at])
    return most


@triton.jit
def _both_sums(first, second, more_first, more_second):
    return first + more_first, second + more_second


@triton.jit
def sums_of_two(first, second):
    """The sums of the rows of two tiles. Threads exchange both at once, and wait for each other once."""
    return tl.reduce((first, second), 1, _both_sums)


@triton.jit
def cut_row(place, columns, f: tl.constexpr):
    """How many columns are before the first address that isn't odd, and from there on in whole vectors."""
    if f.vector > 0:
        # Of a tile's only row.
        begin = tl.sum(place, 0)
        head = min((f.vector - begin % f.vector) % f.vector, columns).to(tl.int32)
        body = (columns - head) // f.vector * f.vector
    else:
        head = columns * 0
        body = columns
    return head, body


@triton.jit
def body_place(place, head, f: tl.constexpr):
    """Where the bodies of rows begin."""
    if f.vector > 0:
        # Where that is rounded up is the same, and the compiler sees what it is a multiple of.
        place = (place + head + (f.vector - 1)) // f.vector * f.vector
    return place


@triton.jit
def within(column, end, f: tl.constexpr):
    """Which columns of a body are before ``end``; the same for those that are read at once."""
    if f.vector > 0:
        column = column // f.vector * f.vector
    return (column < end)[None, :]


@triton.jit
def edges(head, body, columns, f: tl.constexpr):
    """Columns on both sides of the body, and which of them there are."""
    run = tl.arange(0, 2 * f.vector)
    column = tl.where(run < f.vector, run, head + body + run - f.vector)
    return column, (tl.where(run < f.vector, run < head, column < columns))[None, :]
