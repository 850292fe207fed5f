"""`beta=` adds a contraction to its `out`."""

from typing import Any

import numpy as np
import pytest
from attention_arrays import arrays_of, numbers

from einops_fast import fast_einsum
from einops_fast.errors import OperandError

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
