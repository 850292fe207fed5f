"""What one kernel makes of three and more operands: chains of matrix products, and products with a factor.

In a chain, such as ``ai,ij,jk,kb->ab``, it multiplies a few rows by the small matrices in the middle, one after the
other, and then by the last matrix, and writes nothing but the result. Of three operands, two that are multiplied
element by element may make one operand of a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from einops_fast.planning.layout import Term
from einops_fast.planning.steps import Loop
from einops_fast.record import Record

MOST_MATRICES = 5
"""Operands of a chain: the kernel repeats its code for each."""

_MOST_CONTRACTED = {2: 128, 4: 32, 8: 32}
"""Extent of what two neighbours share, by bytes of an element: a tile has it whole. Without tensor cores, the
products are repeated one by one in the kernel's code."""

_LEAST_EXTENT = 16
"""A matrix product of tiles has no shorter sides."""


def chain_order(inputs: Sequence[str], output: str) -> tuple[int, ...] | None:
    """The positions of the operands along the chain that they form; ``None`` if they don't form one.

    They do if each shares the labels to be summed over with its neighbours only, and the ones at both ends have
    labels of the result to themselves. The result's last label is at the end where that is possible.

    >>> chain_order(["jk", "ai", "kb", "ij"], "ab")
    (1, 3, 0, 2)
    """
    if not 3 <= len(inputs) <= MOST_MATRICES or any(len(set(term)) < len(term) for term in inputs):
        return None
    neighbours: list[set[int]] = [set() for _ in inputs]
    for label in set("".join(inputs)) - set(output):
        holders = [at for at, term in enumerate(inputs) if label in term]
        if len(holders) != 2:
            return None
        neighbours[holders[0]].add(holders[1])
        neighbours[holders[1]].add(holders[0])
    ends = [at for at, found in enumerate(neighbours) if len(found) == 1]
    if len(ends) != 2 or any(not 1 <= len(found) <= 2 for found in neighbours):
        return None
    order = ends[:1]
    while len(order) < len(inputs):
        onward = neighbours[order[-1]].difference(order)
        if not onward:
            return None
        order += onward
    own = [
        [label for label in output if [at for at, term in enumerate(inputs) if label in term] == [end]] for end in ends
    ]
    if not all(own):
        return None
    return tuple(order[::-1] if output[-1] in own[0] else order)


class Chain(Record):
    """The loops of a step whose operands are a chain, by role."""

    batch: tuple[Loop, ...]  # axes of the result that aren't rows or columns
    rows: tuple[Loop, ...]  # axes of the first operand and the result only
    columns: tuple[Loop, ...]  # axes of the last operand and the result only
    links: tuple[tuple[Loop, ...], ...]  # for each two neighbours, the axes that they share and that are summed over

    @property
    def depths(self) -> tuple[int, ...]:
        """Extent of each link."""
        return tuple([_extent(link) for link in self.links])

    @property
    def sides(self) -> tuple[int, int, int]:
        """Extents of batch, rows and columns."""
        return _extent(self.batch), _extent(self.rows), _extent(self.columns)

    def fits(self, item: int) -> bool:
        """Whether what neighbours share fits in a tile, where an element has so many bytes."""
        return max(self.depths) <= _MOST_CONTRACTED[item]


def chain_of(loops: Sequence[Loop]) -> Chain | None:
    """The roles of the loops of a step whose operands are a chain, in this order; ``None`` if they aren't."""
    if not loops or not 3 <= len(loops[0].strides) <= MOST_MATRICES:
        return None
    last = len(loops[0].strides) - 1
    batch: list[Loop] = []
    rows: list[Loop] = []
    columns: list[Loop] = []
    links: list[list[Loop]] = [[] for _ in range(last)]
    for loop in loops:
        if loop.size == 1:
            if loop.kept:
                batch.append(loop)
            continue
        holders = [at for at, stride in enumerate(loop.strides) if stride]
        if loop.kept:
            (rows if holders == [0] else columns if holders == [last] else batch).append(loop)
        elif not holders or holders[-1] - holders[0] > 1:
            return None
        else:
            links[min(holders[0], last - 1)].append(loop)
    if not (rows and columns and all(links)):
        return None
    return Chain(tuple(batch), tuple(rows), tuple(columns), tuple(map(tuple, links)))


def products(loops: Sequence[Loop]) -> int:
    """Multiply-adds of a step: those of a chain one after the other, else one for each position of its loops."""
    chain = chain_of(loops)
    if chain is None:
        return _extent(loops)
    batch, rows, columns = chain.sides
    return batch * rows * (sum(a * b for a, b in pairwise(chain.depths)) + chain.depths[-1] * columns)


def padded_extent(extent: int) -> int:
    """The extent of a tile that holds so much: a power of two.

    >>> padded_extent(3), padded_extent(72)
    (16, 128)
    """
    return max(_LEAST_EXTENT, 1 << (extent - 1).bit_length())


def _extent(loops: Sequence[Loop]) -> int:
    return prod(loop.size for loop in loops)


def right_operands(inputs: Sequence[str], output: str) -> tuple[int, ...]:
    """For which of three operands the other two, multiplied element by element, make a left operand: their positions.

    >>> right_operands(("bi", "oij", "bj"), "bo"), right_operands(("ki", "k", "kj"), "ij")
    ((1,), (0, 2))
    """
    if len(inputs) != 3 or any(len(set(term)) < len(term) for term in inputs):
        return ()
    return tuple(right for right in range(3) if _is_right(inputs, right, set(output)))


def _is_right(inputs: Sequence[str], right: int, kept: set[str]) -> bool:
    columns = set(inputs[right])
    left = set().union(*(inputs[at] for at in range(3) if at != right))
    contracted, summed_alone = (left & columns) - kept, (left ^ columns) - kept
    return bool(contracted and left - columns and columns - left and not summed_alone)


def with_factor(terms: Sequence[Term], at: int) -> tuple[Term, Term, Term]:
    """A left operand, the right one and the left one's factor, of three terms.

    The one that is contiguous along the same contracted axis as the right operand is the left one: it's gathered like
    that. Next comes one that has that axis, and then the larger one.
    """
    right, others = terms[at], [term for index, term in enumerate(terms) if index != at]
    others.sort(key=lambda term: (term.fastest == right.fastest, right.fastest in term.labels, term.size))
    factor, left = others
    return left, right, factor
