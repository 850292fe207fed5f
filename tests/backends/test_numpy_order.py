"""Where results of a patched einsum of NumPy lie, which steps stacks of small matrices get, and products of ufuncs."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from einops_fast import OperandError, fast_einsum, patched
from einops_fast.backends import get_backend
from einops_fast.runtime.plan_cache import clear_plans

SIZES = {"n": 5, "b": 6, "i": 27, "j": 28, "k": 29, "t": 50, "f": 30, "m": 40}
EQUATIONS = ["ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "bft,mf->bmt", "nij,njk->nik", "nij,njk->ink", "nij,jk->nik"]
# With all operands in Fortran order these would be written with gaps between neighbours, and copied from there.
WITH_GAPS = {"nij,njk->nik", "nij,njk->ink"}


def operands(equation: str, orders: Any) -> list[Any]:
    terms = equation.replace("...", "b").partition("->")[0].split(",")
    return [np.ones([SIZES[label] for label in term], order=order) for term, order in zip(terms, orders, strict=True)]


def slowest_first(array: Any) -> list[int]:
    return sorted(range(array.ndim), key=lambda at: -array.strides[at])


@pytest.mark.parametrize("orders", [*product("CF", repeat=2)], ids="".join)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_axes_lie_in_numpys_order(equation: str, orders: Any) -> None:
    arrays = operands(equation, orders)
    wanted = np.einsum(equation, *arrays)
    with patched("numpy"):
        for _ in range(2):  # planned, then looked up
            result = np.einsum(equation, *arrays)
            np.testing.assert_array_equal(result, wanted)
            if orders != ("F", "F") or equation not in WITH_GAPS:
                assert slowest_first(result) == slowest_first(wanted)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Price BLAS with one thread. With several, another product may be worth more than the order."""
    backend: Any = get_backend("numpy")
    ceilings = replace(backend._target.ceilings, fork=0.0)
    monkeypatch.setattr(backend, "_target", backend._target.replace(ceilings=ceilings))
    clear_plans()
    yield
    clear_plans()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("optimize", [True, False])
def test_order_of_numpys_own_test(optimize: bool) -> None:
    a, b = operands("...ft,mf->...mt", "FF")
    wanted = np.einsum("...ft,mf->...mt", a, b, optimize=optimize)
    assert not wanted.flags.c_contiguous
    assert not wanted.flags.f_contiguous
    with patched("numpy"):
        result = np.einsum("...ft,mf->...mt", a, b, optimize=optimize)
        assert slowest_first(result) == slowest_first(wanted)
        for order, each in product("cf", (a, np.ascontiguousarray(a))):
            result = np.einsum("...ft,mf->...mt", each, b, order=order, optimize=optimize)
            assert result.flags[f"{order.upper()}_CONTIGUOUS"]


def test_orders_with_and_without_optimize_are_kept_apart() -> None:
    a, b = operands("ij,jk->ik", "FF")
    wanted = [slowest_first(np.einsum("ij,jk->ik", a, b, optimize=optimize)) for optimize in (False, True)]
    for optimizes in ((False, True), (True, False)):
        clear_plans()
        with patched("numpy"):
            for optimize in (*optimizes, *optimizes):
                options = {"optimize": True} if optimize else {}
                result = np.einsum("ij,jk->ik", a, b, **options)
                assert slowest_first(result) == wanted[optimize]


def test_tall_products_with_optimize_lie_as_numpys_do() -> None:
    a, b = np.ones((1000, 4)), np.ones((4, 4))
    wanted = np.einsum("ij,jk->ik", a, b, optimize=True)
    with patched("numpy"):
        for _ in range(2):
            assert np.einsum("ij,jk->ik", a, b, optimize=True).strides == wanted.strides
            assert np.einsum("ij,jk->ik", a, b).flags.c_contiguous


STACK_SIZES = {"n": 1000, "a": 10, "b": 100}


def stacks(equation: str, dtype: str, side: int) -> list[Any]:
    generator = np.random.default_rng(0)
    shapes = [[STACK_SIZES.get(label, side) for label in term] for term in equation.partition("->")[0].split(",")]
    arrays = [generator.normal(size=shape) for shape in shapes]
    if np.dtype(dtype).kind == "c":
        arrays = [array + 1j * generator.normal(size=array.shape) for array in arrays]
    return [array.astype(dtype) for array in arrays]


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ij,ij->ij", "ij,ij->", "ij,ji->i", "ii->", "ij->j", "ij->ji", "ii->i", "ij,jk,kl->il"]
)
@pytest.mark.parametrize("under_patch", [False, True])
def test_quad_precision(equation: str, under_patch: bool) -> None:
    package: Any = pytest.importorskip("numpy_quaddtype")
    array = np.arange(9.0).reshape(3, 3)
    count = equation.count(",") + 1
    stacks = [array.astype(package.QuadPrecDType())] * count
    with patched("numpy") if under_patch else nullcontext():
        result = (np.einsum if under_patch else fast_einsum)(equation, *stacks)
    assert np.asarray(result).dtype == package.QuadPrecDType()
    np.testing.assert_array_equal(np.asarray(result).astype(float), np.einsum(equation, *[array] * count))


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_dtypes_of_ml_dtypes(dtype: str) -> None:
    """NumPy's own result, or one sentence that says what to do; under the patch, what NumPy does."""
    kind: Any = getattr(pytest.importorskip("ml_dtypes"), dtype)
    array = np.arange(4.0).reshape(2, 2)
    operand = array.astype(kind)
    for equation in ("ij->ji", "ii->i"):
        result = fast_einsum(equation, operand)
        assert result.dtype == kind
        np.testing.assert_array_equal(result.astype(float), np.einsum(equation, array))
    for equation in ("ij,jk->ik", "ij->i", "ij,ij->", "i,j->ij", "ij,jk,kl->il", "bij,bjk->bik"):
        count = equation.count(",") + 1
        stacks = [operand[None] if "b" in equation else operand] * count
        if "i,j" in equation[:3]:
            stacks = [operand[0]] * 2
        with pytest.raises(OperandError, match=f"no products and sums of {dtype}: convert"):
            fast_einsum(equation, *stacks)
        wide = fast_einsum(equation, *stacks, dtype="float32")
        np.testing.assert_array_equal(wide, np.einsum(equation, *[each.astype("float32") for each in stacks]))
        with patched("numpy"), pytest.raises(TypeError, match=r"^invalid data type for einsum$"):
            np.einsum(equation, *stacks)
    three = "ij,jk,kl->il", operand, operand, operand
    expected = np.einsum(*three, optimize=True)
    with patched("numpy"):
        np.testing.assert_array_equal(np.einsum(*three, optimize=True).astype(float), expected.astype(float))
