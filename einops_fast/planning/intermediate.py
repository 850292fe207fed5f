"""The axis order of an intermediate, in which the next step needs no copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import prod

from einops_fast.planning.layout import Term
from einops_fast.planning.remaining import Remaining

_AT_ONCE = 8
"""Neighbours that a kernel writes at once at best: elements of two bytes, 16 bytes at a time."""


def axis_order(keep: Sequence[str], partner: Term | None, rest: Remaining, output: str) -> tuple[str, str]:
    """Return the order of the labels to keep in which the next step most likely needs no copy, and another for kernels.

    Axes go last that the partner, which is probably multiplied next, contracts. A kernel of ours reads them as fast
    where they go before the free ones.
    """
    shared = () if partner is None else partner.strides
    free = "".join(sorted([label for label in keep if label not in shared], key=output.find))
    both = [label for label in shared if label in keep]
    contracted = "".join([label for label in both if rest.is_last(label)])
    batch = "".join([label for label in both if label not in contracted])
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
