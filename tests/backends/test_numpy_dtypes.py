"""NumPy dtypes of other packages: einsum has no loops for them, and returns zeros or raises."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from einops_fast import OperandError, fast_einsum, patched


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
        operands = [operand[None] if "b" in equation else operand] * count
        if "i,j" in equation[:3]:
            operands = [operand[0]] * 2
        with pytest.raises(OperandError, match=f"no products and sums of {dtype}: convert"):
            fast_einsum(equation, *operands)
        wide = fast_einsum(equation, *operands, dtype="float32")
        np.testing.assert_array_equal(wide, np.einsum(equation, *[each.astype("float32") for each in operands]))
        with patched("numpy"), pytest.raises(TypeError, match=r"^invalid data type for einsum$"):
            np.einsum(equation, *operands)
    three = "ij,jk,kl->il", operand, operand, operand
    expected = np.einsum(*three, optimize=True)
    with patched("numpy"):
        np.testing.assert_array_equal(np.einsum(*three, optimize=True).astype(float), expected.astype(float))
