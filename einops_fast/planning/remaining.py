"""The terms that are still to be contracted, and the axis order of an intermediate that the next one reads uncopied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice, takewhile
from math import prod

from einops_fast.planning.layout import Term

_MOST_ASKED = 32
"""Terms with one label that may be the next partner."""

_AT_ONCE = 8
"""Neighbours that a kernel writes at once at best: elements of two bytes, 16 bytes at a time."""


class Remaining:
    """The list that a path's positions refer to. What one step asks of it takes no longer for more terms."""

    def __init__(self, terms: Iterable[Term], output: str) -> None:
        self._output = output
        self._terms: list[Term] = []
        self._holders: dict[str, dict[Term, None]] = {}
        self._places: dict[Term, int] = {}
        for term in terms:
            self.put(term)

    def put(self, term: Term) -> None:
        """Add a term at the end."""
        self._terms.append(term)
        self._places[term] = len(self._places)
        holders = self._holders
        for label in term.labels:
            if label in holders:
                holders[label][term] = None
            else:
                holders[label] = {term: None}

    def take(self, positions: Sequence[int]) -> list[Term]:
        """Remove the terms at these positions, which rise."""
        group = [self._terms.pop(at) for at in positions[::-1]][::-1]
        holders = self._holders
        for term in group:
            for label in term.labels:
                del holders[label][term]
        return group

    def __len__(self) -> int:
        return len(self._terms)

    def needed(self, labels: Iterable[str]) -> list[str]:
        """Return the labels, each once, that the result or a term has."""
        holders, output = self._holders, self._output
        return [label for label in dict.fromkeys(labels) if holders[label] or label in output]

    def is_last(self, label: str) -> bool:
        """Whether the result doesn't have this label, and one term at most."""
        return len(self._holders[label]) == 1 and label not in self._output

    def partner(self, labels: Iterable[str]) -> Term | None:
        """What an array with these labels is probably multiplied with next: the term that shares most of them."""
        shared: dict[Term, int] = {}
        holders, places = self._holders, self._places
        for label in labels:
            for term in islice(holders[label], _MOST_ASKED):
                shared[term] = shared.get(term, 0) + 1
        return min(shared, key=lambda term: (-shared[term], places[term]), default=None)


def axis_order(keep: Sequence[str], partner: Term | None, rest: Remaining, output: str) -> tuple[str, str]:
    """Return the order of the labels to keep in which the next step most likely needs no copy, and another for kernels.

    Axes go last that the partner, which is probably multiplied next, contracts. A kernel of ours reads them as fast
    where they go before the free ones.
    """
    shared, batch, contracted = "" if partner is None else partner.labels, "", ""
    own = [label for label in keep if label not in shared]
    if output:
        own.sort(key=output.find)
    for label in shared:
        if label in keep:
            if rest.is_last(label):
                contracted += label
            else:
                batch += label
    free = "".join(own)
    return batch + free + contracted, batch + contracted + free


def kernel_order(orders: Sequence[str], left: Term, right: Term, sizes: Mapping[str, int]) -> str:
    """Return the first of these orders in which a kernel doesn't write too few neighbours at once."""

    def neighbours(order: str) -> int:
        sides = [(label in left.labels, label in right.labels) for label in order[::-1]]
        run = takewhile(lambda side: side == sides[0], sides)
        return min(prod([sizes[label] for label, _ in zip(order[::-1], run, strict=False)]), _AT_ONCE)

    return max(orders, key=neighbours)


def row_of(labels: str, partner: Term | None, output: str) -> int:
    """Return how many of the last axes the next product steps through as one; 0 if it is no product."""
    contracted = [partner is not None and label in partner.labels and label not in output for label in labels]
    return len(list(takewhile(lambda each: each == contracted[-1], contracted[::-1]))) if any(contracted) else 0
