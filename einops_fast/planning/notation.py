"""Subscripts in every accepted spelling, read into one immutable `Subscripts`.

The forms of ``numpy.einsum``, ``torch.einsum`` and ``opt_einsum.contract`` mean here what they mean there:
an equation of single-letter labels with or without ``'->'``, an ellipsis anywhere, or lists of labels between
the operands. An axis may also be a whole word: ``'batch head i d, batch head j d -> batch head i j'``;
:mod:`einops_fast.planning.terms` has the rules by which letters and words are told apart.

Only text, ranks and shapes are handled, so no framework is imported.

**Ellipsis.** The axes of all ellipses align at the right and broadcast. An explicit output without an
ellipsis sums over them, as in torch and opt_einsum (NumPy raises). In the output, an ellipsis may also stand
for no axis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, count
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import NoReturn

from einops_fast.errors import ShapeError, SubscriptsError, point_at
from einops_fast.planning.terms import (
    ONLY_IN_WORDS,
    count_letters,
    count_words,
    fits_as_letters,
    fits_as_words,
    is_name,
    labels_of,
    read_as_words,
    split_term,
)

__all__ = ["Subscripts", "bind_sizes", "parse", "parse_interleaved"]


@dataclass(frozen=True, slots=True)
class Subscripts:
    """Which axis of which operand is which, with one letter (a single character) per axis.

    A label that the caller wrote as one ASCII letter keeps it. Any other (a word, an axis under an ellipsis,
    a label of the list form) gets a letter that is not in use: its own initial or an ASCII letter while there
    is one, else a Unicode letter.

    Attributes:
        inputs: per operand, one letter per axis, ellipses expanded.
        output: one letter per axis of the result.
        names: pairs of a letter and the label it stands for, as the caller wrote it; ``'...[0]'`` is the
            first axis under the widest ellipsis.
        text: the equation as the caller wrote it, or a readable rendering of the list form.
    """

    inputs: tuple[str, ...]
    output: str
    names: tuple[tuple[str, Hashable], ...]
    text: str

    @property
    def equation(self) -> str:
        """The subscripts in letters alone, explicit and without ellipsis, as any framework's einsum takes."""
        return f"{','.join(self.inputs)}->{self.output}"

    @property
    def in_letters(self) -> bool:
        """Whether each axis was written as one letter or under an ellipsis, as the frameworks' own einsums have it."""
        return all(label == letter or str(label).startswith("...") for letter, label in self.names)

    def spelling(self, letter: str) -> str:
        """The label that ``letter`` stands for, as the caller wrote it."""
        return str(dict(self.names)[letter])


def parse(equation: str, ranks: tuple[int, ...], *, words: bool = True) -> Subscripts:
    """Read an equation for operands of the given ranks. Results are cached.

    Args:
        equation: terms separated by ``','``, one per operand, and optionally ``'->'`` and the output term.
            Without ``'->'`` the output is the ellipsis axes, then the labels that occur once, sorted.
        ranks: the number of axes of each operand.
        words: whether an axis may be a whole word. If not, every letter is an axis and blanks are ignored.

    Raises:
        SubscriptsError: the equation is malformed, or has more or fewer terms than there are operands.
        ShapeError: a term doesn't fit the rank of its operand.

    >>> parse('...ij,jk', (4, 2)).equation
    'abij,jk->abik'
    >>> parse('batch head i d, batch head j d -> batch head i j', (4, 4)).equation
    'bhid,bhjd->bhij'
    """
    return _parse(equation, ranks, words)


@lru_cache(maxsize=4096)
def _parse(equation: str, ranks: tuple[int, ...], words: bool) -> Subscripts:
    left, right = _split(equation)
    terms = [split_term(term) for term in left.split(",")]
    output = None if right is None else split_term(right)
    _check_terms(terms, output, ranks, equation)
    worded = read_as_words(terms, output, ranks, words)
    for operand, (chunks, rank, as_words) in enumerate(zip(terms, ranks, worded, strict=True)):
        if not as_words and not fits_as_letters(chunks, rank):
            _reject_term(chunks, operand, ranks, equation, words)
    labels = [labels_of(chunks, as_words) for chunks, as_words in zip(terms, worded, strict=True)]
    if output is None:
        return _resolve(labels, None, ranks, equation)
    known = {..., *chain.from_iterable(labels)}
    named = labels_of(output, True)
    spelled = labels_of(output, False)
    # Where neither reading is right, the error should be about the one that the inputs suggest.
    as_words = words and (known.issuperset(named) or (any(worded) and not known.issuperset(spelled)))
    return _resolve(labels, named if as_words else spelled, ranks, equation)


def parse_interleaved(
    terms: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, ranks: tuple[int, ...]
) -> Subscripts:
    """Read the list form, ``einsum(x, [0, 1], y, [1, 2], [0, 2])``.

    Args:
        terms: per operand, its labels; ``Ellipsis`` may be one of them.
        output: the labels of the result. None for the ellipsis axes, then the labels that occur once, sorted
            (in order of appearance if they can't be compared).
        ranks: the number of axes of each operand.

    Raises:
        SubscriptsError: the lists are malformed, or are more or fewer than the operands.
        ShapeError: a list doesn't fit the rank of its operand.

    >>> matmul = parse_interleaved([[0, 1], [..., 1, 'width']], [..., 0, 'width'], (2, 3))
    >>> matmul.equation, matmul.text
    ('ab,cbw->caw', '0 1, ... 1 width -> ... 0 width')
    """
    text = ", ".join(map(_render, terms)) + ("" if output is None else f" -> {_render(output)}")
    try:
        frozenset(chain(*terms, output or ()))
    except TypeError as error:
        raise SubscriptsError(point_at(f"a label must be hashable: {error}", text)) from None
    _check_terms(terms, output, ranks, text)
    for operand, (labels, rank) in enumerate(zip(terms, ranks, strict=True)):
        named = len(labels) - (... in labels)
        if named != rank and not (... in labels and named < rank):
            _reject_rank(operand, ranks, named, ... in labels, text)
    return _resolve(terms, output, ranks, text)


def bind_sizes(subscripts: Subscripts, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The size of every letter. Size 1 broadcasts between operands, as in NumPy and torch.

    Args:
        subscripts: parsed for operands of these ranks.
        shapes: the shape of each operand.

    Raises:
        ShapeError: an axis has two sizes, neither of them 1; or two sizes within one operand.

    >>> bind_sizes(parse('ij,jk->ik', (2, 2)), [(2, 3), (1, 5)])
    {'i': 2, 'j': 3, 'k': 5}
    """
    sizes: dict[str, int] = {}
    for operand, (term, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        if len(term) != len(shape):
            problem = f"operand {operand} of shape {tuple(shape)} has {_axes(len(shape))}, not {len(term)}"
            raise ShapeError(point_at(problem, subscripts.text))
        if len(set(term)) != len(term):
            for axis, letter in enumerate(term):
                first = term.index(letter)
                if shape[first] != shape[axis]:
                    _reject_size(subscripts, shapes, (operand, axis), (operand, first))
        for letter, size in zip(term, shape, strict=True):
            known = sizes.get(letter, 1)
            if known == 1:  # or not known yet
                sizes[letter] = size
            elif size != known and size != 1:
                other = next(
                    (earlier, axis)
                    for earlier, labels in enumerate(subscripts.inputs)
                    for axis, label in enumerate(labels)
                    if label == letter and shapes[earlier][axis] == known
                )
                _reject_size(subscripts, shapes, (operand, term.index(letter)), other)
    return sizes


# ---- from labels to letters


_ASCII = frozenset(ascii_letters)


def _resolve(
    terms: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, ranks: Sequence[int], text: str
) -> Subscripts:
    """Expand ellipses, work out the output and give every label its letter."""
    widths = [rank - len(term) + 1 if ... in term else 0 for term, rank in zip(terms, ranks, strict=True)]
    widest = max(widths)
    # No label in an equation can be spelled so, and none in a list is likely to.
    axes = [f"...[{axis}]" for axis in range(widest)]
    terms = [_expand(term, axes[widest - width :]) for term, width in zip(terms, widths, strict=True)]
    occurrences = Counter(chain.from_iterable(terms))
    if output is None:
        once = [label for label, times in occurrences.items() if times == 1 and label not in axes]
        output = [*axes, *_sorted_if_comparable(once)]
    else:
        output = _expand(output, axes)
        for place, label in enumerate(output):
            if label not in occurrences:
                problem = f"the output has axis '{label}', which no operand has"
                _reject_output(problem, output, place, len(ranks), text)
            if label in output[:place]:
                _reject_output(f"the output has axis '{label}' twice", output, place, len(ranks), text)
    letters = _letters(occurrences)
    return Subscripts(
        inputs=tuple(["".join(map(letters.__getitem__, term)) for term in terms]),
        output="".join(map(letters.__getitem__, output)),
        names=tuple([(letter, label) for label, letter in letters.items()]),
        text=text,
    )


def _expand(term: Sequence[Hashable], axes: Sequence[Hashable]) -> Sequence[Hashable]:
    if ... not in term:
        return term
    at = term.index(...)
    return [*term[:at], *axes, *term[at + 1 :]]


def _sorted_if_comparable(labels: list[Hashable]) -> list[Hashable]:
    try:
        return sorted(labels)  # type: ignore[type-var]
    except TypeError:
        return labels


def _letters(labels: Iterable[Hashable]) -> dict[Hashable, str]:
    """Label -> letter, in the order of ``labels``."""
    letters: dict[Hashable, str] = {}
    taken = set(_ASCII.intersection(labels))
    spare = (c for c in chain(ascii_lowercase, ascii_uppercase, map(chr, count(192))) if c.isalpha())
    for label in labels:
        if isinstance(label, str) and label in _ASCII:
            letters[label] = label
            continue
        initial = label[:1] if isinstance(label, str) else ""
        free = initial in _ASCII and initial not in taken
        letters[label] = initial if free else next(c for c in spare if c not in taken)
        taken.add(letters[label])
    return letters


# ---- from text to labels


# No label has these: ASCII punctuation and control characters. '_' and digits may be in words.
_STRAY = re.compile(r"[\x00-\x08\x0e-\x1b!-+\--/:-@\[-^`{-\x7f]")


def _split(equation: str) -> tuple[str, str | None]:
    """The inputs and the output of an equation that has no stray characters."""
    stray = _STRAY.search(equation.replace("...", "   ").replace("->", "  "))
    if stray:
        raise SubscriptsError(point_at(_why_stray(stray.group()), equation, stray.span()))
    left, arrow, right = equation.partition("->")
    if not arrow:
        return left, None
    start = len(left) + len(arrow)
    for extra, problem in (("->", "a second '->'"), (",", "the output is one term, so it has no ','")):
        at = right.find(extra)
        if at >= 0:
            raise SubscriptsError(point_at(problem, equation, (start + at, start + at + len(extra))))
    return left, right


def _why_stray(character: str) -> str:
    if character == ".":
        return "'.' is not part of '...'"
    if character in "->":
        return f"'{character}' is not part of '->'"
    if character in "()":
        return f"'{character}': axes can't be grouped or split here, reshape the operand instead"
    return f"{character!r} can't be a label: an axis is a letter, or a word such as 'head_dim'"


# ---- what is wrong, and where


_OUTPUT = -1  # in place of an operand's position


def _check_terms(
    terms: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, ranks: Sequence[int], text: str
) -> None:
    """One term per operand, with one ellipsis at most in each."""
    if not ranks or len(terms) != len(ranks):
        found = f"the equation has {_number(len(terms), 'term')} for {_number(len(ranks), 'operand')}"
        raise SubscriptsError(point_at(found, text))
    for operand, labels in [*enumerate(terms), (_OUTPUT, () if output is None else output)]:
        if labels.count(...) + labels.count("...") > 1:
            where = "the output" if operand == _OUTPUT else f"the term of operand {operand}"
            span = _term_span(text, operand, len(ranks))
            raise SubscriptsError(point_at(f"{where} has more than one '...'", text, span))


def _reject_term(chunks: Sequence[str], operand: int, ranks: Sequence[int], equation: str, words: bool) -> NoReturn:
    """A term of an equation that is neither as many letters nor as many words as the operand has axes."""
    rank = ranks[operand]
    names = count_words(chunks)
    multiple = any(len(chunk) > 1 for chunk in chunks if chunk != "...")
    worded = words and multiple and all(map(is_name, chunks))
    start, end = _term_span(equation, operand, len(ranks)) or (0, 0)
    stray = ONLY_IN_WORDS.search(equation, start, end)
    if stray and not (worded and names > 1):
        problem = f"{stray.group()!r} can only be part of a word that names an axis, such as 'd1'"
        if worded:
            problem += f", and operand {operand} has {_axes(rank)}, not 1"
        raise SubscriptsError(point_at(problem, equation, stray.span()))
    note = ""
    if worded and fits_as_words(chunks, rank):
        note = " (it is not one word, because the equation uses a letter of it alone)"
    elif worded and not stray:
        note = f" ({names} if read as words)"
    count = names if stray else count_letters(chunks)
    _reject_rank(operand, ranks, count, "..." in chunks, equation, note)


def _reject_rank(operand: int, ranks: Sequence[int], named: int, ellipsis: bool, text: str, note: str = "") -> NoReturn:
    beside = " beside '...'" if ellipsis else ""
    problem = f"operand {operand} has {_axes(ranks[operand])}, but its term names {named}{beside}{note}"
    raise ShapeError(point_at(problem, text, _term_span(text, operand, len(ranks))))


def _reject_output(problem: str, output: Sequence[Hashable], place: int, terms: int, text: str) -> NoReturn:
    raise SubscriptsError(point_at(problem, text, _axis_span(text, _OUTPUT, terms, output[: place + 1])))


def _reject_size(
    subscripts: Subscripts, shapes: Sequence[tuple[int, ...]], here: tuple[int, int], there: tuple[int, int]
) -> NoReturn:
    """``here`` and ``there``: the operand and the axis of two sizes that don't agree."""

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


def _axes(rank: int) -> str:
    return f"{rank} {'axis' if rank == 1 else 'axes'}"


def _render(labels: Iterable[Hashable]) -> str:
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
