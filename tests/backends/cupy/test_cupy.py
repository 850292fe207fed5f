"""CuPy arrays on a GPU: values, dtypes, views and errors as in cupy.einsum."""

from typing import Any

import numpy as np
import pytest

from einops_fast import OperandError, explain, fast_einsum, patched

pytestmark = pytest.mark.gpu

EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("bind,bjnd->bnij", (3, 5, 2, 4), (3, 6, 2, 4)),
    ("bind,jnd->bnij", (3, 5, 2, 4), (6, 2, 4)),
    ("bnij,bjnd->bind", (3, 2, 5, 6), (3, 6, 2, 4)),
    ("bij,bij->b", (3, 4, 5), (3, 4, 5)),
    ("bij,bj->bij", (3, 4, 5), (3, 5)),
    ("bik,bjk->ij", (3, 4, 5), (3, 6, 5)),
    ("ai,ij,jk,kb->ab", (5, 2), (2, 3), (3, 4), (4, 6)),
    ("iij,jk->ik", (3, 3, 4), (4, 2)),
    ("ii", (4, 4)),
    ("ijk->k", (2, 3, 4)),
    ("ij,jk", (0, 3), (3, 4)),
    ("ij,jk", (2, 0), (0, 4)),
    ("bij,bjk->bik", (1, 3, 4), (5, 4, 2)),
]


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "int32"])
@pytest.mark.parametrize(("equation", "shapes"), [(case[0], case[1:]) for case in EQUATIONS])
def test_values_and_dtype(cupy: Any, equation: str, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    result = fast_einsum(equation, *map(cupy.asarray, arrays))
    assert isinstance(result, cupy.ndarray)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result.get(), np.einsum(equation, *arrays))


def test_layouts_do_not_matter(cupy: Any) -> None:
    a = np.arange(120.0).reshape(2, 3, 4, 5)
    b = np.arange(240.0).reshape(4, 3, 4, 5)[::2, :, ::-1]
    expected = np.einsum("bind,bjnd->bnij", a, b)
    for order in [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)]:
        back = np.argsort(order)
        moved = cupy.asarray(np.ascontiguousarray(a.transpose(order))).transpose(back)
        np.testing.assert_array_equal(fast_einsum("bind,bjnd->bnij", moved, cupy.asarray(b)).get(), expected)


def test_single_operand_gives_a_view(cupy: Any) -> None:
    a = cupy.arange(9.0).reshape(3, 3)
    for equation in ("ij->ji", "ii->i"):
        fast_einsum(equation, a)[...] = -1.0
    assert (a == -1.0).all()


def test_patched_call_gives_the_same(cupy: Any) -> None:
    a, b = cupy.ones((4, 3, 2)), cupy.ones((4, 5, 2))
    native = cupy.einsum("bik,bjk->bij", a, b)
    with patched("cupy"):
        assert (cupy.einsum("bik,bjk->bij", a, b) == native).all()


def test_frameworks_do_not_mix(cupy: Any) -> None:
    with pytest.raises(OperandError, match="operands 0 and 1 are of two frameworks, cupy and numpy"):
        fast_einsum("ij,jk->ik", cupy.ones((2, 3)), np.ones((3, 4)))


def test_axes_that_do_not_merge_are_copied_not_multiplied_out(cupy: Any) -> None:
    step = explain("bind,bjnd->bnij", cupy.ones((16, 100, 8, 128)), cupy.ones((16, 50, 8, 128))).steps[0]
    assert step.kind in ("gemm", "fused")  # by what is installed
