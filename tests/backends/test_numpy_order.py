"""How the results of a patched einsum of NumPy lie in memory: as NumPy's own where that takes no copy."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from einops_fast import fast_einsum, patched
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


def test_axes_of_one_element_make_no_difference() -> None:
    a, b = np.ones((1, 60, 70)), np.ones((70, 1, 80))
    with patched("numpy"):
        assert np.einsum("nij,jmk->nmik", a, b).flags.c_contiguous


def test_fast_einsum_writes_in_the_order_of_the_axes() -> None:
    a, b = operands("ij,jk->ki", "CC")
    assert fast_einsum("ij,jk->ki", a, b).flags.c_contiguous
