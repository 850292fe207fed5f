"""A ring of chunks of long rows in shared memory, for kernels that go through each row twice.

One program per multiprocessor has many rows, one after the other. In each step it works on a chunk of one row for the
first time, and on a chunk of the row before for the second time, and has one more copied to the ring: so reading,
writing and arithmetic go on side by side. A chunk stays in the ring for ``kept`` steps. That is as many as a row has
chunks, if there is room, and it is read once; of a longer row, those that have left are copied again, from the L2
cache, after those that are still there: of five chunks, of which three are kept, the order is 2 3 4 0 1.

Programs begin with different chunks of their rows, so that they don't all read the same banks of memory at a time.

:mod:`~einops_fast.backends.triton.ring_gradient` has one row at a time, and needs less room for it.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, assignment"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.attention.loading import counted
from einops_fast.backends.triton.indexing import field

__all__ = [
    "advanced",
    "chunk_at",
    "chunks_of",
    "columns_of",
    "copy",
    "earlier",
    "filled",
    "next_chunks",
    "ring_of",
    "row_place",
    "store_chunk",
    "there",
]


@gluon.jit
def row_place(array, row, sizes, strides, t: gl.constexpr):
    """Where a row begins; ``strides`` are in vectors, so that the compiler sees that the place is aligned."""
    return array + counted(row, sizes, strides, 0, field(t, "axes")) * field(t, "vector")


@gluon.jit
def _vectors_of(chunk, t: gl.constexpr):
    """The number in its row of each vector of a chunk."""
    layout: gl.constexpr = field(t, "layout")
    threads: gl.constexpr = field(t, "threads")
    run = gl.arange(0, field(t, "run"), layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    thread = gl.arange(0, threads, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    return (chunk * field(t, "vectors") + run[:, None] * threads + thread[None, :])[:, :, None]


@gluon.jit
def columns_of(chunk, t: gl.constexpr):
    """The column of each element of a chunk."""
    layout: gl.constexpr = field(t, "layout")
    vector: gl.constexpr = field(t, "vector")
    inside = gl.arange(0, vector, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    return _vectors_of(chunk, t) * vector + inside[None, None, :]


@gluon.jit
def there(chunk, vectors, t: gl.constexpr):
    """Which elements of a chunk the row has; it is made of whole vectors."""
    return _vectors_of(chunk, t) + gl.zeros([1, 1, field(t, "vector")], gl.int32, field(t, "layout")) < vectors


@gluon.jit
def ring_of(array, t: gl.constexpr):
    """Shared memory for chunks of an array."""
    shape: gl.constexpr = [field(t, "slots"), field(t, "run"), field(t, "threads"), field(t, "vector")]
    return gl.allocate_shared_memory(array.dtype.element_ty, shape, field(t, "shared"))


@gluon.jit
def chunks_of(vectors, t: gl.constexpr):
    """How many chunks a row has."""
    return (vectors + field(t, "vectors") - 1) // field(t, "vectors")


@gluon.jit
def chunk_at(step, chunks, t: gl.constexpr):
    """The chunk of its row that a program works on in a step."""
    if field(t, "turned"):
        step += gl.program_id(0) % chunks
        step = gl.where(step < chunks, step, step - chunks)
    return step


@gluon.jit
def earlier(step, chunks, kept):
    """The step in which what a step is about in the row before was new."""
    return gl.where(step < kept, chunks - kept + step, step - kept)


@gluon.jit
def _copy(ring, array, row, step, slot, sizes, strides, vectors, t: gl.constexpr):
    chunk = chunk_at(step, chunks_of(vectors, t), t)
    place = row_place(array, row, sizes, strides, t) + columns_of(chunk, t)
    async_copy.async_copy_global_to_shared(ring.index(slot), place, mask=there(chunk, vectors, t))


@gluon.jit
def copy(ring, array, ahead, slot, sizes, strides, rows, vectors, t: gl.constexpr):
    """Have a chunk copied to the ring. ``ahead`` says which one: row and step."""
    row, step = ahead
    if row < rows:
        _copy(ring, array, row, step, slot, sizes, strides, vectors, t)


@gluon.jit
def _slot_again(number, t: gl.constexpr):
    """Where the chunks of a row that are copied again are: in the last slots."""
    return field(t, "slots") - field(t, "ahead") + number % field(t, "ahead")


@gluon.jit
def _copy_again(ring, array, row, step, kept, sizes, strides, vectors, t: gl.constexpr):
    """Have a chunk of the row before copied again, if one is wanted that many steps later that it's there by then."""
    number = step + field(t, "ahead") - kept
    if (row >= 0) & (number >= 0) & (number + kept < chunks_of(vectors, t)):
        _copy(ring, array, row, number, _slot_again(number, t), sizes, strides, vectors, t)


@gluon.jit
def advanced(ahead, chunks):
    """What is copied after this."""
    row, step = ahead
    last = step + 1 == chunks
    return gl.where(last, row + gl.num_programs(0), row), gl.where(last, 0, step + 1)


@gluon.jit
def _next_slot(slot, kept, t: gl.constexpr):
    """As many slots are used as chunks are kept, or on their way for the first time."""
    return gl.where(slot + 1 == kept + field(t, "ahead"), 0, slot + 1)


@gluon.jit
def _taken(ring, slot, freed, step, kept, t: gl.constexpr):
    """The chunks that a step is about: the new one, and that of the row before; ``freed`` is the slot that is left."""
    new = ring.index(slot).load(field(t, "layout"))
    old = gl.where(step < kept, freed, _slot_again(gl.maximum(step - kept, 0), t))
    return new, ring.index(old).load(field(t, "layout"))


@gluon.jit
def filled(ring, array, sizes, strides, rows, vectors, t: gl.constexpr):
    """Have the first chunks copied. Returns what is copied after these."""
    ahead = gl.program_id(0), 0
    for at in range(field(t, "ahead")):
        copy(ring, array, ahead, at, sizes, strides, rows, vectors, t)
        async_copy.commit_group()
        ahead = advanced(ahead, chunks_of(vectors, t))
    return ahead


@gluon.jit
def next_chunks(
    ring, array, ahead, slot, freed, before, step, kept, sizes, strides, rows, vectors, t: gl.constexpr
):  # fmt: skip
    """The chunks of a step, when they are there: a new one, and one of the row before. Others are ordered.

    Returns also what is copied after these, and the next step's slots: the new chunk's, and the one that is left.
    """
    # The copies of each step are a group, also if there are none.
    async_copy.wait_group(field(t, "ahead") - 1)
    new, old = _taken(ring, slot, freed, step, kept, t)
    copy(ring, array, ahead, freed, sizes, strides, rows, vectors, t)
    _copy_again(ring, array, before, step, kept, sizes, strides, vectors, t)
    async_copy.commit_group()
    return new, old, advanced(ahead, chunks_of(vectors, t)), _next_slot(slot, kept, t), _next_slot(freed, kept, t)


@gluon.jit
def store_chunk(place, value, chunk, vectors, t: gl.constexpr):
    """Write a chunk of the row that begins at ``place``."""
    place += columns_of(chunk, t)
    gl.store(place, value.to(place.dtype.element_ty), mask=there(chunk, vectors, t))
