"""Hypothesis strategies for contractions and for operands in every memory layout, and ways to compute them.

A contraction is drawn in plain letters first, which is what the oracle computes, and only then spelled as a
caller may write it. So what the oracle sees never depends on the parser under test.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import EllipsisType
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from einops_fast.planning import cost

Labels = list[Hashable | EllipsisType]

_LETTERS = "abcdef"
_ELLIPSIS_AXES = "YZ"
# By style, how each of the letters is spelled in an equation and in lists. A word has to be longer than any
# term has axes, or it would be letters beside an ellipsis.
_WORDS = ("x", "query_length", "batch", "head_1", "channel", "Embed")
_SPELLINGS: dict[str, tuple[Sequence[str], Sequence[Hashable]]] = {
    "letters": ("aBcijk", "aBcijk"),
    "symbols": ("aÀØéλ中", "aÀØéλ中"),
    "numbers": ("abcdef", (0, 1, 5, 26, 30, 700)),
    "words": (_WORDS, _WORDS),
}


@dataclass(frozen=True)
class Case:
    """One contraction in several spellings.

    Attributes:
        equation: as a caller may write it: ellipses, blanks, words, perhaps without ``'->'``.
        terms: the list form of the inputs.
        output: the list form of the output; None if the equation is without ``'->'``.
        letters: the explicit equation in ASCII letters without ellipsis, for the oracle.
        shapes: of the operands. A size of 1 may stand against another size.
        style: a key of the spellings; ``'letters'`` and ``'numbers'`` have an equation that NumPy can read.
    """

    equation: str
    terms: list[Labels]
    output: Labels | None
    letters: str
    shapes: tuple[tuple[int, ...], ...]
    style: str

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(map(len, self.shapes))


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    max_operands: int = 4,
    max_size: int = 4,
    zero_sizes: bool = True,
) -> Case:
    """Contractions of up to ``max_operands`` operands with three labels and two ellipsis axes each."""
    style = draw(st.sampled_from(list(_SPELLINGS)))
    in_text, in_lists = (dict(zip(_LETTERS, labels, strict=True)) for labels in _SPELLINGS[style])

    labels = st.lists(st.sampled_from(_LETTERS), max_size=3)
    terms: list[Labels] = [[*term] for term in draw(st.lists(labels, min_size=1, max_size=max_operands))]
    used = sorted({str(label) for term in terms for label in term})
    every = [label for term in terms for label in term]
    widths = [draw(st.integers(0, 2)) if _put_ellipsis(draw, term) else 0 for term in terms]
    axes = _ELLIPSIS_AXES[2 - max(widths) :]

    implicit = draw(st.booleans())
    if implicit:
        once = [label for label in used if every.count(label) == 1]
        output: Labels = [..., *sorted(once, key=lambda label: str(in_text[label]))]
    else:
        output = [*draw(st.permutations(used))]
        output = output[: draw(st.integers(0, len(output)))]
        _put_ellipsis(draw, output)  # if not, the ellipsis axes are summed over

    def plain(term: Labels, width: int) -> str:
        return "".join(axes[len(axes) - width :] if label is ... else str(label) for label in term)

    def listed(term: Labels) -> Labels:
        return [label if label is ... else in_lists[str(label)] for label in term]

    gap = " " if style == "words" else draw(st.sampled_from(["", " "]))

    def written(term: Labels) -> str:
        return gap.join("..." if label is ... else str(in_text[str(label)]) for label in term)

    inputs = [plain(term, width) for term, width in zip(terms, widths, strict=True)]
    equation = f",{gap}".join(map(written, terms)) + ("" if implicit else f"{gap}->{gap}{written(output)}")

    # One empty axis at most, and rarely: all that there is to such a result is its shape.
    empty = draw(st.sampled_from("-" * 40 + _LETTERS + _ELLIPSIS_AXES)) if zero_sizes else ""
    sizes = {axis: 0 if axis == empty else draw(st.integers(1, max_size)) for axis in _LETTERS + _ELLIPSIS_AXES}
    shapes = []
    for term in inputs:
        broadcast = {axis for axis in set(term) if draw(st.integers(0, 5)) == 0}
        shapes.append(tuple(1 if axis in broadcast else sizes[axis] for axis in term))

    return Case(
        equation=equation,
        terms=[listed(term) for term in terms],
        output=None if implicit else listed(output),
        letters=f"{','.join(inputs)}->{plain(output, len(axes))}",
        shapes=tuple(shapes),
        style=style,
    )


def _put_ellipsis(draw: st.DrawFn, term: Labels) -> bool:
    """Put an ellipsis anywhere in the term, half of the time."""
    if not draw(st.booleans()):
        return False
    term.insert(draw(st.integers(0, len(term))), ...)
    return True


@st.composite
def contractions(
    draw: st.DrawFn,
    *,
    max_operands: int = 3,
    max_size: int = 4,
    empty: bool = False,
) -> Case:
    """Contractions in plain letters where every label is likely to be shared, in every role it can have.

    Where `cases` is broad in notation, these are rich in axes that are batch, free or contracted, several of
    each at once and in any order, which is what the lowering is about. With ``empty``, one label has size 0.
    """
    count = draw(st.integers(2, max_operands))
    terms: list[list[str]] = [[] for _ in range(count + 1)]  # the last one is the output
    pairs = [{one, two} for two in range(count + 1) for one in range(two)]
    every = set(range(count + 1))
    roles = [*pairs, *pairs, every, every, set(range(count)), {0}]
    for label in _LETTERS[: draw(st.integers(2, 6))]:
        for holder in draw(st.sampled_from(roles)):
            if len(terms[holder]) < 5:
                terms[holder].append(label)
    output = terms.pop()
    used = {label for term in terms for label in term}
    inputs = ["".join(draw(st.permutations(term))) for term in terms]
    result = "".join(draw(st.permutations([label for label in output if label in used])))
    sizes = {label: draw(st.integers(1, max_size)) for label in sorted(used)}
    if empty:
        sizes[draw(st.sampled_from(sorted(used)))] = 0
    equation = f"{','.join(inputs)}->{result}"
    return Case(
        equation=equation,
        terms=[[*term] for term in inputs],
        output=[*result],
        letters=equation,
        shapes=tuple(tuple(sizes[label] for label in term) for term in inputs),
        style="letters",
    )


def expected(case: Case, operands: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """The oracle: ``numpy.einsum`` on plain letters, as one loop without any contraction order."""
    return np.asarray(np.einsum(case.letters, *operands, optimize=False))


# ---- operands


@st.composite
def operands(
    draw: st.DrawFn, shapes: Sequence[tuple[int, ...]], *, dtype: str = "float64", negative: bool = True
) -> list[npt.NDArray[Any]]:
    """One array per shape, each with its own memory layout; see `arrays`."""
    return [draw(arrays(shape, dtype=dtype, negative=negative)) for shape in shapes]


@st.composite
def arrays(
    draw: st.DrawFn, shape: tuple[int, ...], *, dtype: str = "float64", negative: bool = True
) -> npt.NDArray[Any]:
    """Small whole numbers (so that sums are exact in any order) in a permuted, strided or expanded layout.

    Args:
        shape: of the array.
        dtype: name of a NumPy dtype; a complex one gets imaginary parts too.
        negative: whether strides may be negative, which torch does not have.
    """
    order = draw(st.permutations(range(len(shape))))
    steps = draw(st.tuples(*(st.sampled_from([1, 1, 2, -1, -2] if negative else [1, 1, 2]) for _ in shape)))
    expanded = [size > 0 and draw(st.integers(0, 5)) == 0 for size in shape]
    stored = tuple(1 if once else size for size, once in zip(shape, expanded, strict=True))

    # Drawing every element would be slow and shrink badly.
    random = np.random.default_rng(draw(st.integers(0, 99)))
    real, imaginary = random.integers(-4, 5, size=(2, *stored))
    values = (real + 1j * imaginary if dtype.startswith("complex") else real).astype(dtype)
    array = relayout(values, order, steps)
    strides = [0 if once else stride for stride, once in zip(array.strides, expanded, strict=True)]
    return np.lib.stride_tricks.as_strided(array, shape, strides)


def relayout(values: npt.NDArray[Any], order: Sequence[int], steps: Sequence[int]) -> npt.NDArray[Any]:
    """An equal array whose axes lie in memory in the given order, outermost first, and are strided.

    Args:
        values: the array to copy.
        order: a permutation of its axes.
        steps: per axis, the step of the slice (negative for a reversed axis). Skipped elements are NaN where
            the dtype has it, so that reading one shows.
    """
    sizes = [values.shape[axis] * abs(steps[axis]) for axis in order]
    memory = np.empty(sizes, values.dtype)
    memory.fill(np.nan if values.dtype.kind in "fc" else 0)
    place = [list(order).index(axis) for axis in range(values.ndim)]
    slices: tuple[Any, ...] = (..., *(slice(None, None, step) for step in steps))
    view: npt.NDArray[Any] = memory.transpose(place)[slices]
    view[...] = values
    return view


# ---- ways to compute

# What a step costs decides which way is taken, and at sizes that a test can afford only a few would be.
# These prices, in seconds, replace the predicted ones.
WAYS: dict[str, dict[str, float]] = {
    "GEMMs": {"multiply_seconds": 9e9, "native_seconds": 9e9, "copy_seconds": 0},
    "GEMMs without copies": {"multiply_seconds": 1e9, "native_seconds": 9e9, "copy_seconds": 9e9},
    "products": {"multiply_seconds": 0, "native_seconds": 9e9, "gemm_seconds": 9e9},
    "loops": {"multiply_seconds": 9e9, "native_seconds": 0, "gemm_seconds": 9e9},
}


@contextmanager
def preferring(way: str) -> Iterator[None]:
    """Plans made meanwhile take this one of the `WAYS` wherever they can."""
    prices = {function: (lambda *_, seconds=seconds: seconds) for function, seconds in WAYS[way].items()}
    with mock.patch.multiple(cost, **prices):
        yield
