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
from functools import lru_cache
from itertools import chain, count
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import NamedTuple

from einops_fast.errors import ShapeError, SubscriptsError, point_at
from einops_fast.planning.refusals import (
    check_terms,
    count_axes,
    new_axis,
    reject_output,
    reject_rank,
    reject_size,
    reject_term,
    render,
)
from einops_fast.planning.terms import (
    fits_as_letters,
    labels_of,
    read_as_words,
    split_term,
)


class Subscripts(NamedTuple):
    """Which axis of which operand is which, with one letter (a single character) per axis.

    A label that the caller wrote as one ASCII letter keeps it. Any other (a word, an axis under an ellipsis,
    a label of the list form) gets a letter that is not in use: its own initial or an ASCII letter while there
    is one, else a Unicode letter.
    """

    inputs: tuple[str, ...]  # per operand, one letter per axis, ellipses expanded
    output: str  # one letter per axis of the result
    # pairs of a letter and the label it stands for, as the caller wrote it; `'...[0]'` is the first axis under
    # the widest ellipsis
    names: tuple[tuple[str, Hashable], ...]
    text: str  # the equation as the caller wrote it, or a readable rendering of the list form

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


@lru_cache(maxsize=4096)
def parse(equation: str, ranks: tuple[int, ...], words: bool = True) -> Subscripts:
    """Read an equation for operands of the given ranks; without ``words``, every letter is an axis.

    Without ``'->'`` the output is the ellipsis axes, then the labels that occur once, sorted.

    >>> parse('...ij,jk', (4, 2)).equation
    'abij,jk->abik'
    >>> parse('batch head i d, batch head j d -> batch head i j', (4, 4)).equation
    'bhid,bhjd->bhij'
    """
    plain = _plain(equation, ranks)
    if plain is not None:
        return plain
    left, right = _split(equation)
    terms = [split_term(term) for term in left.split(",")]
    output = None if right is None else split_term(right)
    check_terms(terms, output, ranks, equation)
    worded = read_as_words(terms, output, ranks, words)
    for operand, (chunks, rank, as_words) in enumerate(zip(terms, ranks, worded, strict=True)):
        if not as_words and not fits_as_letters(chunks, rank):
            reject_term(chunks, operand, ranks, equation, words)
    labels = [labels_of(chunks, as_words) for chunks, as_words in zip(terms, worded, strict=True)]
    if output is None:
        return _resolve(labels, None, ranks, equation)
    known = {..., *chain.from_iterable(labels)}
    named = labels_of(output, True)
    spelled = labels_of(output, False)
    # Where neither reading is right, the error should be about the one that the inputs suggest.
    as_words = words and (known.issuperset(named) or (any(worded) and not known.issuperset(spelled)))
    return _resolve(labels, named if as_words else spelled, ranks, equation)


def _plain(equation: str, ranks: tuple[int, ...]) -> Subscripts | None:
    """Read an equation of letters and an output; ``None`` if it is another one, or wrong."""
    left, _, output = equation.partition("->")
    inputs = left.split(",")
    letters = "".join(inputs)
    if not _LABELS.fullmatch(letters) or tuple(map(len, inputs)) != ranks:
        return None
    labels = dict.fromkeys(letters)
    if "->" not in equation or len(set(output)) < len(output) or not labels.keys() >= set(output):
        return None
    names = _letters(labels)
    if not letters.isascii():
        left, output = equation.translate({ord(str(label)): letter for label, letter in names.items()}).split("->")
        inputs = left.split(",")
    return Subscripts(tuple(inputs), output, tuple(zip(names.values(), names, strict=True)), equation)


_LABELS = re.compile(r"[^\x00-@\[-`{-\x7f\s]+")
"""Letters of ASCII, and whatever else can't be anything but a label."""


def parse_interleaved(
    terms: Sequence[Sequence[Hashable]], output: Sequence[Hashable] | None, ranks: tuple[int, ...]
) -> Subscripts:
    """Read the list form, ``einsum(x, [0, 1], y, [1, 2], [0, 2])``, for operands of the given ranks.

    Without an output, labels that can't be compared stay in order of appearance.

    >>> matmul = parse_interleaved([[0, 1], [..., 1, 'width']], [..., 0, 'width'], (2, 3))
    >>> matmul.equation, matmul.text
    ('ab,cbw->caw', '0 1, ... 1 width -> ... 0 width')
    """
    text = ", ".join(map(render, terms)) + ("" if output is None else f" -> {render(output)}")
    try:
        frozenset(chain(*terms, output or ()))
    except TypeError as error:
        raise SubscriptsError(point_at(f"a label must be hashable: {error}", text)) from None
    check_terms(terms, output, ranks, text)
    for operand, (labels, rank) in enumerate(zip(terms, ranks, strict=True)):
        named = len(labels) - (... in labels)
        if named != rank and not (... in labels and named < rank):
            reject_rank(operand, ranks, named, ... in labels, text)
    return _resolve(terms, output, ranks, text)


def bind_sizes(subscripts: Subscripts, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The size of every letter. Size 1 broadcasts between operands, but not within one, as in NumPy and torch.

    >>> bind_sizes(parse('ij,jk->ik', (2, 2)), [(2, 3), (1, 5)])
    {'i': 2, 'j': 3, 'k': 5}
    """
    sizes: dict[str, int] = {}
    if tuple(map(len, subscripts.inputs)) != tuple(map(len, shapes)):
        return _bind_one_by_one(subscripts, shapes)
    for label, size in zip("".join(subscripts.inputs), chain.from_iterable(shapes), strict=True):
        known = sizes.setdefault(label, size)
        if known is not size and known != size:
            return _bind_one_by_one(subscripts, shapes)
    return sizes


def _bind_one_by_one(subscripts: Subscripts, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Bind sizes where an axis broadcasts or is repeated, or refuse the first that doesn't fit."""
    sizes: dict[str, int] = {}
    for operand, (term, shape) in enumerate(zip(subscripts.inputs, shapes, strict=True)):
        if len(term) != len(shape):
            problem = f"operand {operand} of shape {tuple(shape)} has {count_axes(len(shape))}, not {len(term)}"
            raise ShapeError(point_at(problem, subscripts.text))
        if len(set(term)) != len(term):
            for axis, letter in enumerate(term):
                first = term.index(letter)
                if shape[first] != shape[axis]:
                    reject_size(subscripts, shapes, (operand, axis), (operand, first))
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
                reject_size(subscripts, shapes, (operand, term.index(letter)), other)
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
                reject_output(new_axis(label, len(ranks)), output, place, len(ranks), text)
            if label in output[:place]:
                reject_output(f"the output has axis '{label}' twice", output, place, len(ranks), text)
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
