"""What the thread blocks of a cluster tell each other, through the shared memory of each (Hopper and later).

A note is a pair of numbers, which a warp sends to every thread block's shared memory. A barrier there counts the bytes
that arrive in a step (``st.async`` and ``mbarrier`` of PTX): so nobody waits for anything but notes, which a barrier of
the whole cluster would (its release waits for all that was written to memory before).

Steps have two places for notes, and two barriers, by turns. Whoever tells something in a step has heard all notes of
the step before; these were told after those of the step before that had been heard everywhere, so that their place is
free.

These functions are PTX: Gluon knows neither the instructions nor shared memory of another thread block.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_BARRIER = gl.constexpr(8)
"""Bytes of a barrier."""

_NOTE = gl.constexpr(8)
"""Bytes of a note."""


@triton.constexpr_function
def _beginning(t):
    """Shared memory for two steps, with barriers at which one thread arrives; and say that this thread is here."""
    return f"""{{
        .shared .align 16 .b8 notes[{2 * _BARRIER.value + 2 * _NOTE.value * t.parts}];
        .reg .pred first; .reg .u32 thread;
        mov.u32 $0, notes;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        @first mbarrier.init.shared::cta.b64 [$0], 1;
        @first mbarrier.init.shared::cta.b64 [$0 + {_BARRIER.value}], 1;
        fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.relaxed.aligned;
    }}"""


@triton.constexpr_function
def _telling(t):
    """One thread expects all notes; each lane of a warp sends one to one thread block."""
    return f"""{{
        .reg .pred there; .reg .u32 index, place, barrier;
        mov.u32 index, %tid.x;
        setp.eq.u32 there, index, 0;
        @there mbarrier.arrive.expect_tx.shared::cta.b64 _, [$1], {_NOTE.value * t.parts};
        mov.u32 index, %laneid;
        setp.lt.u32 there, index, {t.ctas};
        mapa.shared::cluster.u32 barrier, $1, index;
        mapa.shared::cluster.u32 place, $2, index;
        @there st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [place], {{$3, $4}}, [barrier];
        mov.u32 $0, 0;
    }}"""


@gluon.jit
def notes_here(t: gl.constexpr):
    """Where notes are: at the same place in all thread blocks. Call it once, and then :func:`meet`."""
    return gl.inline_asm_elementwise(_beginning(t), "=&r,r", [0], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def meet(notes):
    """Wait until all thread blocks of the cluster have a place for notes."""
    gl.inline_asm_elementwise(
        "barrier.cluster.wait.acquire.aligned; mov.b32 $0, $1;", "=r,r", [notes], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _place(notes, step, t: gl.constexpr):
    """Where the notes of a step are."""
    return notes + 2 * _BARRIER + (step & 1) * (_NOTE * t.parts)


@gluon.jit
def tell(notes, step, number, first, second, t: gl.constexpr):
    """Send what each part has to tell to all thread blocks: two numbers, which all threads of its warp have."""
    place = _place(notes, step, t) + number * _NOTE
    barrier = notes + (step & 1) * _BARRIER
    gl.inline_asm_elementwise(
        _telling(t), "=r,r,r,r,r", [barrier, place, first, second], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def heard(notes, step, t: gl.constexpr):
    """What all parts have told in a step: two numbers each, in every thread block; anything in step -1.

    All of these are there, since waiting for the phase before the first one doesn't take any time.
    """
    gl.inline_asm_elementwise(
        """{
            .reg .pred there;
            again:
            mbarrier.try_wait.parity.shared::cta.b64 there, [$1], $2;
            @!there bra.uni again;
            mov.u32 $0, 0;
        }""",
        "=r,r,r", [notes + (step & 1) * _BARRIER, (step >> 1) & 1], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip
    place = _place(notes, step, t) + gl.arange(0, t.parts, layout=t.everywhere) * _NOTE
    return gl.inline_asm_elementwise(
        "ld.shared.v2.b32 {$0, $1}, [$2];", "=r,=r,r", [place], dtype=(gl.float32, gl.float32), is_pure=False, pack=1
    )


@gluon.jit
def again(value):
    """A tile as it was read, but for all that the compiler knows something else.

    If numbers of 16 bits are wanted again, the compiler rather keeps what was made of them, in twice as many registers,
    than to convert them once more.
    """
    if value.dtype == gl.uint32:
        value = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], value.dtype, is_pure=False, pack=1)
    elif value.dtype.primitive_bitwidth == 16:
        value = gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [value], value.dtype, is_pure=False, pack=2)
    return value
