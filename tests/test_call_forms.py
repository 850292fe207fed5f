"""Spellings of labels, options and paths that NumPy's einsum takes, and those that it refuses."""

from typing import Any

import numpy as np
import pytest

from einops_fast import EinsumError, OperandError, contract_expression, fast_einsum, patched

A, B = np.arange(9.0).reshape(3, 3), np.ones((3, 3))


@pytest.mark.parametrize(
    "arguments",
    [
        (A, np.array([0, 0])),
        (A, np.array([0, 0], "uint8"), np.array([0])),
        (A, [1, 0], np.array([], int)),
        (A, [np.int64(0), np.int8(1)], B, (1, 2), [2, 0]),
        (A, range(2), B, range(1, 3)),
        (A, np.array([..., 1], object), B, [1, ...]),
    ],
    ids=["array", "result", "none left", "integers", "range", "ellipsis"],
)
def test_lists_of_labels(arguments: tuple[Any, ...]) -> None:
    wanted = np.einsum(*arguments)
    np.testing.assert_array_equal(fast_einsum(*arguments), wanted)
    with patched("numpy"):
        np.testing.assert_array_equal(np.einsum(*arguments), wanted)


@pytest.mark.parametrize(
    "labels", [[False, True], [-1, 0], [0, 52], [0.0, 1.0], "ij", np.array([0.0, 1.0]), np.array([[0, 1]])], ids=repr
)
def test_labels_that_numpy_refuses_are_refused_by_the_patched_function(labels: Any) -> None:
    for _ in range(2):
        with patched("numpy"), pytest.raises((TypeError, ValueError)):
            np.einsum(A, labels)


@pytest.mark.parametrize("order", ["c", "f", "a", "k", b"F", None])
def test_spellings_of_order(order: Any) -> None:
    wanted = np.einsum("ij,jk->ik", A, B, order=order)
    expression = contract_expression("ij,jk->ik", A.shape, B.shape, order=order)
    for found in (fast_einsum("ij,jk->ik", A, B, order=order), expression(A, B)):
        np.testing.assert_array_equal(found, wanted)
        if order is not None and order not in ("k", b"k"):
            assert found.strides == wanted.strides


@pytest.mark.parametrize("path", [[(1,), (0, 1)], [(0, 1)], [(0, 3), (0, 1)], [(0.0, 1.0), (0, 1)], ["x", (0, 1)], []])
@pytest.mark.parametrize("count", [2, 3])
def test_paths_that_numpy_refuses(path: list[Any], count: int) -> None:
    equation, arrays = ",".join(["ij", "jk", "kl"][:count]), [A, B, A][:count]

    def outcome() -> Any:
        try:
            return np.einsum(equation, *arrays, optimize=["einsum_path", *path])
        except (TypeError, IndexError, RuntimeError) as error:
            return type(error)

    wanted = outcome()
    for _ in range(2):
        with patched("numpy"):
            found = outcome()
        assert found is wanted if isinstance(wanted, type) else np.array_equal(found, wanted)


@pytest.mark.parametrize("operands", ["C", "F"])
@pytest.mark.parametrize("order", ["A", "C", "F"])
@pytest.mark.parametrize("equation", ["bij,bjk->bik", "bij,bjk->kib", "bij,bjk->ibk"])
def test_orders_of_results(equation: str, order: Any, operands: Any) -> None:
    a, b = (np.ones(shape, order=operands) for shape in ((3, 4, 5), (3, 5, 6)))
    wanted = np.einsum(equation, a, b, order=order).strides
    assert fast_einsum(equation, a, b, order=order).strides == wanted
    assert contract_expression(equation, a.shape, b.shape, order=order)(a, b).strides == wanted


def test_equations_of_bytes() -> None:
    first, second = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
    expected = first @ second
    for operands in ((first, second), ([first, second],)):
        assert np.array_equal(fast_einsum(b"ij,jk->ik", *operands), expected)
    assert np.array_equal(contract_expression(b"ij,jk->ik", (2, 3), (3, 4))(first, second), expected)
    with pytest.raises(EinsumError, match="no operands"):
        fast_einsum(b"ij->i")


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij->ji", "ij,jk,kl->il", "ij,ij->ij"])
def test_an_out_that_is_read_only(equation: str) -> None:
    array, out = np.ones((40, 40)), np.zeros((40, 40))
    out.flags.writeable = False
    for _ in range(3):
        with pytest.raises(OperandError, match="out is read-only"):
            fast_einsum(equation, *[array] * (equation.count(",") + 1), out=out)
    assert not out.any()
