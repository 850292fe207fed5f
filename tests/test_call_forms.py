"""Ways to call einsum: spellings of labels, options and paths as NumPy takes them, `beta=`, and sliced trees."""

from typing import Any

import numpy as np
import pytest
from attention_arrays import arrays_of, numbers

from einops_fast import EinsumError, OperandError, contract_expression, explain, fast_einsum, patched

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


CALLS: dict[str, tuple[tuple[int, ...], ...]] = {
    "ij,jk->ik": ((4, 5), (5, 6)),
    "ij->ji": ((4, 4),),
    "i,i->": ((7,), (7,)),
    "ij,jk,kl->il": ((4, 5), (5, 6), (6, 3)),
    "b i (h d), b j (h d) -> b h i j": ((2, 5, 6), (2, 4, 6)),
}


@pytest.mark.parametrize("framework", ["numpy", "torch", "mxnet"])
@pytest.mark.parametrize("equation", CALLS)
@pytest.mark.parametrize("limit", [None, 100_000])
def test_out_is_multiplied_and_added_to(framework: str, equation: str, limit: int | None) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(np.float32) for shape in CALLS[equation]]
    sizes = {"h": 2} if "(" in equation else {}
    plain = np.asarray(fast_einsum(equation, *arrays, **sizes))
    before = generator.standard_normal(plain.shape).astype(np.float32)
    given = arrays_of(framework, tuple(arrays))
    for beta in (1, -0.5, 0):
        out = arrays_of(framework, np.array(before))
        assert fast_einsum(equation, *given, out=out, beta=beta, memory_limit=limit, **sizes) is out
        np.testing.assert_allclose(numbers(out), beta * before + plain, rtol=1e-5, atol=1e-5)


def test_nothing_of_out_is_left_without_beta() -> None:
    out = np.full((2, 2), np.nan)
    assert (fast_einsum("ij,jk->ik", np.eye(2), np.eye(2), out=out, beta=0) == np.eye(2)).all()


def test_out_may_be_an_operand_or_what_the_result_is_a_view_of() -> None:
    x = np.arange(9.0).reshape(3, 3)
    for equation, count in (("ij->ji", 1), ("ij,jk->ik", 2)):
        out = x.copy()
        expected = 2 * x + fast_einsum(equation, *[x] * count)
        np.testing.assert_allclose(fast_einsum(equation, *[out] * count, out=out, beta=2), expected)


@pytest.mark.parametrize(
    ("out", "options", "words"),
    [
        (None, {}, "beta=2 is what out is multiplied by before the result is added: give out=, too"),
        (np.ones((2, 3)), {}, r"out has shape \(2, 3\), the result \(2, 2\)"),
        (np.ones(2), {}, r"out has shape \(2,\), the result \(2, 2\)"),
        (np.ones((2, 2), np.float32), {"dtype": "float64"}, "casting='safe' doesn't convert float64 to out's float32"),
    ],
)
def test_what_can_not_be_added_to(out: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(OperandError, match=words):
        fast_einsum("ij,jk->ik", np.eye(2), np.eye(2), out=out, beta=2, **options)


def test_integers_are_not_multiplied_by_fractions() -> None:
    eye = np.eye(2, dtype=np.int64)
    with pytest.raises(OperandError, match=r"out of dtype int64 can't hold beta=0\.5 times itself and int64"):
        fast_einsum("ij,jk->ik", eye, eye, out=eye.copy(), beta=0.5)


def test_beta_may_still_be_an_axis() -> None:
    found = fast_einsum("a (beta c), a -> beta c", np.ones((2, 6)), np.ones(2), beta=3)
    assert found.shape == (3, 2)


def test_gradients_and_compiled_code() -> None:
    torch: Any = pytest.importorskip("torch")
    a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4, 5)

    def program(a: Any, b: Any) -> Any:
        out = torch.ones(3, 5)
        return fast_einsum("ij,jk->ik", a, b, out=out, beta=3)

    torch._dynamo.reset()
    for call in (program, torch.compile(program, backend="eager")):
        found = call(a, b)
        torch.testing.assert_close(found, 3 + a @ b)
        torch.testing.assert_close(*[torch.autograd.grad(each.sum(), a) for each in (found, a @ b)])


class Tree:
    """What of cotengra's trees and optimizers is used."""

    def __init__(self, inputs: Any, path: Any, sliced: str) -> None:
        self.inputs, self.path, self.sliced_inds = inputs, path, dict.fromkeys(sliced)

    def get_path(self) -> Any:
        return self.path


class Optimizer:
    def __init__(self, slicing: bool) -> None:
        self.slicing_opts = {"target_slices": 4} if slicing else None

    def search(self, inputs: Any, output: Any, sizes: Any) -> Tree:
        return Tree(inputs, ((1, 2), (0, 1)), inputs[1][0] if self.slicing_opts else "")


@pytest.mark.parametrize(
    ("equation", "optimize", "extents"),
    [
        ("ij,jk,kl->il", Tree([("a", "b"), ("b", "c"), ("c", "d")], ((1, 2), (0, 1)), "c"), {"k": 1}),
        ("row j,j k,k l->row l", Tree([{"row", "j"}, {"j", "k"}, {"k", "l"}], ((0, 1), (0, 1)), "j"), {"j": 1}),
        ("ij,jk,kl->il", Tree([("i", "j"), ("j", "k"), ("k", "l")], ((1, 2), (0, 1)), "il"), {"i": 1, "l": 1}),
        ("ij,jk,kl->il", Tree([], ((1, 2), (0, 1)), ""), None),
        ("ij,jk,kl->il", Optimizer(False), None),
        ("ij,jk,kl->il", Optimizer(True), {"j": 1}),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_trees_of_cotengra_are_taken_with_their_slices(
    framework: str, equation: str, optimize: Any, extents: dict[str, int] | None
) -> None:
    arrays = [np.random.default_rng(8).standard_normal(shape) for shape in ((4, 5), (5, 6), (6, 7))]
    exact = arrays[0] @ arrays[1] @ arrays[2]
    if framework == "torch":
        arrays = [pytest.importorskip("torch").from_numpy(each).requires_grad_() for each in arrays]
    for _ in range(2):
        for call in (
            fast_einsum,
            lambda equation, *given, **options: contract_expression(equation, *given, **options)(*given),
        ):
            found = call(equation, *arrays, optimize=optimize)
            np.testing.assert_allclose(found if framework == "numpy" else found.detach(), exact)
    memory = explain(equation, *arrays, optimize=optimize).to_dict().get("memory")
    assert (memory and memory["extents"]) == extents
    found = fast_einsum(equation, *arrays, optimize=optimize, memory_limit=10_000)
    np.testing.assert_allclose(found if framework == "numpy" else found.detach(), exact)


def test_gradients_of_halves_are_added_up_in_float32() -> None:
    torch = pytest.importorskip("torch")
    a, x = (torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for shape in ((5,), (600, 2)))
    found = fast_einsum("a,cb->", a, x, optimize=Tree([("a",), ("c", "b")], ((0, 1),), "c"))
    for gradient, expected in zip(torch.autograd.grad(found, (a, x)), (1200, 5), strict=True):
        torch.testing.assert_close(gradient, torch.full_like(gradient, expected))


def test_a_tree_of_another_equation_is_refused() -> None:
    arrays = [np.ones((3, 3))] * 3
    with pytest.raises(EinsumError, match="slices \\['x'\\], which 'ij,jk,kl->il' hasn't"):
        fast_einsum("ij,jk,kl->il", *arrays, optimize=Tree([{"x"}], ((1, 2), (0, 1)), "x"))
    with pytest.raises(EinsumError, match="doesn't name distinct terms"):
        fast_einsum("ij,jk,kl->il", *arrays, optimize=Tree([], ((1, 5), (0, 1)), ""))
