"""On torch tensors: values, views, modes and tensors of every kind as in ``torch.einsum``.

Derivatives are in `test_torch_autograd`, compilation in `test_torch_compile`. Tests that could turn out otherwise
on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from graphs import captured
from torch.autograd import forward_ad
from torch_operands import EQUATIONS, LARGE, Einsum, outcome, tensors, terms_of

from einops_fast import (
    OperandError,
    contract_expression,
    fast_einsum,
)
from einops_fast.runtime.plan_cache import clear_plans

# ---- views, and writing to results


@pytest.mark.parametrize("equation", ["i->i", "ij->ij", "ij->ji", "ii->i", "iij->ji", "...i->i..."])
def test_views_where_torch_returns_views(equation: str) -> None:
    x = torch.ones((3,) * (3 if "iij" in equation else 1 if equation == "i->i" else 2))
    wanted, got = torch.einsum(equation, x), fast_einsum(equation, x)
    assert (got.data_ptr(), got.stride()) == (wanted.data_ptr(), wanted.stride())
    got.zero_()
    assert wanted.count_nonzero() == 0


@pytest.mark.parametrize("sizes", [{}, dict.fromkeys("ijkn", 1)], ids=["", "of size 1"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("equation", [equation for equation in EQUATIONS if "," in equation] + ["ijk->", "ij->i"])
def test_other_results_can_be_written_to(
    equation: str, requires_grad: bool, sizes: dict[str, int], device: str
) -> None:
    """Without harm to the operands, to a second call, or to the gradient."""
    operands = [operand.requires_grad_(requires_grad) for operand in tensors(equation, device, **sizes)]
    before = [operand.detach().clone() for operand in operands]
    wanted, got = torch.einsum(equation, *operands), fast_einsum(equation, *operands)
    untouched = got.detach().clone()
    if requires_grad:
        gradients_of = [torch.autograd.grad(each.mul_(2).sum(), operands) for each in (got, wanted)]
        torch.testing.assert_close(*gradients_of)
    else:
        got.fill_(torch.nan)
    torch.testing.assert_close(fast_einsum(equation, *operands).detach(), untouched)
    torch.testing.assert_close([operand.detach() for operand in operands], before)


# ---- tensors of every kind


class Plain(torch.Tensor):
    """A subclass without behaviour of its own."""


class Logged(torch.Tensor):
    """A subclass that sees the functions that it is passed to."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(function)
        return super().__torch_function__(function, types, args, kwargs or {})


KINDS: dict[str, Callable[[Any], Any]] = {
    "sparse COO": lambda x: x.to_sparse(),
    "sparse CSR": lambda x: x.to_sparse_csr() if x.dim() == 2 else x.to_sparse(),
    "oneDNN": lambda x: x.float().to_mkldnn(),
    "meta": lambda x: x.to("meta"),
    "parameter": torch.nn.Parameter,
    "subclass": lambda x: x.as_subclass(Plain),
    "conjugate": lambda x: torch.complex(x, x + 1).conj(),
    "negative": lambda x: torch.complex(x, x + 1).conj().imag,
    "int32": lambda x: (4 * x).to(torch.int32),
    "bool": lambda x: x > 0,
    "uint8": lambda x: (4 * x).to(torch.uint8),
    "complex32": lambda x: torch.complex(x, x).to(torch.complex32),
    "float8": lambda x: x.to(torch.float8_e4m3fn),
    "quantized": lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:.*quantized", "ignore:.*ComplexHalf")
@pytest.mark.parametrize("which", ["all", "last"])
@pytest.mark.parametrize("equation", ["ij->ji", "ij->i", "ij,jk->ik", "ij,ij->ij", "ij,jk,kl->il"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_any_kind(kind: str, equation: str, which: str) -> None:
    """The same result, or an error where torch has one."""
    operands = tensors(equation)
    for at in range(len(operands)) if which == "all" else [-1]:
        operands[at] = KINDS[kind](operands[at])
    wanted = outcome(lambda: torch.einsum(equation, *operands))
    if kind == "meta" and len({operand.device for operand in operands}) == 2:
        wanted = Exception  # torch lets this pass for some equations
    for _ in range(2):  # the second call finds a plan
        got = outcome(lambda: fast_einsum(equation, *operands))
        assert type(got) is type(wanted)
        if wanted is Exception:
            assert got is Exception
        elif wanted.is_meta:
            assert (got.shape, got.dtype, got.device) == (wanted.shape, wanted.dtype, wanted.device)
        else:
            assert got.layout == wanted.layout
            assert got.dtype == wanted.dtype
            dense = [each.to_dense() if not each.is_quantized else each.dequantize() for each in (got, wanted)]
            torch.testing.assert_close(*dense, equal_nan=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("einsum", [torch.einsum, fast_einsum])
def test_nested_tensors_are_refused(einsum: Einsum, layout: Any) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    with pytest.raises(RuntimeError):
        einsum("bij,jk->bik", nested, torch.ones(3, 4))


def test_subclass_sees_einsum() -> None:
    operands = [operand.as_subclass(Logged) for operand in tensors("ij,jk->ik")]
    result = fast_einsum("ij,jk->ik", *operands)
    assert torch.einsum in Logged.seen
    assert type(result) is Logged


# ---- dtype=, casting=, out=, order=


def test_dtype() -> None:
    a, b = tensors("ij,jk", dtype=torch.float32)
    exact = a.double() @ b.double()
    torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b, dtype=torch.float64), exact, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b.double(), dtype=torch.float64), exact)
    whole = fast_einsum("ij,jk->ik", a.int(), b.int(), dtype=torch.int64)
    torch.testing.assert_close(whole, a.long() @ b.long())
    for equation, *operands in (("ij->i", a), ("ij,jk->", a, b), ("ij,kl->ik", a, b), ("ij,jk,jk->ki", a, b, b)):
        found = fast_einsum(equation, *map(torch.Tensor.int, operands), dtype=torch.int32)
        expected = torch.einsum(equation, *map(torch.Tensor.int, operands)).int()
        torch.testing.assert_close(found, expected)  # with its dtype


@pytest.mark.parametrize("equation", ["ij->ji", "ij->i", "ij,jk->ik", "ij,jk,jl->ikl"])
@pytest.mark.parametrize("kind", ["subclass", "sparse COO"])
def test_dtype_of_other_tensors(kind: str, equation: str) -> None:
    """A dtype is no less wanted where torch.einsum gets the operands as they are."""
    operands = [KINDS[kind](operand.float()) for operand in tensors(equation)]
    wanted = outcome(lambda: torch.einsum(equation, *[each.double() for each in operands]))
    found = outcome(lambda: fast_einsum(equation, *operands, dtype=torch.float64))
    if wanted is Exception:
        assert found is Exception
        return
    assert type(found) is type(wanted)
    torch.testing.assert_close(found.to_dense(), wanted.to_dense())
    with pytest.raises(OperandError, match="doesn't convert"):
        fast_einsum(equation, *operands, dtype=torch.int32)


def test_two_dtypes() -> None:
    single, half = torch.ones(3, 4), torch.ones(4, 5, dtype=torch.float16)
    assert fast_einsum("i,j->ij", single[:, 0], half[0]).dtype == torch.float32
    with pytest.raises(OperandError, match="operand 1 has dtype float16, but operand 0 has float32"):
        fast_einsum("ij,jk->ik", single, half)
    eighth = half[:, 0].to(torch.float8_e5m2)
    with pytest.raises(OperandError, match="operand 1 has dtype float8_e5m2, but operand 0 has float32"):
        fast_einsum("j,j->j", single[0], eighth)
    assert fast_einsum("ij,jk->ik", single, half, dtype=torch.float32).tolist() == [[4.0] * 5] * 3


def test_casting() -> None:
    a, b = tensors("ij,jk")
    with pytest.raises(OperandError, match="casting='safe' doesn't convert"):
        fast_einsum("ij,jk->ik", a, b, dtype=torch.int64)
    whole = fast_einsum("ij,jk->ik", 4 * a, 4 * b, dtype=torch.int64, casting="unsafe")
    torch.testing.assert_close(whole, (4 * a).long() @ (4 * b).long())


def test_out(device: str) -> None:
    a, b = tensors("ij,jk", device)
    for out in (torch.zeros(3, 2, device=device), torch.zeros(6, 4, dtype=a.dtype, device=device)[::2, ::2]):
        assert fast_einsum("ij,jk->ik", a, b, out=out) is out
        torch.testing.assert_close(out, (a @ b).to(out.dtype))


def test_out_that_is_read(device: str) -> None:
    """torch refuses to copy what overlaps."""
    a = torch.arange(12.0, device=device)
    square, later = a[:9].view(3, 3), a[3:].view(3, 3)
    for equation, out in (("ij->ji", square), ("ij->ij", later), ("ij,jk->ik", square)):
        operands = [square] * len(terms_of(equation))
        wanted = torch.einsum(equation, *operands).clone()
        assert fast_einsum(equation, *operands, out=out) is out
        torch.testing.assert_close(out, wanted)


@pytest.mark.parametrize("options", [{}, {"beta": 1}, {"memory_limit": "1MiB"}, {"optimize": "greedy"}])
def test_out_that_can_not_be_written_to(options: dict[str, Any]) -> None:
    a, b = tensors("ij,jk")
    leaf = torch.zeros(3, 2, dtype=a.dtype, requires_grad=True)
    for out, words in [
        (leaf, "leaf"),
        (torch.zeros(6, 2, dtype=a.dtype, requires_grad=True)[:3], "view of"),
        (torch.zeros(1, 2, dtype=a.dtype).expand(3, 2), "expanded" if "beta" not in options else "single memory"),
    ]:
        with pytest.raises(OperandError, match=f"^out .*{words}"):
            fast_einsum("ij,jk->ik", a, b, out=out, **options)
    with torch.no_grad():
        torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b, out=leaf, **options).detach(), a @ b)


# ---- plans


def _tangent(einsum: Callable[..., Any], a: Any, b: Any) -> Any:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(einsum("ij,jk->ik", forward_ad.make_dual(a, a + 1), b)).tangent


WAYS: dict[str, Callable[[Callable[..., Any], Any, Any], Any]] = {
    "as it is": lambda einsum, a, b: einsum("ij,jk->ik", a, b),
    "one twice": lambda einsum, a, b: einsum("ij,jk->ik", a, a),
    "transposed": lambda einsum, a, b: einsum("ij,jk->ik", a.mT, b),
    "another dtype": lambda einsum, a, b: einsum("ij,jk->ik", a.double(), b.double()),
    "torch.func": lambda einsum, a, b: torch.func.grad(lambda x: einsum("ij,jk->ik", x, b).sum())(a),
    "forward mode": _tangent,
    "vmap": lambda einsum, a, b: torch.vmap(lambda x: einsum("ij,jk->ik", x, b))(torch.stack((a, a + 1))),
    "inference": lambda einsum, a, b: torch.inference_mode()(einsum)("ij,jk->ik", a, b).clone(),
    "negated": lambda einsum, a, b: einsum("ij,jk->ik", torch.complex(a, a).conj().imag.reshape(3, 3), b),
}


@pytest.mark.parametrize("requires_grad", [False, True])
def test_calls_between_calls_that_are_alike(requires_grad: bool, device: str) -> None:
    """What was kept for one kind of call is used for no other."""
    clear_plans()
    a, b = (torch.randn(3, 3, generator=torch.Generator().manual_seed(seed)).to(device) for seed in range(2))
    b.requires_grad_(requires_grad)
    expression = contract_expression("ij,jk->ik", (3, 3), (3, 3))
    for way in WAYS.values():
        for mode in (nullcontext, torch.no_grad):
            for einsum in (fast_einsum, lambda _, *operands: expression(*operands)):
                for call in (WAYS["as it is"], way):
                    with mode():
                        found, expected = call(einsum, a, b), call(torch.einsum, a, b)
                    torch.testing.assert_close(found, expected)
                    assert found.requires_grad == expected.requires_grad


@pytest.fixture
def precision() -> Iterator[None]:
    """The precision of float32 is afterwards what it was."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("size", [16, 512])
def test_precision_of_float32_takes_effect_at_once(size: int) -> None:
    """Be it the library or a kernel that was chosen for the call before."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()
    expression = contract_expression("ij,jk->ik", a.shape, b.shape)
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        theirs = float((torch.einsum("ij,jk->ik", a, b) - exact).abs().max())
        for found in (fast_einsum("ij,jk->ik", a, b), expression(a, b)):
            assert float((found - exact).abs().max()) <= 2 * theirs


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
def test_precision_of_float32_takes_effect_where_it_is_asked_for_as_a_dtype() -> None:
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float64) for _ in range(2))
    exact = a @ b
    expression = contract_expression("ij,jk->ik", a.shape, b.shape, dtype=torch.float32)
    errors = []
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        errors.append(float((expression(a, b) - exact).abs().max()))
    assert 10 * errors[1] < errors[0]


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
def test_precision_of_float32_takes_effect_in_small_chains() -> None:
    """They are a kernel of ours, unlike small products of two, for which the library looks at the precision."""
    operands = [torch.randn(16, 16, device="cuda") for _ in range(3)]
    exact = torch.linalg.multi_dot([each.double() for each in operands])
    expression = contract_expression("ij,jk,kl->il", *[each.shape for each in operands])
    errors = []
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        for found in (fast_einsum("ij,jk,kl->il", *operands), expression(*operands)):
            errors.append(float((found - exact).abs().max() / exact.abs().max()))
    assert max(*errors[:2], *errors[4:]) <= 1e-6
    assert max(errors) <= 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("equation", EQUATIONS)
def test_cuda_graph(equation: str) -> None:
    """After a call to warm up, a call can be captured, and replayed on other values."""
    operands = tensors(equation, "cuda", **LARGE)
    result, graph = captured(lambda: fast_einsum(equation, *operands), warm_up=1)
    for operand in operands:
        operand.sin_()
    graph.replay()
    torch.testing.assert_close(result, torch.einsum(equation, *operands))


@pytest.mark.gpu
@pytest.mark.parametrize("equation", EQUATIONS)
def test_no_call_waits_for_the_device(equation: str) -> None:
    operands = tensors(equation, "cuda", **LARGE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            fast_einsum(equation, *operands)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_values(equation: str, dtype: str, device: str) -> None:
    """The error against float64 is at most twice the native one's, and one rounding."""
    operands = tensors(equation, device, getattr(torch, dtype), **LARGE)
    wide = [operand.to(torch.complex128 if operand.is_complex() else torch.float64) for operand in operands]
    exact, got = torch.einsum(equation, *wide), fast_einsum(equation, *operands)
    native = torch.einsum(equation, *operands)
    assert (got.shape, got.dtype) == (native.shape, native.dtype)
    rounding = torch.finfo(got.dtype).eps * torch.einsum(equation, *[operand.abs() for operand in wide]).max()
    roundings = 2 if dtype == "float64" else 1  # that of the reference, too
    assert (got - exact).abs().max() <= 2 * (native - exact).abs().max() + roundings * rounding
