"""The terms of an equation: their labels, as letters or as words.

NumPy ignores blanks, so ``'ab cd'`` is four axes there. An equation that NumPy takes is never read otherwise; words
are read only where letters can't be meant:

* A term without an ellipsis is letters if they are as many as its operand has axes, else words if those are.
* A term with an ellipsis is letters if they are at most as many as the axes, else words. It is words too if
  it shares a word with a term that has no ellipsis and is read as words.
* A word alone in its term is a name only if the equation has words side by side elsewhere or none of its
  letters is an axis itself. So an operand of the wrong rank remains an error: in ``'ij,jk->i'`` with ranks 2
  and 1, ``'jk'`` is not a name, because ``'j'`` is an axis.
* The output is words if they are all known names, else letters.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import chain

ONLY_IN_WORDS = re.compile(r"[0-9_]")
"""What letters can't be."""


def split_term(term: str) -> list[str]:
    """The chunks of a term: what is between blanks, ``'...'`` being one of them.

    >>> split_term('batch ...d')
    ['batch', '...', 'd']
    """
    return term.replace("...", " ... ").split() if "." in term else term.split()


def labels_of(chunks: Sequence[str], as_words: bool) -> list[Hashable]:
    """One label per chunk, or per letter; ``...`` for an ellipsis.

    >>> labels_of(['ab', '...'], True), labels_of(['ab', '...'], False)
    (['ab', Ellipsis], ['a', 'b', Ellipsis])
    """
    labels: list[Hashable] = []
    for chunk in chunks:
        if chunk == "...":
            labels.append(...)
        elif as_words:
            labels.append(chunk)
        else:
            labels.extend(chunk)
    return labels


def read_as_words(
    terms: Sequence[list[str]], output: list[str] | None, ranks: Sequence[int], words: bool
) -> list[bool]:
    """Per term, given as chunks, whether it is words; the module's docstring has the rules."""
    letters = [fits_as_letters(chunks, rank) for chunks, rank in zip(terms, ranks, strict=True)]
    if all(letters) or not words:
        return [False] * len(terms)
    worded = [
        not fits and fits_as_words(chunks, rank) for fits, chunks, rank in zip(letters, terms, ranks, strict=True)
    ]
    for operand, chunks in enumerate(terms):
        if worded[operand] and count_words(chunks) == 1:
            word = next(chunk for chunk in chunks if chunk != "...")
            worded[operand] = _lone_word_is_name(word, terms, output, letters, worded)
    names = {
        chunk
        for chunks, as_words in zip(terms, worded, strict=True)
        if as_words and "..." not in chunks
        for chunk in chunks
        if len(chunk) > 1
    }
    return [
        as_words or ("..." in chunks and not names.isdisjoint(chunks) and fits_as_words(chunks, rank))
        for as_words, chunks, rank in zip(worded, terms, ranks, strict=True)
    ]


def count_letters(chunks: Sequence[str]) -> int:
    """How many axes a term names if it is letters."""
    return sum(map(len, chunks)) - (3 if "..." in chunks else 0)


def count_words(chunks: Sequence[str]) -> int:
    """How many axes a term names if it is words."""
    return len(chunks) - ("..." in chunks)


def fits_as_letters(chunks: Sequence[str], rank: int) -> bool:
    """Whether a term can be letters for an operand of this rank."""
    letters = count_letters(chunks)
    fits = letters <= rank if "..." in chunks else letters == rank
    return fits and not any(map(ONLY_IN_WORDS.search, chunks))


def fits_as_words(chunks: Sequence[str], rank: int) -> bool:
    """Whether a term can be words for an operand of this rank."""
    words = count_words(chunks)
    fits = words <= rank if "..." in chunks else words == rank
    return fits and all(map(is_name, chunks))


def is_name(chunk: str) -> bool:
    """Whether a chunk can name an axis; an ellipsis can."""
    if len(chunk) == 1:
        return not ONLY_IN_WORDS.match(chunk)
    return chunk == "..." or (chunk.isidentifier() and chunk[0] != "_")


def _lone_word_is_name(
    word: str,
    terms: Sequence[list[str]],
    output: list[str] | None,
    letters: Sequence[bool],
    worded: Sequence[bool],
) -> bool:
    """Whether ``word``, alone in its term, names an axis, rather than being letters for a wrong rank.

    It does if words stand side by side elsewhere, or if none of its letters is an axis of its own.
    """
    alone: set[str] = set()
    for chunks, fits, as_words in zip(terms, letters, worded, strict=True):
        if count_words(chunks) > 1 and (as_words or word in chunks):
            return True
        if fits and word not in chunks:
            alone.update(*chunks)
    if output is not None:
        if count_words(output) > 1 and word in output:
            return True
        inputs = set(chain.from_iterable(terms))
        alone.update(*(chunk for chunk in output if len(chunk) == 1 or chunk not in inputs))
    return alone.isdisjoint(word)
