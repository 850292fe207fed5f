"""Rows that begin at odd places, read in whole vectors: an edge up to the first even address, a body, and an edge.

A program has one such row, or a part of its body; ``f.vector`` is how many neighbours a vector has, and 0 if rows
aren't cut. Then the body is the whole row.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

from einops_fast.backends.triton.device.indexing import field

__all__ = ["body_place", "cut_row", "edges", "within"]


@triton.jit
def cut_row(place, columns, f: tl.constexpr):
    """How many columns are before the first address that isn't odd, and from there on in whole vectors."""
    vector: tl.constexpr = field(f, "vector")
    if vector > 0:
        # Of a tile's only row.
        begin = tl.sum(place, 0)
        head = min((vector - begin % vector) % vector, columns).to(tl.int32)
        body = (columns - head) // vector * vector
    else:
        head = columns * 0
        body = columns
    return head, body


@triton.jit
def body_place(place, head, f: tl.constexpr):
    """Where the bodies of rows begin."""
    if field(f, "vector") > 0:
        # Where that is rounded up is the same, and the compiler sees what it is a multiple of.
        place = (place + head + (field(f, "vector") - 1)) // field(f, "vector") * field(f, "vector")
    return place


@triton.jit
def within(column, end, f: tl.constexpr):
    """Which columns of a body are before ``end``; the same for those that are read at once."""
    if field(f, "vector") > 0:
        column = column // field(f, "vector") * field(f, "vector")
    return (column < end)[None, :]


@triton.jit
def edges(head, body, columns, f: tl.constexpr):
    """Columns on both sides of the body, and which of them there are."""
    vector: tl.constexpr = field(f, "vector")
    run = tl.arange(0, 2 * vector)
    column = tl.where(run < vector, run, head + body + run - vector)
    return column, (tl.where(run < vector, run < head, column < columns))[None, :]
