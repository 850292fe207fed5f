"""Three operands of which two, multiplied element by element, make one operand of a matrix product."""

from __future__ import annotations

from collections.abc import Sequence

from einops_fast.planning.layout import Term


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
