"""Steps for small pairs of many operands, chosen in less time than it takes to price all ways to contract a pair.

A copy of a few elements takes no longer than the call that makes it, so the cheapest GEMM is hardly cheaper than one
that reads each operand in the order in which it lies, as far as that makes a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from einops_fast.planning.layout import Term, arranged, as_one, readable_by_gemm
from einops_fast.planning.steps import AS_IS, Arrange, Gemm, Native

__all__ = ["small_step"]

_TINY, _TINY_ALONG_ONE = 64, 256
"""Multiply-adds up to which NumPy's loops take no longer than a GEMM, and where one operand has all labels."""

_SHORT, _SHORT_VECTOR = 2, 8
"""The least sum that is left to a GEMM, and to one of a vector."""

_SMALL = 1 << 12
"""Elements that are copied in the time of a call."""


def small_step(left: Term, right: Term, keep: list[str], output: str, sizes: Mapping[str, int]) -> Gemm | Native | None:
    """Return the step that contracts two terms; ``None`` where ways to do that have to be priced.

    Args:
        left, right: the terms.
        keep: labels that a later step needs.
        output: labels of the answer.
        sizes: extent of every label.
    """
    one, two = left.labels, right.labels
    own = [label for label in two if label not in one]
    full = left.size * prod([sizes[label] for label in own])
    if output:
        keep.sort(key=output.find)
    kept, along_one = "".join(keep), full <= _TINY_ALONG_ONE and full in (left.size, right.size)
    if (full <= _TINY or along_one) and not (left.unnamed or right.unnamed):
        if len(one) == len(two) == len(kept) == 2 and one[0] == two[1]:
            left, right, one, two = right, left, two, one
        if len(one) == len(two) == len(kept) == 2 and one[1] == two[0] and one[1] not in kept:
            m, k, n = [sizes[label] for label in one + two[1]]
            return Gemm((left.slot, right.slot), one[0] + two[1], (m, n), AS_IS, AS_IS, (), m, n, k)
        shape = tuple([sizes[label] for label in keep])
        return Native.of((left.slot, right.slot), (one, two), kept, shape, "its elements are few", full, True)
    batch = rows = columns = ""
    for label in kept:
        if label not in two:
            rows += label
        elif label in one:
            batch += label
        else:
            columns += label
    contracted = "".join([label for label in one if label in two and label not in kept])
    labels = batch + rows + columns
    shape = tuple([sizes[label] for label in labels])
    summed = len(own) > len(columns) or len(one) > len(batch + rows + contracted)
    short = prod([sizes[label] for label in contracted]) < (_SHORT if rows and columns else _SHORT_VECTOR)
    if summed or short or max(left.size, right.size, prod(shape)) > _SMALL:
        return None
    turn_left, turn_right = left.fastest in rows, right.fastest in contracted
    m, k, how_left = _matrices(left, batch, rows, contracted, turn_left, sizes)
    _, n, how_right = _matrices(right, batch, contracted, columns, turn_right, sizes)
    stack = (prod([sizes[label] for label in batch]),) if batch else ()
    return Gemm((left.slot, right.slot), labels, shape, how_left, how_right, stack, m, n, k, turn_left, turn_right)


def _matrices(
    term: Term, batch: str, rows: str, columns: str, turn: bool, sizes: Mapping[str, int]
) -> tuple[int, int, Arrange]:
    """Return the extents of a stack of matrices, and how a term is seen as that; ``turn``: as their transposes."""
    strides, places = term.strides, term.places
    (stack, step), (m, row), (n, column) = [as_one(labels, strides, sizes) for labels in (batch, rows, columns)]
    lies = None not in (step, row, column) and readable_by_gemm(m, row or 0, n, column or 0)
    order, shape = (batch + columns + rows, (n, m)) if turn else (batch + rows + columns, (m, n))
    perm = (*term.unnamed, *[places[label] for label in order])
    moves = "" if lies else "its axes don't merge to a matrix that a GEMM can read"
    return m, n, arranged(perm, term.shape, (stack, *shape) if batch else shape, moves)
