"""What is wrong with an equation, and where in its text: the errors of :mod:`einops_fast.planning.notation`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, NoReturn

from einops_fast.errors import ShapeError, SubscriptsError, point_at
from einops_fast.planning.terms import ONLY_IN_WORDS, count_letters, count_words, fits_as_words, is_name

if TYPE_CHECKING:
    from einops_fast.planning.notation import Subscripts

_OUTPUT = -1  # in place of an operand's position


def check_terms(
    terms: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, ranks: Sequence[int], text: str
) -> None:
    """Raise SubscriptsError unless there is one term per operand, with one ellipsis at most in each."""
    if not ranks or len(terms) != len(ranks):
        found = f"the equation has {_number(len(terms), 'term')} for {_number(len(ranks), 'operand')}"
        raise SubscriptsError(point_at(found, text))
    for operand, labels in [*enumerate(terms), (_OUTPUT, () if output is None else output)]:
        if labels.count(...) + labels.count("...") > 1:
            where = "the output" if operand == _OUTPUT else f"the term of operand {operand}"
            span = _term_span(text, operand, len(ranks))
            raise SubscriptsError(point_at(f"{where} has more than one '...'", text, span))


def reject_term(chunks: Sequence[str], operand: int, ranks: Sequence[int], equation: str, words: bool) -> NoReturn:
    """Raise for a term that is neither as many letters nor as many words as its operand has axes."""
    rank = ranks[operand]
    names = count_words(chunks)
    multiple = any(len(chunk) > 1 for chunk in chunks if chunk != "...")
    worded = words and multiple and all(map(is_name, chunks))
    start, end = _term_span(equation, operand, len(ranks)) or (0, 0)
    stray = ONLY_IN_WORDS.search(equation, start, end)
    if stray and not (worded and names > 1):
        problem = f"{stray.group()!r} can only be part of a word that names an axis, such as 'd1'"
        if worded:
            problem += f", and operand {operand} has {count_axes(rank)}, not 1"
        raise SubscriptsError(point_at(problem, equation, stray.span()))
    note = ""
    if worded and fits_as_words(chunks, rank):
        note = " (it is not one word, because the equation uses a letter of it alone)"
    elif worded and not stray:
        note = f" ({names} if read as words)"
    count = names if stray else count_letters(chunks)
    reject_rank(operand, ranks, count, "..." in chunks, equation, note)


def reject_rank(operand: int, ranks: Sequence[int], named: int, ellipsis: bool, text: str, note: str = "") -> NoReturn:
    """Raise ShapeError for an operand whose rank its term doesn't fit."""
    beside = " beside '...'" if ellipsis else ""
    problem = f"operand {operand} has {count_axes(ranks[operand])}, but its term names {named}{beside}{note}"
    raise ShapeError(point_at(problem, text, _term_span(text, operand, len(ranks))))


def new_axis(label: Hashable, terms: int) -> str:
    """Return what is wrong with an axis of the output that no operand has."""
    return f"the output has axis '{label}', which no operand has" + "; einops.repeat makes new axes" * (terms == 1)


def reject_output(problem: str, output: Sequence[Hashable], place: int, terms: int, text: str) -> NoReturn:
    """Raise SubscriptsError for the label at a place of the output."""
    raise SubscriptsError(point_at(problem, text, _axis_span(text, _OUTPUT, terms, output[: place + 1])))


def reject_size(
    subscripts: Subscripts, shapes: Sequence[tuple[int, ...]], here: tuple[int, int], there: tuple[int, int]
) -> NoReturn:
    """Raise ShapeError for two sizes that don't agree; ``here`` and ``there`` are operand and axis of each."""

    def size(place: tuple[int, int]) -> str:
        operand, axis = place
        shape = tuple(shapes[operand])
        return f"size {shape[axis]} in operand {operand} (axis {axis} of shape {shape})"

    operand, axis = here
    spellings = [subscripts.spelling(letter) for letter in subscripts.inputs[operand][: axis + 1]]
    problem = f"axis '{spellings[-1]}' has {size(here)} but {size(there)}"
    span = _axis_span(subscripts.text, operand, len(shapes), spellings)
    raise ShapeError(point_at(problem, subscripts.text, span))


def _number(n: int, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def count_axes(rank: int) -> str:
    """Return how many axes, in words."""
    return f"{rank} {'axis' if rank == 1 else 'axes'}"


def render(labels: Iterable[Hashable]) -> str:
    """Return labels as text."""
    return " ".join("..." if label is ... else str(label) for label in labels)


def _term_span(text: str, operand: int, operands: int) -> tuple[int, int] | None:
    """Where the term of an operand, or `_OUTPUT`, stands in the text; None if labels with ',' hide it."""
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != operands:
        return None
    term = right if operand == _OUTPUT else terms[operand]
    start = len(left) + len(arrow) if operand == _OUTPUT else sum(map(len, terms[:operand])) + operand
    blanks = len(term) - len(term.lstrip())
    return start + blanks, start + max(blanks, len(term.rstrip()))


def _axis_span(text: str, operand: int, operands: int, labels: Sequence[Hashable]) -> tuple[int, int] | None:
    """Where the last of the leading ``labels`` of a term stands in the text."""
    term = _term_span(text, operand, operands)
    if term is None:
        return None
    place, end = term
    span = None
    for label in map(str, labels):
        # Between a label and the next there are only blanks and dots. An ellipsis is there for all its axes.
        shown = "..." if label.startswith("...[") else label
        start = text.find(shown, place, end)
        if start < 0:
            return None
        span = start, start + len(shown)
        place = start if shown == "..." else start + len(shown)
    return span
