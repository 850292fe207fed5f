"""Einsum of Dask arrays: contracted block by block, by plans and on arrays of NumPy."""

from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einops_fast import contract_expression, explain, fast_einsum, memory_limit, patched
from einops_fast.errors import EinsumError, OperandError, ShapeError

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


def test_steps_are_explained_with_their_tasks() -> None:
    x, y, z = da.ones((100, 80), chunks=50), da.ones((80, 60), chunks=40), da.ones((60, 30), chunks=20)
    found = explain("row j,j k,k l->row l", x, y, z, optimize=[(0, 1), (0, 1)])
    assert found.path == ((0, 1), (0, 1))
    assert [step.kind for step in found.steps] == ["gemm", "gemm"]
    assert [line.split(" in ")[1] for line in found.sharing] == [
        "12 tasks: blocks of up to 50×40, each the sum of 3",
        "12 tasks: blocks of up to 50×20, each the sum of 3",
    ]
    assert found.sharing[0] in str(found)
    assert explain("b (h i), b j -> h i j", x, y[:7].T[:1].repeat(100, 0), h=4).to_dict()["sharing"]
    huge = da.ones((1 << 20, 1 << 20), chunks=1 << 19)
    assert explain("ij,jk->ik", [huge, huge]).flops == 2 << 60


def test_tasks_keep_to_a_memory_limit() -> None:
    given = arrays((40, 400, 5), (400, 5, 40), (40, 3))
    blocks = [da.from_array(each, chunks=-1) for each in given]
    call = partial(fast_einsum, "iab,abj,jk->ik", *blocks)
    np.testing.assert_allclose(
        call(memory_limit="20 kB").compute(scheduler="threads"), fast_einsum("iab,abj,jk->ik", *given)
    )
    with memory_limit(3000):
        found = call()
    with pytest.raises(EinsumError, match="KiB is too little for"):
        found.compute(scheduler="threads")


def test_arrays_go_from_disk_to_disk_by_a_cluster(tmp_path: Path) -> None:
    """Of a worker that has less memory than the arrays take."""
    distributed, zarr = pytest.importorskip("distributed"), pytest.importorskip("zarr", "3")
    left, right, product = (str(tmp_path / name) for name in ("left", "right", "product"))
    of_left, of_right = (np.arange(8000, dtype="float32") % step for step in (5, 7))
    for path, row in ((left, of_left), (right, of_right)):
        stored = zarr.create_array(path, shape=(8000, 8000), chunks=(1000, 1000), dtype="float32")
        for at in range(0, 8000, 1000):
            stored[at : at + 1000] = np.broadcast_to(row[at : at + 1000, None], (1000, 8000))
    with (
        distributed.LocalCluster(1, threads_per_worker=1, memory_limit="400 MiB", dashboard_address=None) as cluster,
        distributed.Client(cluster),
    ):
        x, y = da.from_zarr(left), da.from_zarr(right)
        assert x.nbytes + y.nbytes > 400 << 20
        fast_einsum("ij,ij->ij", x, y).to_zarr(product)
        total = fast_einsum("ij,ij->j", x, y).compute()
    expected = of_left * of_right
    for at in (0, 4000):
        np.testing.assert_array_equal(zarr.open_array(product)[at : at + 9], np.tile(expected[at : at + 9, None], 8000))
    np.testing.assert_allclose(total, np.full(8000, expected.sum()), rtol=1e-5)


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
