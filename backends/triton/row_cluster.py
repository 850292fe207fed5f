"""Long rows shared by clusters: several programs, side by side on the GPU, have a part of each row.

So a row is read once however long it is, up to what the registers or the shared memory of a cluster hold. In Triton's
terms, a program is the whole cluster, and its tiles' first axis, the parts of a row, is spread over its thread blocks
("CTAs"). The parts are counted like rows, by one more axis
(:func:`~einops_fast.backends.triton.cluster_tilings.in_parts`), so that the functions of the other kernels work on
these tiles, too.

What the thread blocks find out about their parts they tell each other in notes: words in memory, which stay in the L2
cache. A note holds the number of the step that it is from, so that it can be read as soon as it is written, without
waiting for anything else that its writer has written. A cluster's thread blocks run at the same time, so that none
waits in vain.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from einops_fast.backends.triton.indexing import field
from einops_fast.backends.triton.row_tiles import element_place, row_place

__all__ = [
    "copy_row",
    "heard",
    "heard_both",
    "meet",
    "next_slot",
    "parameter",
    "part_of_row",
    "parts_of",
    "ring_of",
    "sums_of_two",
    "tell",
    "with_parts",
]


@gluon.jit
def with_parts(sizes, t: gl.constexpr):
    """The sizes of the axes that count parts of rows: the rows' own, and how many parts each has, as a constant."""
    return sizes + (field(t, "ctas"),)


@gluon.jit
def parts_of(part, columns, t: gl.constexpr):
    """The number of each part, its columns, which of these there are, and how many."""
    layout: gl.constexpr = field(t, "layout")
    number = gl.arange(0, field(t, "ctas"), layout=gl.SliceLayout(1, layout))
    run = gl.arange(0, field(t, "block"), layout=gl.SliceLayout(0, layout))
    count = gl.minimum(gl.maximum(columns - number * part, 0), part)
    exists = (run[None, :] >= 0) & (number[:, None] >= 0)
    if field(t, "ragged"):
        exists = run[None, :] < count[:, None]
    return number, run, exists, count


@gluon.jit
def part_of_row(array, at, run, exists, sizes, strides, f: gl.constexpr):
    """A row's parts in the array's own type, 0 where there is nothing."""
    place = element_place(row_place(at, sizes, strides, f), run, strides, f)
    return gl.load(array + place, mask=exists, other=0.0)


@gluon.jit
def parameter(array, stride, number, part, run, exists):
    """What all rows share, in its own type; anything if there is none."""
    found = number[:, None]
    if array is not None:
        place = (number * part)[:, None] + run[None, :]
        found = gl.load(array + place * stride, mask=exists, other=0)
    return found


@gluon.jit
def _sum_two(first, second, more_first, more_second):
    return first + more_first, second + more_second


@gluon.jit
def sums_of_two(first, second):
    """The sum of each part of two tiles, which threads exchange together."""
    return gl.reduce((first, second), 1, _sum_two)


@gluon.jit
def _notes(notes, kind, step, t: gl.constexpr):
    """Where a cluster's notes of a kind and a step are."""
    slot = gl.program_id(0) * field(t, "steps") + (step & (field(t, "steps") - 1))
    return notes + (slot * 2 + kind) * field(t, "ctas")


@gluon.jit
def meet(notes, number, t: gl.constexpr):
    """Begin with empty notes, once all parts have come here."""
    for step in gl.static_range(field(t, "steps")):
        for kind in gl.static_range(2):
            gl.store(_notes(notes, kind, step, t) + number, number.to(gl.int64) * 0)
    gl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1;",
        "=r,r", [number], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def tell(notes, kind, step, number, value, t: gl.constexpr):
    """Write what each part has to tell the others in a step, of one of two kinds."""
    word = (number * 0 + step + 1).to(gl.int64) << 32 | (value.to(gl.int32, bitcast=True).to(gl.int64) & 0xFFFFFFFF)
    gl.atomic_xchg(_notes(notes, kind, step, t) + number, word, sem="relaxed", scope="gpu")


@gluon.jit
def _value(word):
    return word.to(gl.int32).to(gl.float32, bitcast=True)


@gluon.jit
def heard(notes, step, t: gl.constexpr):
    """What all parts have told of kind 0 in a step, in every one of them; zeros of step -1.

    A note is written over ``steps`` steps later. All threads have read it by then: for that, their thread block has to
    have told something two steps later, which it does after all of them have come there.
    """
    place = _notes(notes, 0, step, t) + gl.arange(0, field(t, "ctas"), layout=field(t, "everywhere"))
    word = gl.load(place, volatile=True)
    while gl.min((word >> 32).to(gl.int32), 0) <= step:
        word = gl.load(place, volatile=True)
    return _value(word)


@gluon.jit
def heard_both(notes, step, t: gl.constexpr):
    """The same of both kinds, which are waited for together."""
    place = _notes(notes, 0, step, t) + gl.arange(0, field(t, "ctas"), layout=field(t, "everywhere"))
    word = gl.load(place, volatile=True)
    other = gl.load(place + field(t, "ctas"), volatile=True)
    while gl.min((gl.minimum(word, other) >> 32).to(gl.int32), 0) <= step:
        word = gl.load(place, volatile=True)
        other = gl.load(place + field(t, "ctas"), volatile=True)
    return _value(word), _value(other)


@gluon.jit
def ring_of(array, t: gl.constexpr):
    """Shared memory for some rows of an array."""
    shape: gl.constexpr = [field(t, "slots"), field(t, "ctas"), field(t, "block")]
    return gl.allocate_shared_memory(array.dtype.element_ty, shape, field(t, "shared"))


@gluon.jit
def copy_row(ring, slot, array, row, rows, number, run, exists, sizes, strides, f: gl.constexpr, t: gl.constexpr):
    """Have a row copied to the ring, if there is one."""
    if row < rows:
        place = row_place(row * field(t, "ctas") + number, sizes, strides, f)
        async_copy.async_copy_global_to_shared(
            ring.index(slot), array + element_place(place, run, strides, f), mask=exists
        )


@gluon.jit
def next_slot(slot, t: gl.constexpr):
    """The slot after this one."""
    return gl.where(slot + 1 == field(t, "slots"), 0, slot + 1)
