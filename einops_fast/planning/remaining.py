"""The terms of a plan that are still to be contracted, by position and by label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from einops_fast.planning.layout import Term

_MOST_ASKED = 32
"""Terms with one label that may be the next partner."""


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
        """Remove the terms at these positions."""
        group = [self._terms.pop(at) for at in sorted(positions, reverse=True)][::-1]
        holders = self._holders
        for term in group:
            for label in term.labels:
                del holders[label][term]
        return group

    def __len__(self) -> int:
        return len(self._terms)

    def needs(self, label: str) -> bool:
        """Whether the result or a term has this label."""
        return bool(self._holders[label]) or label in self._output

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
