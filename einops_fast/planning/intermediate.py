"""The axis order of an intermediate, in which the next step needs no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import prod

from einops_fast.planning.layout import Term
from einops_fast.planning.remaining import Remaining

__all__ = ["Intermediate"]

_AT_ONCE = 8
"""Neighbours that a kernel writes at once at best: elements of two bytes, 16 bytes at a time."""


class Intermediate:
    """What two terms are contracted to, before the last step.

    Args:
        left, right: the terms.
        keep: labels that a later step needs.
        partner: the term that it is probably multiplied with next: the one that shares most labels.
        output: labels of the answer.
        sizes: extent of every label.
    """

    def __init__(
        self,
        left: Term,
        right: Term,
        keep: Sequence[str],
        partner: Term | None,
        output: str,
        sizes: Mapping[str, int],
    ) -> None:
        self._left, self._right, self._keep, self._partner = left, right, keep, partner
        self._output, self._sizes = output, sizes

    def order(self, rest: Remaining, fuses: bool) -> str:
        """Return the axis order in which the next step is most likely to need no copy.

        Axes that the partner contracts go last, in its order. A kernel of ours reads them as fast where they go before
        the free ones, and has them there if it would else write too few neighbours at once.

        Args:
            rest: the terms that are left.
            fuses: whether kernels of ours read and write it.
        """
        shared = () if self._partner is None else self._partner.strides
        free = "".join(sorted([label for label in self._keep if label not in shared], key=self._output.find))
        both = [label for label in shared if label in self._keep]
        contracted = "".join([label for label in both if rest.is_last(label)])
        batch = "".join([label for label in both if label not in contracted])
        usual = batch + free + contracted
        if not fuses:
            return usual
        other = batch + contracted + free
        return max((usual, other), key=lambda order: min(self._neighbours(order), _AT_ONCE))

    def row(self, labels: str) -> int:
        """Return how many of the last axes the next product steps through as one; 0 if it is no product."""
        if self._partner is None:
            return 0
        contracted = [label in self._partner.labels and label not in self._output for label in labels]
        if not any(contracted):
            return 0
        return len(list(takewhile(lambda each: each == contracted[-1], contracted[::-1])))

    def _neighbours(self, order: str) -> int:
        """Return how many neighbours, with the axes in this order, differ in the same operands' elements."""

        def side(label: str) -> tuple[bool, bool]:
            return label in self._left.labels, label in self._right.labels

        run = takewhile(lambda label: side(label) == side(order[-1]), order[::-1])
        return prod([self._sizes[label] for label in run])
