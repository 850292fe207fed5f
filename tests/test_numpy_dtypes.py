"""NumPy dtypes of other packages, for which einsum's own loops return zeros."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from einops_fast import fast_einsum, patched


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ij,ij->ij", "ij,ij->", "ij,ji->i", "ii->", "ij->j", "ij->ji", "ii->i", "ij,jk,kl->il"]
)
@pytest.mark.parametrize("under_patch", [False, True])
def test_quad_precision(equation: str, under_patch: bool) -> None:
    package: Any = pytest.importorskip("numpy_quaddtype")
    array = np.arange(9.0).reshape(3, 3)
    count = equation.count(",") + 1
    operands = [array.astype(package.QuadPrecDType())] * count
    with patched("numpy") if under_patch else nullcontext():
        result = (np.einsum if under_patch else fast_einsum)(equation, *operands)
    assert np.asarray(result).dtype == package.QuadPrecDType()
    np.testing.assert_array_equal(np.asarray(result).astype(float), np.einsum(equation, *[array] * count))


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->", "ii->", "ij->j", "ii->i", "ij,jk,kl->il"])
def test_sums_of_products_by_ufuncs(equation: str) -> None:
    from einops_fast.backends import get_backend

    arrays = [np.arange(9.0).reshape(3, 3)] * (equation.count(",") + 1)
    result = get_backend("numpy")._by_ufuncs(equation, arrays)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(result, np.einsum(equation, *arrays))
