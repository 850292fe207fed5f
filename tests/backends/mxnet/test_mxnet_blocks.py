"""Hybridized Gluon blocks, and calls that are recorded, patched or alike."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mxnet_equations import EQUATIONS, Array, autograd, check, gradients, mnp, mxnet, numbers

from einops_fast import OperandError, ShapeError, attention, fast_einsum, patched, scaled_dot_product_attention

gluon, npx = mxnet.gluon, mxnet.npx


class Block(gluon.HybridBlock):
    def __init__(self, einsum: Callable[..., Any], equation: str) -> None:
        super().__init__()
        self.einsum = einsum
        self.equation = equation

    def forward(self, *operands: Any) -> Any:
        return self.einsum(self.equation, *operands)


ANY_SIZE = [
    *EQUATIONS,
    "ij,jk->ik",
    "iij,jk->ki",
    "ij,kj->",
    "ij,->ji",
    "ii->i",
    "cij,cj->cij",
    "abcdei,abcdej->abcdeij",
]


def other_sizes(equation: str) -> Iterator[dict[str, int]]:
    """Lengths of the axes: each axis in turn longer, of length 1, and empty; then all of them."""
    labels = sorted(set(equation) - set("->,"))
    usual = {label: 2 + at % 2 for at, label in enumerate(labels)}
    yield usual
    yield from ({**usual, label: size} for label in labels for size in (4, 1, 0))
    yield from (dict.fromkeys(labels, size) for size in (1, 0))


def values_of(equation: str, sizes: dict[str, int]) -> list[Array]:
    terms = equation.partition("->")[0].split(",")
    return [np.rint(numbers(*(sizes[at] for at in term), seed=seed)) for seed, term in enumerate(terms)]


@pytest.mark.parametrize("traced", [{}, 1, 0], ids=["usual", "ones", "empty"])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("equation", ANY_SIZE)
def test_hybridized_block_takes_any_size(equation: str, dtype: str, traced: Any) -> None:
    block = Block(fast_einsum, equation)
    block.hybridize()
    all_sizes = list(other_sizes(equation))
    first = {label: 3 if traced == {} else traced for label in all_sizes[0]}
    for sizes in (first, *all_sizes):
        values = values_of(equation, sizes)
        wanted = np.einsum(equation, *values)
        check(block(*(mnp.array(value, dtype=dtype) for value in values)), wanted, dtype)


@pytest.mark.parametrize("equation", ANY_SIZE)
def test_gradients_of_a_hybridized_block(equation: str) -> None:
    if any(len(set(term)) < len(term) for term in equation.partition("->")[0].split(",")):
        pytest.skip("the reference takes no diagonals")
    block = Block(fast_einsum, equation)
    block.hybridize()
    for sizes in other_sizes(equation):
        values = values_of(equation, sizes)
        operands = [mnp.array(value, dtype="float64") for value in values]
        weight = numbers(*np.einsum(equation, *values).shape, seed=9)
        for operand in operands:
            operand.attach_grad()
            if operand.size:
                operand.grad[()] = np.nan  # must be written, where there is nothing to sum, too
        with autograd.record():
            result = block(*operands)
        result.backward(mnp.array(weight, dtype="float64"))
        for operand, wanted in zip(operands, gradients(equation, values, weight), strict=True):
            np.testing.assert_allclose(operand.grad.asnumpy(), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize(
    ("equation", "traced", "later"),
    [
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 5)], [(4, 2, 3), (4, 3, 5)]),
        ("bij,bjk->bik", [(4, 2, 3), (1, 3, 5)], [(1, 7, 3), (4, 3, 5)]),
        ("ij,jk->ik", [(2, 1), (3, 4)], [(5, 3), (3, 4)]),
        ("ij,jk->ik", [(2, 1), (3, 4)], [(5, 0), (0, 4)]),
        ("bij,bj->bij", [(3, 2, 1), (3, 4)], [(3, 2, 4), (3, 4)]),
        ("bid,bjd,bd->bij", [(1, 2, 3), (4, 5, 3), (4, 1)], [(4, 7, 6), (4, 1, 6), (4, 6)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)], [(6, 1, 7), (6, 7, 3)]),
    ],
)
def test_broadcast_axes_of_a_patched_block_and_its_export(
    equation: str, traced: Any, later: Any, optimize: bool, tmp_path: Path
) -> None:
    names = [f"data{at}" for at in range(len(traced))]
    with patched("mxnet"):
        block = Block(lambda *arguments: mnp.einsum(*arguments, optimize=optimize), equation)
        block.hybridize()
        run = block
        for shapes in (traced, later, traced):
            values = [np.rint(numbers(*shape)) for shape in shapes]
            check(run(*map(mnp.array, values)), np.einsum(equation, *values), "float32")
            if run is block:
                block.export(str(tmp_path / "block"))
                run = gluon.SymbolBlock.imports(str(tmp_path / "block-symbol.json"), names, None)


def raised(run: Callable[..., Any], *operands: Any) -> None:
    run(*operands)
    npx.waitall()


COMPOSED: list[tuple[str, dict[str, int], list[Any], list[Any], list[Any] | None]] = [
    # equation, sizes, shapes to trace, other shapes, and shapes that MXNet refuses
    (
        "b i (h d), b j (h d) -> b h i j",
        {"h": 4},
        [(2, 6, 8), (2, 5, 8)],
        [(3, 4, 16), (3, 7, 16)],
        [(2, 6, 6), (2, 5, 6)],
    ),
    ("b h i j, b h j d -> b i (h d)", {}, [(2, 4, 6, 5), (2, 4, 5, 3)], [(4, 2, 5, 6), (4, 2, 6, 3)], None),
    ("b i j -> b 1 (i j)", {}, [(2, 4, 6)], [(4, 2, 6)], None),
    ("a b -> 1 (a b)", {}, [(1, 6)], [(3, 4)], None),
    ("b (x y z) -> y b (z x)", {"x": 2, "z": 3}, [(2, 12)], [(3, 24)], [(3, 25)]),
    ("b (x y) -> y b x", {"x": 2, "y": 3}, [(2, 6)], [(5, 6)], [(2, 12)]),
    ("... (x y) 1 -> y ... 1 x", {"x": 2}, [(2, 3, 12, 1)], [(3, 2, 24, 1)], [(2, 3, 12, 2)]),
    ("b (h d), h -> b (h d)", {"h": 4}, [(2, 8), (4,)], [(3, 12), (4,)], [(3, 12), (3,)]),
    ("i (x i) -> i x", {"x": 4}, [(3, 12)], [(4, 16)], [(4, 12)]),
    ("b (h d), b h d -> b d h", {}, [(2, 1), (2, 4, 3)], [(5, 1), (5, 2, 6)], [(2, 12), (2, 4, 3)]),
    ("a (b c) -> c (a b)", {"b": 2}, [(0, 6)], [(3, 4)], None),
    ("row col -> col row", {"row": 4}, [(4, 3)], [(4, 5)], [(6, 4)]),
    ("... col -> col ...", {"col": 3}, [(4, 3)], [(5, 3)], [(5, 4)]),
]


@pytest.mark.parametrize("imported", [False, True])
@pytest.mark.parametrize(("equation", "sizes", "traced", "later", "wrong"), COMPOSED)
def test_compositions_hold_for_all_sizes(
    equation: str, sizes: dict[str, int], traced: Any, later: Any, wrong: Any, imported: bool, tmp_path: Path
) -> None:
    block: Any = Block(lambda equation, *arrays: fast_einsum(equation, *arrays, **sizes), equation)
    block.hybridize()
    for shapes in (traced, later, traced):
        values = [numbers(*shape, seed=seed) for seed, shape in enumerate(shapes)]
        check(block(*map(mnp.array, values)), fast_einsum(equation, *values, **sizes), "float32")
        if imported and isinstance(block, Block):
            block.export(str(tmp_path / "block"))
            names = [f"data{at}" for at in range(len(traced))] if len(traced) > 1 else ["data"]
            block = gluon.SymbolBlock.imports(str(tmp_path / "block-symbol.json"), names, None)
    if wrong is not None:
        with pytest.raises(mxnet.MXNetError):
            raised(block, *[mnp.array(numbers(*shape)) for shape in wrong])


def test_a_block_without_the_sizes_that_it_needs_is_refused() -> None:
    block = Block(fast_einsum, "b (h d), h -> b d")
    block.hybridize()
    with pytest.raises(ShapeError, match=r"axis 1 of operand 0, \(h d\), is split into h and d .* as in h=8"):
        block(mnp.ones((2, 6)), mnp.ones((3,)))
    assert fast_einsum("b (h d), h -> b d", mnp.ones((2, 6)), mnp.ones((3,))).shape == (2, 2)


def test_attention_in_a_block_is_refused() -> None:
    q = mnp.ones((2, 4, 6, 8))
    for function in (lambda q: attention(q, q, q, layout="bshd"), lambda q: scaled_dot_product_attention(q, q, q)):
        function(q)
        block = Block(lambda _, q, function=function: function(q), "")
        block.hybridize()
        with pytest.raises(OperandError, match="MXNet traces the call for arrays of any size"):
            block(q)
