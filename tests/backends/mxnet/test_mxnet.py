"""The MXNet backend: values, dtypes and gradients."""

from typing import Any

import numpy as np
import pytest
from mxnet_equations import EQUATIONS, RTOL, autograd, check, gradients, mnp, mxnet, numbers, shapes_of

from einops_fast import OperandError, contract_expression, fast_einsum

# ---- values


@pytest.mark.parametrize("dtype", RTOL)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_values_and_dtype(equation: str, dtype: str) -> None:
    values = [np.rint(numbers(*shape)) for shape in shapes_of(equation)]
    if dtype in ("uint8", "bool"):
        values = [abs(value) % 2 for value in values]
    wanted = np.einsum(equation, *values)
    check(fast_einsum(equation, *(mnp.array(value, dtype=dtype) for value in values)), wanted, dtype)


OF_SHAPES: list[tuple[Any, ...]] = [
    ("ijk->i", (30, 20, 40)),
    ("ijk->k", (30, 20, 40)),
    ("ijk->j", (30, 20, 40)),
    ("ij->", (100, 200)),
    ("abcdefgh->bdfh", (3, 2) * 4),
    ("abcdefgh->bdfh", (4, 3) * 4),
    ("ij->i", (2, 0)),
    ("ij->ji", (2, 3)),
    ("iji->ij", (3, 2, 3)),
    ("iii->i", (3, 3, 3)),
    ("ij,ij->ij", (2, 3), (2, 3)),
    ("ij,->ij", (2, 3), ()),
    ("ij,j->ij", (0, 3), (3,)),
    ("ijk,ik->ijk", (2, 3, 4), (2, 4)),
    ("i,j->ji", (3,), (4,)),
    ("ace,bdf->abcdef", (2, 2, 2), (2, 2, 2)),
    ("abcdefgh,h->abcdefgh", (2,) * 8, (2,)),
    ("ij,ji->i", (2, 3), (3, 2)),
    ("bij,bj->bi", (2, 3, 4), (2, 4)),
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ji,kj->ik", (3, 2), (4, 3)),
    ("ij,jk->ik", (2, 0), (0, 4)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", OF_SHAPES, ids=str)
def test_sums_and_products_of_small_and_large_arrays(case: Any, dtype: str) -> None:
    """Their results share no memory with the operands."""
    equation, *shapes = case
    values = [numbers(*shape, seed=at).astype(dtype) for at, shape in enumerate(shapes)]
    operands = [mnp.array(value, dtype=dtype) for value in values]
    got = fast_einsum(equation, *operands)
    check(got, np.asarray(np.einsum(equation, *values)), dtype)
    got[()] = 0
    for operand, value in zip(operands, values, strict=True):
        np.testing.assert_array_equal(operand.asnumpy(), value)


def test_dtype_and_casting() -> None:
    a, b = mnp.ones((2, 3), dtype="float32"), mnp.ones((3, 4), dtype="float64")
    with pytest.raises(OperandError, match="operands 0 and 1 have two dtypes"):
        fast_einsum("ij,jk->ik", a, b)
    assert fast_einsum("ij,jk->ik", a, b, dtype="float64").dtype == np.float64
    with pytest.raises(OperandError, match="operand 1 has dtype float64"):
        fast_einsum("ij,jk->ik", a, b, dtype="float32")
    assert fast_einsum("ij,jk->ik", a, b, dtype="float32", casting="same_kind").dtype == np.float32


def test_out_and_order() -> None:
    a, b = mnp.ones((2, 3)), mnp.ones((3, 4))
    out = mnp.zeros((2, 4), dtype="float64")
    assert fast_einsum("ij,jk->ik", a, b, out=out) is out
    assert (out.asnumpy() == 3).all()
    total = mnp.zeros(())
    assert fast_einsum("ij->", a, out=total) is total
    assert total.item() == 6
    with pytest.raises(OperandError, match="shape"):
        fast_einsum("ij,jk->ik", a, b, out=mnp.zeros((4, 2)))
    with pytest.raises(OperandError, match="doesn't convert"):
        fast_einsum("ij,jk->ik", a, b, out=mnp.zeros((2, 4), dtype="int32"))
    assert fast_einsum("ij,jk->ik", a, b, order="C").shape == (2, 4)
    with pytest.raises(OperandError, match="C order"):
        fast_einsum("ij,jk->ik", a, b, order="F")
    narrow, flat = mnp.ones((4, 1)), mnp.ones((1, 3))
    for found in (
        fast_einsum("ij,jk->ik", narrow, flat, order="A"),
        contract_expression("ij,jk->ik", narrow.shape, flat.shape, order="A")(narrow, flat),
    ):
        assert found.shape == (4, 3)


def test_operands_that_do_not_belong_together() -> None:
    a = mnp.ones((2, 2))
    with pytest.raises(OperandError, match=r"operands 0 and 1 .* cpu\(0\) and cpu\(1\)"):
        fast_einsum("ij,jk->ik", a, mnp.ones((2, 2), device=mxnet.cpu(1)))
    with pytest.raises(OperandError):
        fast_einsum("ij,jk->ik", a, np.ones((2, 2)))
    with pytest.raises(OperandError):
        fast_einsum("ij,jk->ik", a, a.as_nd_ndarray())


# ---- gradients


@pytest.mark.parametrize("grad_req", ["write", "add"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradients(equation: str, grad_req: str) -> None:
    values = [numbers(*shape, seed=at) for at, shape in enumerate(shapes_of(equation))]
    operands = [mnp.array(value, dtype="float64") for value in values]
    weight = numbers(*np.einsum(equation, *values).shape, seed=9)
    times = 2 if grad_req == "add" else 1
    for operand in operands:
        operand.attach_grad(grad_req)
    for _ in range(2):
        with autograd.record():
            result = fast_einsum(equation, *operands)
        result.backward(mnp.array(weight, dtype="float64"))
    for operand, wanted in zip(operands, gradients(equation, values, weight), strict=True):
        np.testing.assert_allclose(operand.grad.asnumpy(), times * wanted, rtol=1e-9, atol=1e-9)


def test_gradient_where_an_axis_is_broadcast() -> None:
    """MXNet's own einsum gets this one wrong."""
    a, b, weight = numbers(1, 2, 3), numbers(4, 3, 5, seed=1), numbers(4, 2, 5, seed=2)
    left, right = mnp.array(a, dtype="float64"), mnp.array(b, dtype="float64")
    left.attach_grad()
    with autograd.record():
        result = fast_einsum("bij,bjk->bik", left, right)
    result.backward(mnp.array(weight, dtype="float64"))
    np.testing.assert_allclose(left.grad.asnumpy()[0], np.einsum("bik,bjk->ij", weight, b), rtol=1e-9)
