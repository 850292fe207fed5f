"""Steps for small pairs of many operands, chosen in less time than it takes to price all ways to contract a pair.

A copy of a few elements takes no longer than the call that makes it, so the cheapest GEMM is hardly cheaper than one
that reads each operand in the order in which it lies, as far as that makes a matrix.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from einops_fast.planning.layout import Term, as_one, readable_by_gemm
from einops_fast.planning.roles import Roles
from einops_fast.planning.steps import AS_IS, Arrange, Gemm, Native

_TINY, _TINY_ALONG_ONE = 64, 256
"""Multiply-adds up to which NumPy's loops take no longer than a GEMM, and where one operand has all labels."""

_SHORT, _SHORT_VECTOR = 2, 8
"""The least sum that is left to a GEMM, and to one of a vector."""

_SMALL = 1 << 12
"""Elements that are copied in the time of a call."""


def small_step(left: Term, right: Term, keep: list[str], output: str, sizes: Mapping[str, int]) -> Gemm | Native | None:
    """Return the step that contracts two terms to these labels; ``None`` where ways to do that have to be priced."""
    if left.size > _SMALL or right.size > _SMALL:
        return None
    if output:
        keep.sort(key=output.find)
    one, two, kept = left.labels, right.labels, "".join(keep)
    # Most pairs have more elements than these, of one operand alone.
    if left.size <= _TINY_ALONG_ONE and right.size <= _TINY_ALONG_ONE and not (left.unnamed or right.unnamed):
        full = left.size * prod([sizes[label] for label in two if label not in one])
        if full <= _TINY or (full <= _TINY_ALONG_ONE and full in (left.size, right.size)):
            if len(one) == len(two) == len(kept) == 2 and one[0] == two[1]:
                left, right, one, two = right, left, two, one
            if len(one) == len(two) == len(kept) == 2 and one[1] == two[0] and one[1] not in kept:
                m, k, n = [sizes[label] for label in one + two[1]]
                return Gemm((left.slot, right.slot), one[0] + two[1], (m, n), AS_IS, AS_IS, (), m, n, k)
            shape = tuple([sizes[label] for label in keep])
            return Native.of((left.slot, right.slot), (one, two), kept, shape, "its elements are few", full, True)
    roles = Roles(left, right, kept, sizes)
    batch, rows, columns, contracted = roles.batch, roles.rows, roles.columns, roles.contracted
    labels, (stack, m, n, k) = batch + rows + columns, roles.product
    alone = len(one) + len(two) > len(labels) + len(batch) + 2 * len(contracted)
    short = k < (_SHORT if rows and columns else _SHORT_VECTOR)
    if alone or short or stack * m * n > _SMALL:
        return None
    turn_left, turn_right = left.fastest in rows, right.fastest in contracted
    how_left = _matrices(left, (batch, contracted, rows) if turn_left else (batch, rows, contracted),
                         (stack, k, m) if turn_left else (stack, m, k), sizes)  # fmt: skip
    how_right = _matrices(right, (batch, columns, contracted) if turn_right else (batch, contracted, columns),
                          (stack, n, k) if turn_right else (stack, k, n), sizes)  # fmt: skip
    stacks, shape = (stack,) if batch else (), roles.shape(labels)
    return Gemm(roles.slots, labels, shape, how_left, how_right, stacks, m, n, k, turn_left, turn_right)


def _matrices(term: Term, groups: tuple[str, str, str], extents: tuple[int, ...], sizes: Mapping[str, int]) -> Arrange:
    """Return how a term is seen as a stack of matrices: the labels of the stack, of what comes next, and what last."""
    batch, outer, inner = groups
    shape, own = extents if batch else extents[1:], term.labels
    if term.in_order and 1 not in term.shape:  # neighbours merge
        lies = batch in own and outer in own and inner in own and not own.endswith(batch or ",")
    else:
        (_, stack), (m, first), (n, last) = [as_one(labels, term.strides, sizes) for labels in groups]
        lies = not (stack is None or first is None or last is None) and readable_by_gemm(m, first, n, last)
    return term.seen(
        batch + outer + inner, shape, "" if lies else "its axes don't merge to a matrix that a GEMM can read"
    )
