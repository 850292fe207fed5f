"""The terms of a plan that are still to be contracted, by position and by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count, islice

from einops_fast.planning.layout import Term

__all__ = ["Remaining"]

_MOST_ASKED = 32
"""Terms with one label that may be the next partner."""


class Remaining:
    """The list that a path's positions refer to. What one step asks of it takes no longer for more terms.

    Attributes:
        users: how many terms have each label; the result counts as one.
    """

    def __init__(self, terms: Iterable[Term], output: str) -> None:
        self.users = Counter(output)
        self._terms: list[Term] = []
        self._holders: dict[str, dict[int, Term]] = {}
        self._places: dict[int, int] = {}
        self._next = count()
        for term in terms:
            self.put(term)

    def put(self, term: Term) -> None:
        """Add a term at the end."""
        self._terms.append(term)
        self._places[term.slot] = next(self._next)
        for label in term.labels:
            if label:
                self.users[label] += 1
                self._holders.setdefault(label, {})[term.slot] = term

    def take(self, positions: Sequence[int]) -> list[Term]:
        """Remove the terms at these positions."""
        group = [self._terms.pop(at) for at in sorted(positions, reverse=True)][::-1]
        for term in group:
            for label in term.labels:
                self.users[label] -= 1
                del self._holders[label][term.slot]
        return group

    def __len__(self) -> int:
        return len(self._terms)

    def partner(self, labels: Iterable[str]) -> Term | None:
        """What an array with these labels is probably multiplied with next: the term that shares most of them."""
        shared: dict[Term, int] = {}
        for label in labels:
            for term in islice(self._holders.get(label, {}).values(), _MOST_ASKED):
                shared[term] = shared.get(term, 0) + 1
        if not shared:
            return None
        most, places = max(shared.values()), self._places
        return min([term for term, labels in shared.items() if labels == most], key=lambda term: places[term.slot])
