"""Axes that several of the equation make up, sizes that are given, and ``1``: the same as reshaping by hand."""

from itertools import pairwise
from math import prod
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import ShapeError, SubscriptsError, attention, contract_expression, explain, fast_einsum

SCORES = "b i (h d), b j (h d) -> b i (h j)"


def operands() -> tuple[Any, Any, Any]:
    """Queries, keys and the scores that ``SCORES`` makes of them, of three heads."""
    rng = np.random.default_rng(0)
    q, k = rng.random((2, 5, 12)), rng.random((2, 6, 12))
    scores = np.einsum("bihd,bjhd->bihj", q.reshape(2, 5, 3, 4), k.reshape(2, 6, 3, 4))
    return q, k, scores.reshape(2, 5, 18)


def contraction(random: Random) -> tuple[str, list[Any], dict[str, int]]:
    """An equation with compositions, operands and result, and the size of every axis."""
    names = {"b": 2, "head": 3, "d": 4, "i": 5, "wide": 2, "k": 3}
    letters = dict(zip(names, "abcdef", strict=True))
    left, right = (random.sample(sorted(names), random.randint(1, 4)) for _ in range(2))
    both = sorted({*left, *right})
    terms = [left, right, random.sample(both, random.randint(0, len(both)))]
    texts, shapes = [], []
    for term in terms:
        cuts = [0, *sorted(random.choices(range(len(term) + 1), k=random.randint(0, 3))), len(term)]
        groups = [term[start:end] for start, end in pairwise(cuts)]
        texts.append(
            " ".join(["1" if not each else each[0] if len(each) == 1 else f"({' '.join(each)})" for each in groups])
        )
        shapes.append([prod([names[name] for name in each]) for each in groups])
    arrays = [np.random.default_rng(0).random([names[name] for name in term]) for term in (left, right)]
    spelled = ["".join([letters[name] for name in term]) for term in terms]
    arrays.append(np.einsum(f"{spelled[0]},{spelled[1]}->{spelled[2]}", *arrays))
    reshaped = [array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True)]
    return f"{texts[0]}, {texts[1]} -> {texts[2]}", reshaped, {name: names[name] for name in both}


@given(st.integers(0, 1 << 32))
def test_as_reshaped_by_hand(seed: int) -> None:
    equation, (one, two, wanted), sizes = contraction(Random(seed))
    for _ in range(2):
        got = fast_einsum(equation, one, two, **sizes)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted)


def test_sizes_may_come_from_other_operands() -> None:
    q, _, _ = operands()
    weights = np.ones((3, 2))
    wanted = np.einsum("bihd,hw->bdiw", q.reshape(2, 5, 3, 4), weights)
    np.testing.assert_allclose(fast_einsum("b i (h d), h w -> b d i w", q, weights), wanted)
    np.testing.assert_allclose(fast_einsum("h w, b i (h d) -> b d i w", weights, q), wanted)
    got = fast_einsum("... (h d), h w -> ... d w", q, weights)
    np.testing.assert_allclose(got, wanted.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("between", [(), (2,), (2, 1, 4)], ids=str)
def test_axes_of_an_ellipsis_may_be_one(between: tuple[int, ...]) -> None:
    x, weights = np.random.default_rng(0).random((3, *between, 5)), np.random.default_rng(1).random((5, 2))
    wide = np.einsum("b...d,de->b...e", x, weights)
    for axes, shape in (("b (... e)", (3, -1)), ("(b ...) e", (-1, 2)), ("b (...) 1 e", (3, prod(between), 1, 2))):
        got = fast_einsum(f"b ... d, d e -> {axes}", x, weights)
        np.testing.assert_allclose(got, wide.reshape(shape))


def test_splitting_an_axis_makes_a_view() -> None:
    q, _, _ = operands()
    assert np.shares_memory(fast_einsum("b i (h d) -> b h i d", q, h=3), q)
    assert np.shares_memory(fast_einsum("b i d -> b 1 i d", q), q)


def test_out_order_and_lists() -> None:
    q, k, scores = operands()
    out = np.empty((2, 5, 18))
    assert fast_einsum(SCORES, q, k, h=3, out=out) is out
    np.testing.assert_allclose(out, scores)
    assert fast_einsum(SCORES, q, k, h=3, order="F").flags.f_contiguous
    assert fast_einsum("(i j), j -> i", [1, 2, 3, 4], [1, 1]).tolist() == [3, 7]
    assert (
        explain(SCORES, q, k, h=3).flops
        == explain("bihd,bjhd->bihj", q.reshape(2, 5, 3, 4), k.reshape(2, 6, 3, 4)).flops
    )


def test_sizes_are_checked_in_any_equation() -> None:
    one, two = np.ones((2, 3)), np.ones((3, 4))
    assert fast_einsum("ij,jk->ik", one, two, j=3).shape == (2, 4)
    assert fast_einsum("row in, in col -> row col", one, two, row=2).shape == (2, 4)
    with pytest.raises(ShapeError, match="axis 'row' has size 2, not 3 as given"):
        fast_einsum("row in, in col -> row col", one, two, row=3)
    for equation in ("row col -> row col", "row () col -> (row col)"):
        array = np.ones((1, 3) if "()" not in equation else (1, 1, 3))
        assert fast_einsum(equation, array, row=1).size == 3
        with pytest.raises(ShapeError, match="axis 'row' has size 1, not 4 as given"):
            fast_einsum(equation, array, row=4)
    assert fast_einsum("row col, row -> row col", np.ones((1, 3)), np.ones(4), row=4).shape == (4, 3)
    assert fast_einsum("(row) col, row -> row col", np.ones((1, 3)), np.ones(4), row=4).shape == (4, 3)
    with pytest.raises(TypeError, match="no 'optimise', and 'ij,jk->ik' no such axis; it is optimize=True"):
        fast_einsum("ij,jk->ik", one, two, optimise=True)


@pytest.mark.parametrize(
    ("equation", "sizes", "kind", "message"),
    [
        (SCORES, {}, ShapeError, r"axis 2 of operand 0, \(h d\), tells no size of h and d: give one"),
        (
            SCORES,
            {"h": 5},
            ShapeError,
            r"axis 2 of operand 0, \(h d\), has size 12, which h=5 doesn't divide \(as given\)",
        ),
        (SCORES, {"h": 3, "d": 5}, ShapeError, "has size 12, which h=3 d=5 doesn't make"),
        (SCORES, {"h": -3}, ShapeError, "size of axis 'h' is no number that it can have: -3"),
        (SCORES, {"h": "3"}, ShapeError, "size of axis 'h' is no number that it can have: '3'"),
        (SCORES, {"heads": 3}, TypeError, "no 'heads', and .* no such axis"),
        (
            "b i (h d), b j h -> b i j",
            {"h": 3},
            ShapeError,
            "axis 2 of operand 1, 'h', has size 12, which h=3 doesn't make",
        ),
        ("b (h d), b j (h d) -> b h j", {"h": 3}, ShapeError, "operand 0 has 3 axes, but its term names 2"),
        ("b i (h d) -> b h i d", {"h": 3}, SubscriptsError, "has 1 terms, but there are 2 operands"),
        ("b i 1, b j d -> b i j", {}, ShapeError, "axis 2 of operand 0, '1', has size 12"),
        ("b i (h (d e)), b j h -> b i", {}, SubscriptsError, "parentheses are closed, and hold no others"),
        ("b i (h d, b j h -> b i", {}, SubscriptsError, "parentheses are closed, and hold no others"),
        ("b i h d), b j h -> b i", {}, SubscriptsError, "parentheses are closed, and hold no others"),
        ("b (... h), b j h -> b h", {}, SubscriptsError, "an ellipsis can be part of an axis of the result only"),
        ("b ... h -> b (... h ...)", {}, SubscriptsError, "a term has one ellipsis"),
        ("... i ... (h d), b j h -> b", {}, SubscriptsError, "a term has one ellipsis"),
        ("b i (h d), b j (h d)", {}, SubscriptsError, "axes can't be grouped, or be 1, without '->'"),
        ("b i (h d), b j (h d) -> b z", {}, SubscriptsError, "the output has axis 'z', which no operand has"),
        ("b i (h d), b j (h d) -> b (h h)", {}, SubscriptsError, "the output has axis 'h' twice"),
        ("b i (h 2d), b j (h d) -> b", {}, SubscriptsError, "'2d' is no name of an axis"),
    ],
)
def test_what_is_wrong_is_told(equation: str, sizes: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        fast_einsum(equation, *operands()[:2], **sizes)


def test_what_einops_has_is_told() -> None:
    one, two = np.ones((2, 3)), np.ones((4, 3))
    before = r"the equation comes before the operands: fast_einsum\('i d, j d -> i j', ...\)"
    for call, shapes in ((fast_einsum, (one, two)), (explain, (one, two)), (contract_expression, ((2, 3), (4, 3)))):
        with pytest.raises(SubscriptsError, match=before):
            call(*shapes, "i d, j d -> i j")
    with pytest.raises(SubscriptsError, match=r"the pattern comes before the arrays: attention\('i d"):
        attention(one, two, two, "i d, j d, j e -> i e")
    for reduction in ("max", "sum"):
        for told in (("i d -> i", one, reduction), (one, "i d -> i", reduction)):
            with pytest.raises(SubscriptsError, match=f"last operand is '{reduction}': .* einops.reduce"):
                fast_einsum(*told)
    for repeated in ("i d -> i d c", "id->idc", "i d -> i (d c)"):
        with pytest.raises(SubscriptsError, match=r"which no operand has; einops.repeat makes new axes"):
            fast_einsum(repeated, one, c=2)
    with pytest.raises(SubscriptsError, match="which no operand has\n"):
        fast_einsum("i d, j d -> i c", one, two)


class TestTorch:
    torch = pytest.importorskip("torch")

    def given(self) -> tuple[Any, ...]:
        return tuple(map(self.torch.as_tensor, operands()))

    def program(self) -> Any:
        class Scores(self.torch.nn.Module):  # type: ignore[name-defined,misc]
            def forward(self, q: Any, k: Any) -> Any:
                return fast_einsum(SCORES, q, k, h=3)

        return Scores()

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiled_in_one_graph(self, dynamic: bool) -> None:
        q, k, scores = self.given()
        run = self.torch.compile(self.program(), fullgraph=True, backend="eager", dynamic=dynamic)
        for length in (5, 4):
            self.torch.testing.assert_close(run(q[:, :length], k), scores[:, :length])

    def test_traced_exported_and_written_down(self) -> None:
        q, k, scores = self.given()
        program = self.program()
        for made in (
            self.torch.jit.trace(program, (q, k)),
            self.torch.export.export(program, (q, k)).module(),
            self.torch.fx.symbolic_trace(program),
        ):
            self.torch.testing.assert_close(made(q, k), scores)
        short = self.torch.jit.trace(program, (q[:, :3], k))
        self.torch.testing.assert_close(short(q, k), scores)

    def test_options_count_in_compiled_calls_too(self) -> None:
        one, two = self.torch.ones(3, 1), self.torch.ones(3, 4)
        for run in (fast_einsum, self.torch.compile(fast_einsum, backend="eager")):
            with pytest.raises(Exception, match="precision is one of"):
                run("i 1, i j -> j", one, two, precision="tf64")

    def test_gradients(self) -> None:
        q, k, _ = self.given()
        assert self.torch.autograd.gradcheck(self.program(), (q.requires_grad_(), k.requires_grad_()))
