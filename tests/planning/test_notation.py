"""Subscripts mean what they mean in NumPy, torch and opt_einsum; words and errors are our own."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import opt_einsum
import pytest
from equations import Case, cases
from hypothesis import given
from hypothesis import strategies as st

from einops_fast.errors import EinsumError, ShapeError, SubscriptsError
from einops_fast.planning.notation import bind_sizes, parse, parse_interleaved


def pattern(equation: str) -> str:
    """The equation with its letters renamed in the order of their appearance."""
    names: dict[str, str] = {}
    return "".join(c if c in ",->" else names.setdefault(c, chr(0x4E00 + len(names))) for c in equation)


def pointed(error: pytest.ExceptionInfo[EinsumError]) -> str:
    """What the carets of an error message point at."""
    _, equation, carets = str(error.value).splitlines()
    return equation[carets.index("^") : len(carets)]


# ---- the meaning of valid subscripts


@given(cases())
def test_every_spelling_means_the_letters(case: Case) -> None:
    parsed = parse(case.equation, case.ranks)
    assert pattern(parsed.equation) == pattern(case.letters)
    assert parsed.text == case.equation


@given(cases())
def test_lists_mean_the_letters(case: Case) -> None:
    parsed = parse_interleaved(case.terms, case.output, case.ranks)
    assert pattern(parsed.equation) == pattern(case.letters)


@given(cases())
def test_sizes_make_the_shape_of_the_result(case: Case) -> None:
    parsed = parse(case.equation, case.ranks)
    sizes = bind_sizes(parsed, case.shapes)
    assert list(sizes) == [letter for letter, _ in parsed.names]
    result = np.einsum(case.letters, *map(np.ones, case.shapes))
    assert np.shape(result) == tuple(sizes[letter] for letter in parsed.output)


@st.composite
def loose_equations(draw: st.DrawFn) -> tuple[str, tuple[int, ...]]:
    """Equations in letters with ranks that often, but not always, fit."""
    term = st.lists(st.sampled_from(["i", "j", "ij", " ", "..."]), max_size=4).map("".join)
    terms = draw(st.lists(term, min_size=1, max_size=3))
    ranks = tuple(sum(map(term.count, "ij")) + draw(st.sampled_from([0, 0, 1, -1])) for term in terms)
    output = draw(st.sampled_from(["", "->", "->i", "-> j i", "->...", "->i...", "->ij", "->ii"]))
    return ",".join(terms) + output, tuple(max(0, rank) for rank in ranks)


@given(loose_equations())
def test_what_numpy_takes_means_the_same(drawn: tuple[str, tuple[int, ...]]) -> None:
    equation, ranks = drawn
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 5, size=(2,) * rank) for rank in ranks]
    try:
        wanted = np.einsum(equation, *arrays)
    except ValueError:
        return
    got = np.einsum(parse(equation, ranks).equation, *arrays)
    np.testing.assert_array_equal(got, wanted)


@given(st.text(max_size=12), st.lists(st.integers(0, 3), min_size=1, max_size=3), st.booleans())
def test_any_text_is_read_or_refused(equation: str, ranks: list[int], words: bool) -> None:
    try:
        parsed = parse(equation, tuple(ranks), words=words)
    except EinsumError:
        return
    assert [len(term) for term in parsed.inputs] == ranks


@pytest.mark.parametrize(
    ("equation", "ranks", "meaning"),
    [
        ("", (0,), "->"),
        (",->", (0, 0), ",->"),
        ("ba", (2,), "ba->ab"),
        ("Ba", (2,), "Ba->Ba"),
        ("ij,jk", (2, 2), "ij,jk->ik"),
        ("iij", (3,), "iij->j"),
        (" i j , j k\t->\n i k ", (2, 2), "ij,jk->ik"),
        ("i...j", (3,), "iaj->aij"),
        ("...i,...i", (2, 3), "ai,bai->ba"),
        ("...i->i", (3,), "abi->i"),  # summed over
        ("...i->...", (1,), "i->"),
        ("i->...i", (1,), "i->i"),
        ("ij...->j...i", (4,), "ijab->jabi"),
        ("é,é->é", (1, 1), "a,a->a"),
    ],
)
def test_letters(equation: str, ranks: tuple[int, ...], meaning: str) -> None:
    assert parse(equation, ranks).equation == meaning
    assert parse(equation, ranks, words=False).equation == meaning


@pytest.mark.parametrize(
    ("equation", "ranks", "meaning"),
    [
        ("batch head i d, batch head j d -> batch head i j", (4, 4), "bhid,bhjd->bhij"),
        ("ab cd", (2,), "ac->ac"),
        ("ab cd", (4,), "abcd->abcd"),
        ("ab cd -> cd ab", (4,), "abcd->cdab"),
        ("b n i d -> b n", (4,), "bnid->bn"),
        ("width height", (2,), "wh->hw"),  # an implicit output is sorted by the words
        ("head hidden", (2,), "ha->ha"),  # the second can't have the initial
        ("head hidden h", (3,), "abh->hab"),  # nor the first, if it is a label
        ("d1 d_2, größe", (2, 1), "da,g->dag"),
        # a word alone
        ("batch, batch ->", (1, 1), "b,b->"),
        ("head, d -> head d", (1, 1), "h,d->hd"),
        ("head dim, dim -> head", (2, 1), "hd,d->h"),
        # beside an ellipsis
        ("... head dim -> ... dim head", (4,), "abhd->abdh"),
        ("head ... dim", (3,), "had->adh"),
        ("... id, ... jd -> ... ij", (3, 3), "aid,ajd->aij"),  # letters, as NumPy reads it
        ("... ab cd", (5,), "eabcd->eabcd"),
        ("... ab cd, ab cd -> ...", (5, 2), "abcde,de->abc"),  # but it shares words
        ("... dim, dim -> ...", (2, 1), "ad,d->a"),
        # words in one term, letters in another
        ("batch ij, ijk -> batch k", (2, 3), "ba,ijk->bk"),
        ("batch i, ij -> batch j", (2, 2), "bi,ij->bj"),
        ("batch i, ij -> ij", (2, 2), "bi,ij->ij"),
    ],
)
def test_words(equation: str, ranks: tuple[int, ...], meaning: str) -> None:
    assert parse(equation, ranks).equation == meaning


@pytest.mark.parametrize(
    ("terms", "output", "meaning"),
    [
        ([[1, 0]], None, "ab->ba"),
        ([["x", 0]], None, "xa->xa"),  # not comparable: in order of appearance
        ([[(0, "x"), "d"], ["d"]], [(0, "x")], "ad,d->a"),
        ([[..., 0], [0, ...]], [0, ...], "ba,ab->ab"),
        ([("i", "j")], (), "ij->"),
    ],
)
def test_lists(terms: list[list[Hashable]], output: list[Hashable] | None, meaning: str) -> None:
    assert pattern(parse_interleaved(terms, output, tuple(map(len, terms))).equation) == pattern(meaning)


# ---- errors


@pytest.mark.parametrize(
    ("equation", "ranks", "says", "at"),
    [
        ("i.j", (2,), "'.' is not part of '...'", "."),
        ("....i", (2,), "'.' is not part of '...'", "."),
        ("...i...", (3,), "the term of operand 0 has more than one '...'", "...i..."),
        ("i...,j->... ...", (3, 1), "the output has more than one '...'", "... ..."),
        ("i,j->k->l", (1, 1), "a second '->'", "->"),
        ("i-j", (2,), "'-' is not part of '->'", "-"),
        ("i>j", (2,), "'>' is not part of '->'", ">"),
        ("b (h d) -> b h d", (2,), "can't be grouped", "("),
        ("i,j->i,j", (1, 1), "no ','", ","),
        ("i;j->ij", (2,), "';' can't be a label", ";"),
        ("i1,1j->ij", (2, 2), "'1' can only be part of a word", "1"),
        ("_ j", (2,), "'_' can only be part of a word", "_"),
        ("ij->ik", (2,), "the output has axis 'k', which no operand has", "k"),
        ("ij->ii", (2,), "the output has axis 'i' twice", "i"),
        ("batch i -> batch width", (2,), "the output has axis 'width', which no operand has", "width"),
        ("batch i -> batch batch", (2,), "the output has axis 'batch' twice", "batch"),
    ],
)
def test_malformed(equation: str, ranks: tuple[int, ...], says: str, at: str) -> None:
    with pytest.raises(SubscriptsError) as error:
        parse(equation, ranks)
    assert says in str(error.value)
    assert pointed(error) == at


@pytest.mark.parametrize(
    ("equation", "ranks", "says", "at"),
    [
        ("ij,jk->ik", (3, 2), "operand 0 has 3 axes, but its term names 2", "ij"),
        (" ij , j k ->", (2, 1), "operand 1 has 1 axis, but its term names 2", "j k"),
        ("...ij,j->...i", (1, 1), "operand 0 has 1 axis, but its term names 2 beside '...'", "...ij"),
        ("batch head d, d", (4, 1), "operand 0 has 4 axes, but its term names 10 (3 if read", "batch head d"),
        ("d1 d2", (3,), "operand 0 has 3 axes, but its term names 2", "d1 d2"),
        # A wrong rank doesn't turn letters into a word.
        ("ij,jk->ik", (2, 1), "operand 1 has 1 axis, but its term names 2 (it is not one word", "jk"),
        ("ij,kl->ik", (2, 1), "operand 1 has 1 axis, but its term names 2 (it is not one word", "kl"),
        ("...ij,...jk->...i", (3, 1), "operand 1 has 1 axis, but its term names 2 beside '...' (it", "...jk"),
    ],
)
def test_wrong_rank(equation: str, ranks: tuple[int, ...], says: str, at: str) -> None:
    with pytest.raises(ShapeError) as error:
        parse(equation, ranks)
    assert says in str(error.value)
    assert pointed(error) == at


@pytest.mark.parametrize(
    ("terms", "output", "ranks", "kind", "says"),
    [
        ([[0, 1]], None, (3,), ShapeError, "operand 0 has 3 axes, but its term names 2"),
        ([[0, ..., 1]], None, (1,), ShapeError, "names 2 beside '...'"),
        ([[0, 1]], [2], (2,), SubscriptsError, "the output has axis '2', which no operand has"),
        ([[0, 1]], [1, 1], (2,), SubscriptsError, "the output has axis '1' twice"),
        ([[..., ...]], None, (2,), SubscriptsError, "more than one '...'"),
        ([[[0], 1]], None, (2,), SubscriptsError, "a label must be hashable"),
        ([[0, 1]], [0], (2, 2), SubscriptsError, "1 term for 2 operands"),
        ([[0], [1], []], None, (1, 1), SubscriptsError, "3 terms for 2 operands"),
        ([], None, (), SubscriptsError, "0 terms"),
    ],
)
def test_wrong_lists(
    terms: list[list[Any]],
    output: list[Any] | None,
    ranks: tuple[int, ...],
    kind: type[EinsumError],
    says: str,
) -> None:
    with pytest.raises(kind) as error:
        parse_interleaved(terms, output, ranks)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("equation", "shapes", "says", "at"),
    [
        (
            "bnid,bnjd->bnij",
            [(2, 3, 4, 5), (2, 3, 4, 6)],
            "axis 'd' has size 6 in operand 1 (axis 3 of shape (2, 3, 4, 6)) "
            "but size 5 in operand 0 (axis 3 of shape (2, 3, 4, 5))",
            "d",
        ),
        ("i,i", [(2,), (0,)], "axis 'i' has size 0 in operand 1", "i"),
        ("ii", [(1, 3)], "axis 'i' has size 3 in operand 0 (axis 1 of shape (1, 3)) but size 1 in", "i"),
        (
            "i,i,i",
            [(1,), (2,), (3,)],
            "size 3 in operand 2 (axis 0 of shape (3,)) but size 2 in operand 1",
            "i",
        ),
        ("head dim, dim -> head", [(2, 3), (4,)], "axis 'dim' has size 4 in operand 1", "dim"),
        ("i...,...i", [(2, 3, 4), (5, 4, 2)], "axis '...[0]' has size 5 in operand 1", "..."),
    ],
)
def test_sizes_that_differ(equation: str, shapes: list[tuple[int, ...]], says: str, at: str) -> None:
    parsed = parse(equation, tuple(map(len, shapes)))
    with pytest.raises(ShapeError) as error:
        bind_sizes(parsed, shapes)
    assert says in str(error.value)
    assert pointed(error) == at


def test_long_equations_are_cut_around_the_mistake() -> None:
    terms = [f"{opt_einsum.get_symbol(i)}" for i in range(100)]
    with pytest.raises(SubscriptsError) as error:
        parse(",".join([*terms[:50], "(", *terms[50:]]), (1,) * 101)
    assert pointed(error) == "("
    assert all(len(line) < 100 for line in str(error.value).splitlines())
