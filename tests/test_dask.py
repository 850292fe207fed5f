"""Einsum of Dask arrays: contracted block by block, by plans and on arrays of NumPy."""

from math import prod
from typing import Any

import numpy as np
import pytest

from einops_fast import contract_expression, fast_einsum, patched
from einops_fast.errors import OperandError, ShapeError

dask = pytest.importorskip("dask")
da = pytest.importorskip("dask.array")

CASES = [
    ("ij,jk->ik", (7, 8), (8, 5)),
    ("bind,bjnd->bnij", (2, 5, 3, 4), (2, 6, 3, 4)),
    ("batch i head d, batch j head d -> batch head i j", (2, 5, 3, 4), (2, 6, 3, 4)),
    ("ij,jk,kl->il", (7, 8), (8, 5), (5, 6)),
    ("ai,ij,bj,ab->", (4, 5), (5, 6), (3, 6), (4, 3)),
    ("ii->i", (6, 6)),
    ("ii", (6, 6)),
    ("iji,j->i", (6, 5, 6), (5,)),
    ("abc->ca", (3, 4, 5)),
    ("i,j->ij", (50,), (40,)),
    ("ij,ij->ji", (5, 6), (5, 6)),
    ("ij,j->i", (5, 6), (1,)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 4)),
]


def blocked(array: Any) -> Any:
    return da.from_array(array, chunks=tuple(max(1, size // 2 + 1) for size in array.shape))


def arrays(*shapes: tuple[int, ...], dtype: str = "float64") -> list[Any]:
    source = np.random.default_rng(0)
    return [(3 * source.standard_normal(shape)).astype(dtype) for shape in shapes]


@pytest.mark.parametrize(("equation", "shapes"), [(case[0], case[1:]) for case in CASES])
def test_blocks_give_what_whole_arrays_do(equation: str, shapes: Any) -> None:
    given = arrays(*shapes)
    expected = fast_einsum(equation, *given)
    found = fast_einsum(equation, *map(blocked, given))
    assert isinstance(found, da.Array)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found.compute(scheduler="threads"), expected, atol=1e-12)


@pytest.mark.parametrize("chunks", [((2, 4), (6,)), ((2, 4), (4, 2)), ((6,), (1, 5))])
@pytest.mark.parametrize("equation", ["ii->i", "ii", "ii,j->ij", "ii,ij->j"])
def test_axes_of_a_diagonal_have_blocks_of_their_own(equation: str, chunks: Any) -> None:
    square, row, block = arrays((6, 6), (5,), (6, 5))
    others = [{"j": row, "ij": block}[term] for term in equation.split("->")[0].split(",")[1:]]
    found = fast_einsum(equation, da.from_array(square, chunks=chunks), *others).compute(scheduler="sync")
    np.testing.assert_allclose(found, np.einsum(equation, square, *others), atol=1e-12)


@pytest.mark.parametrize("dtype", ["int8", "bool", "float32", "complex64"])
def test_dtypes_are_numpys(dtype: str) -> None:
    given = arrays((70, 80), (80, 50), dtype=dtype)
    expected, found = np.einsum("ij,jk->ik", *given), fast_einsum("ij,jk->ik", *map(blocked, given))
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.compute(scheduler="threads"), expected, rtol=1e-4, atol=1e-4)


def test_groups_of_axes_and_arrays_of_numpy() -> None:
    x, weight = arrays((4, 6, 8), (8, 12))
    found = fast_einsum("b i d, d (h e) -> b h i e", blocked(x), weight, h=3)
    expected = fast_einsum("b i d, d (h e) -> b h i e", x, weight, h=3)
    np.testing.assert_allclose(found.compute(scheduler="threads"), expected, atol=1e-12)


def test_expressions_take_them() -> None:
    given = arrays((7, 8), (8, 5))
    found = contract_expression("ij,jk->ik", (7, 8), (8, 5))(*map(blocked, given))
    np.testing.assert_allclose(found.compute(scheduler="threads"), given[0] @ given[1])


def test_numpys_own_function_is_left_to_dask() -> None:
    """Under a patch, its blocks are contracted by ours."""
    given = arrays((7, 8), (8, 5))
    with patched("numpy"):
        found = np.einsum("ij,jk->ik", *map(blocked, given))
        assert isinstance(found, da.Array)
        np.testing.assert_allclose(found.compute(scheduler="threads"), given[0] @ given[1])


def test_blocks_of_outer_products_stay_small() -> None:
    given = [da.ones((4000,), chunks=2000), da.ones((3000,), chunks=1500)]
    assert fast_einsum("i,j->ij", *given).chunksize == (2000, 1500)
    with dask.config.set({"array.chunk-size": "4MiB"}):
        found = fast_einsum("i,j->ij", *given)
    assert 1 << 20 <= 8 * prod(found.chunksize) <= 1 << 22


def test_what_is_refused() -> None:
    one, other = map(blocked, arrays((7, 8), (8, 5)))
    with pytest.raises(OperandError, match="out isn't for Dask"):
        fast_einsum("ij,jk->ik", one, other, out=np.empty((7, 5)))
    with pytest.raises(OperandError, match="operand 0 has blocks of unknown sizes"):
        fast_einsum("ij,jk->ik", one[one[:, 0] > 0], other)
    with pytest.raises(OperandError, match="operand 0 has dtype float64"):
        fast_einsum("ij,jk->ik", one, other, dtype="float32", casting="safe")
    with pytest.raises(ShapeError, match="axis 'j'"):
        fast_einsum("ij,jk->ik", one, other[:5])
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="operand 0 is of type Array, the others are torch"):
        fast_einsum("ij,jk->ik", one, torch.ones(8, 5))
