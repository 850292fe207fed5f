"""What each step of a plan becomes in MXNet."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from mxnet_equations import check, numbers
from optional_mxnet import mxnet_or_skip

from einops_fast.backends import get_backend
from einops_fast.planning.steps import AS_IS, Arrange, Cast, Diagonal, Gemm, Multiply, Native, Select, Step, Sum, View

Array = npt.NDArray[Any]

mxnet = mxnet_or_skip()
autograd, gluon, mnp, npx = mxnet.autograd, mxnet.gluon, mxnet.np, mxnet.npx
backend: Any = get_backend("mxnet")


Q, K = (4, 5, 2, 6), (4, 3, 2, 6)

STEPS: dict[str, tuple[Step, list[tuple[int, ...]], Callable[..., Array]]] = {
    "cast": (Cast((0,), "ij", (2, 3), "float32"), [(2, 3)], lambda a: a),
    "diagonal": (Diagonal((0,), "ij", (3, 2), ((0, 2), (1,))), [(3, 2, 3)], lambda a: np.einsum("iji->ij", a)),
    "diagonal of three": (Diagonal((0,), "i", (3,), ((0, 1, 2),)), [(3, 3, 3)], lambda a: np.einsum("iii->i", a)),
    "select": (Select((0,), "j", (3,), (0, 2)), [(2, 3, 4)], lambda a: a[0, :, 0]),
    "sum of last": (Sum((0,), "i", (2,), (1, 2)), [(2, 3, 4)], lambda a: a.sum((1, 2))),
    "sum of first": (Sum((0,), "k", (4,), (0, 1)), [(2, 3, 4)], lambda a: a.sum((0, 1))),
    "sum of all": (Sum((0,), "", (), (0, 1)), [(2, 3)], lambda a: a.sum()),
    "sum of many axes": (Sum((0,), "bdfh", (2,) * 4, (0, 2, 4, 6)), [(3, 2) * 4], lambda a: a.sum((0, 2, 4, 6))),
    "large sum of last": (Sum((0,), "i", (30,), (1, 2)), [(30, 20, 40)], lambda a: a.sum((1, 2))),
    "large sum of first": (Sum((0,), "k", (40,), (0, 1)), [(30, 20, 40)], lambda a: a.sum((0, 1))),
    "large sum of first and last": (Sum((0,), "j", (20,), (0, 2)), [(30, 20, 40)], lambda a: a.sum((0, 2))),
    "large sum of all": (Sum((0,), "", (), (0, 1)), [(100, 200)], lambda a: a.sum()),
    "large sum of many axes": (
        Sum((0,), "bdfh", (3,) * 4, (0, 2, 4, 6)),
        [(4, 3) * 4],
        lambda a: a.sum((0, 2, 4, 6)),
    ),
    "sum of nothing": (Sum((0,), "i", (2,), (1,)), [(2, 0)], lambda a: a.sum(1)),
    "view": (View((0,), "ji", (3, 2), Arrange((1, 0), None, "no strides")), [(2, 3)], lambda a: a.T),
    "copy": (View((0,), "ij", (2, 3), Arrange(None, None, "no strides")), [(2, 3)], lambda a: a),
    "product of equals": (
        Multiply((0, 1), "ij", (2, 3), AS_IS, AS_IS, 0, 6),
        [(2, 3), (2, 3)],
        lambda a, b: a * b,
    ),
    "product with broadcasting": (
        Multiply((0, 1), "ijk", (2, 3, 4), AS_IS, Arrange(None, (2, 1, 4)), 0, 24),
        [(2, 3, 4), (2, 4)],
        lambda a, b: a * b[:, None],
    ),
    "product with a number": (Multiply((0, 1), "ij", (2, 3), AS_IS, AS_IS, 0, 6), [(2, 3), ()], lambda a, b: a * b),
    "product of nothing": (
        Multiply((0, 1), "ij", (0, 3), AS_IS, AS_IS, 0, 0),
        [(0, 3), (3,)],
        lambda a, b: a * b,
    ),
    "outer product": (
        Multiply((0, 1), "bij", (2, 3, 4), Arrange(None, (2, 3, 1)), Arrange(None, (2, 1, 4)), 0, 24),
        [(2, 3), (2, 4)],
        lambda a, b: np.einsum("bi,bj->bij", a, b),
    ),
    "outer product, right first": (
        Multiply((0, 1), "ji", (4, 3), AS_IS, Arrange(None, (4, 1)), 0, 12),
        [(3,), (4,)],
        lambda a, b: np.einsum("i,j->ji", a, b),
    ),
    "product in turns": (
        Multiply((0, 1), "abcdef", (2,) * 6, Arrange(None, (2, 1) * 3), Arrange(None, (2, 1, 2, 1, 2)), 0, 64),
        [(2, 2, 2), (2, 2, 2)],
        lambda a, b: np.einsum("ace,bdf->abcdef", a, b),
    ),
    "product of many axes": (
        Multiply((0, 1), "abcdefgh", (2,) * 8, AS_IS, AS_IS, 0, 256),
        [(2,) * 8, (2,)],
        lambda a, b: a * b,
    ),
    "summed product": (
        Multiply((0, 1), "i", (2,), AS_IS, Arrange((1, 0)), 1, 6),
        [(2, 3), (3, 2)],
        lambda a, b: np.einsum("ij,ji->i", a, b),
    ),
    "summed product with broadcasting": (
        Multiply((0, 1), "bi", (2, 3), AS_IS, Arrange(None, (2, 1, 4)), 1, 24),
        [(2, 3, 4), (2, 4)],
        lambda a, b: np.einsum("bij,bj->bi", a, b),
    ),
    "gemm": (Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 3), [(2, 3), (3, 4)], lambda a, b: a @ b),
    "gemm of both transposed": (
        Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 3, transpose_left=True, transpose_right=True),
        [(3, 2), (4, 3)],
        lambda a, b: (b @ a).T,
    ),
    "gemm in batches": (
        Gemm((0, 1), "bik", (5, 2, 4), AS_IS, AS_IS, (5,), 2, 4, 3),
        [(5, 2, 3), (5, 3, 4)],
        lambda a, b: a @ b,
    ),
    "gemm of merged axes": (
        Gemm(
            (0, 1),
            "bnij",
            (4, 2, 5, 3),
            Arrange((0, 2, 1, 3), (8, 5, 6), "no strides"),
            Arrange((0, 2, 1, 3), (8, 3, 6), "no strides"),
            (8,),
            5,
            3,
            6,
            transpose_right=True,
        ),
        [Q, K],
        lambda q, k: np.einsum("bind,bjnd->bnij", q, k),
    ),
    "gemm of nothing": (
        Gemm((0, 1), "ik", (2, 4), AS_IS, AS_IS, (), 2, 4, 0),
        [(2, 0), (0, 4)],
        lambda a, b: a @ b,
    ),
    "native": (
        Native((0, 1), "ik", (2, 4), "ij,jk->ik", "a test", 24),
        [(2, 3), (3, 4)],
        lambda a, b: a @ b,
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS)
def test_step(step: str, dtype: str) -> None:
    what, shapes, reference = STEPS[step]
    values = [numbers(*shape, seed=at).astype(dtype) for at, shape in enumerate(shapes)]
    operands = [mnp.array(value, dtype=dtype) for value in values]
    got = backend.emit(what)(*operands)
    check(got, np.asarray(reference(*values)), "float32" if isinstance(what, Cast) else dtype)
    got[()] = 0
    for operand, value in zip(operands, values, strict=True):
        if not isinstance(what, Select):
            np.testing.assert_array_equal(operand.asnumpy(), value)


def test_reshape_shares_memory() -> None:
    a = mnp.zeros((2, 3))
    backend.arrange(Arrange(None, (3, 2)))(a)[...] = 1
    assert a.asnumpy().sum() == 6
