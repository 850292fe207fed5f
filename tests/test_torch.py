"""On torch tensors: derivatives, transforms, autocast, compilation and tensors of every kind as in ``torch.einsum``.

Tests that could turn out otherwise on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from equations import WAYS, cases, contractions, preferring
from equations import operands as numpy_operands
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import OperandError, fast_einsum
from einops_fast import einsum as front
from einops_fast.plan_cache import clear_plans

torch = pytest.importorskip("torch")
from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402
from torch.func import grad, hessian, jvp, vjp, vmap  # noqa: E402

Einsum = Callable[..., Any]

SIZES = dict(zip("abcdhijklmn", (2, 3, 2, 3, 2, 3, 4, 2, 3, 2, 2), strict=True))

EQUATIONS = [
    "ij->ji",
    "ijk->",
    "ii->i",
    "ii->",
    "i,j->ij",
    "ij,ij->ij",
    "ij,ij->",
    "ij,kl->ik",  # each operand is summed over by itself
    "ij,jk->ik",
    "ij,jk->ki",
    "iij,jk->ik",
    "bij,bjk->bik",
    "bij,bjk->ibk",
    "bhid,bhjd->bhij",
    "bhij,bhjd->bihd",
    "bind,bjnd->bnij",
    "abij,acjk->bcik",
    "ii,ij->j",
    "ij,jk,kl->il",
    "abc,cd,bd->a",
    "ij,ik,il->jkl",
]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def terms_of(equation: str) -> list[str]:
    return equation.partition("->")[0].split(",")


def tensors(equation: str, device: str = "cpu", dtype: Any = torch.float64, **sizes: int) -> list[Any]:
    """Random operands, the same ones at every call; ``sizes`` by letter."""
    of = {**SIZES, **sizes}
    generator = torch.Generator(device).manual_seed(0)
    shapes = [[of[label] for label in term] for term in terms_of(equation)]
    return [torch.randn(shape, dtype=dtype, device=device, generator=generator) for shape in shapes]


def same(got: Any, wanted: Any, **tolerance: Any) -> None:
    """Values, dtype, device, layout, and whether a gradient is wanted."""
    torch.testing.assert_close(got, wanted, **tolerance)
    assert type(got) is type(wanted)
    assert got.requires_grad == wanted.requires_grad


def outcome(call: Callable[[], Any]) -> Any:
    """The result, or that there was an error. Which one is for `test_errors`."""
    try:
        return call()
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return Exception


# ---- values

# At these sizes every equation with a contraction is big enough for a GEMM.
LARGE = {"a": 3, "b": 5, "c": 4, "d": 32, "h": 6, "i": 33, "j": 48, "k": 24, "l": 17, "m": 8, "n": 7}


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
    assert (got - exact).abs().max() <= 2 * (native - exact).abs().max() + rounding


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "reversed": lambda x: x.permute(*range(x.dim())[::-1]).contiguous().permute(*range(x.dim())[::-1]),
    "last axis outermost": lambda x: x.movedim(-1, 0).contiguous().movedim(0, -1),
    "gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "gaps between rows": lambda x: x.repeat_interleave(2, 0)[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bkj->ikb", "bind,bjnd->bnij", "aij,ajk,kl->ail"])
def test_strides(equation: str, layout: str, device: str) -> None:
    operands = tensors(equation, device, **LARGE)
    strided = [LAYOUTS[layout](operand) for operand in operands]
    assert not any(operand.is_contiguous() for operand in strided)
    torch.testing.assert_close(fast_einsum(equation, *strided), torch.einsum(equation, *operands))


# ---- derivatives


@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradients(equation: str, device: str) -> None:
    """First and second derivatives, forward and backward, and batches of them."""
    operands = [operand.requires_grad_() for operand in tensors(equation, device)]

    def call(*operands: Any) -> Any:
        return fast_einsum(equation, *operands)

    assert gradcheck(call, operands, check_forward_ad=True, check_batched_grad=True, check_batched_forward_grad=True)
    assert gradgradcheck(call, operands)


def gradients(einsum: Einsum, equation: str, operands: Sequence[Any]) -> Sequence[Any]:
    """Of a function of the result that isn't linear, with respect to every operand that wants one."""
    wanting = [operand for operand in operands if operand.requires_grad]
    return torch.autograd.grad(einsum(equation, *operands).sin().sum(), wanting)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_gradient_of_an_expanded_operand(equation: str, device: str) -> None:
    """It has a gradient of its own for every one of the elements that share their memory."""
    operands = [each[:1].expand(each.shape).requires_grad_() for each in tensors(equation, device)]
    for got, wanted in zip(
        gradients(fast_einsum, equation, operands), gradients(torch.einsum, equation, operands), strict=True
    ):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->bik", "ij,ij->", "ij,jk,kl->il"])
def test_gradient_of_broadcast_axes(equation: str, device: str) -> None:
    for at, axis in itertools.product(range(len(terms_of(equation))), (0, -1)):
        operands = tensors(equation, device)
        operands[at] = operands[at].narrow(axis, 0, 1)
        operands = [operand.requires_grad_() for operand in operands]
        for got, wanted in zip(
            gradients(fast_einsum, equation, operands), gradients(torch.einsum, equation, operands), strict=True
        ):
            torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "bij,bjk->ibk", "ij,jk,kl->il"])
def test_gradient_is_kept_where_it_is_wanted(equation: str) -> None:
    """Also when a plan for operands without gradients is cached already."""
    operands = tensors(equation)
    for wanted in itertools.product([False, True], repeat=len(operands)):
        for operand, wants in zip(operands, wanted, strict=True):
            operand.requires_grad_(wants)
        assert fast_einsum(equation, *operands).requires_grad == any(wanted)
        with torch.no_grad():
            assert not fast_einsum(equation, *operands).requires_grad
        if any(wanted):
            torch.testing.assert_close(
                gradients(fast_einsum, equation, operands), gradients(torch.einsum, equation, operands)
            )


def test_gradient_of_one_tensor_as_two_operands() -> None:
    x = tensors("ij")[0].requires_grad_()
    (got,) = torch.autograd.grad(fast_einsum("ij,kj->ik", x, x).sin().sum(), x)
    (wanted,) = torch.autograd.grad((x @ x.mT).sin().sum(), x)
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("equation", EQUATIONS)
def test_forward_mode(equation: str, device: str) -> None:
    """Tangents pass through a call whose plan was made for plain tensors."""
    operands = tensors(equation, device)
    fast_einsum(equation, *operands)

    def tangent(einsum: Einsum) -> Any:
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(operand, operand.cos()) for operand in operands]
            return forward_ad.unpack_dual(einsum(equation, *duals)).tangent

    torch.testing.assert_close(tangent(fast_einsum), tangent(torch.einsum))


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_derivatives_of_any_plan(way: str, data: st.DataObject) -> None:
    """Whatever the plan, the layout, and the operands whose gradients are wanted."""
    case = data.draw(st.one_of(contractions(), cases(zero_sizes=False)))
    operands = [torch.from_numpy(array) for array in data.draw(numpy_operands(case.shapes, negative=False))]
    wants = data.draw(st.lists(st.booleans(), min_size=len(operands), max_size=len(operands)).filter(any))
    leaves = [operand.requires_grad_(each) for operand, each in zip(operands, wants, strict=True)]
    clear_plans()
    with preferring(way):
        got = gradients(fast_einsum, case.equation, leaves)
    torch.testing.assert_close(got, gradients(torch.einsum, case.letters, leaves))

    def transformed(einsum: Einsum, equation: str) -> Any:
        def tangent(*operands: Any) -> Any:
            return jvp(lambda *operands: einsum(equation, *operands), operands, operands)

        return vmap(tangent)(*[torch.stack([leaf.detach(), leaf.detach() + 1]) for leaf in leaves])

    clear_plans()
    with preferring(way):
        got = transformed(fast_einsum, case.equation)
    torch.testing.assert_close(got, transformed(torch.einsum, case.letters))
    clear_plans()


# ---- functional transforms


@pytest.mark.parametrize("equation", EQUATIONS)
def test_vmap(equation: str, device: str) -> None:
    """Over any of the operands, with the mapped axis first or last."""
    operands = tensors(equation, device)
    fast_einsum(equation, *operands)
    for mapped in itertools.product([0, -1, None], repeat=len(operands)):
        if mapped.count(None) == len(mapped):
            continue
        batches = [
            operand if axis is None else torch.stack([operand, operand.sin()], axis)
            for operand, axis in zip(operands, mapped, strict=True)
        ]

        def mapped_call(einsum: Einsum, mapped: Any = mapped, batches: Any = batches) -> Any:
            return vmap(lambda *operands: einsum(equation, *operands), in_dims=mapped)(*batches)

        torch.testing.assert_close(mapped_call(fast_einsum), mapped_call(torch.einsum))


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("transform", ["grad", "jvp", "vjp", "hessian", "vmap of grad"])
def test_transforms(equation: str, transform: str) -> None:
    operands = tensors(equation)
    fast_einsum(equation, *operands)

    def transformed(einsum: Einsum) -> Any:
        def call(*operands: Any) -> Any:
            return einsum(equation, *operands)

        def scalar(*operands: Any) -> Any:
            return call(*operands).sin().sum()

        if transform == "jvp":
            return jvp(call, tuple(operands), tuple(operand.cos() for operand in operands))
        if transform == "vjp":
            result, pull = vjp(call, *operands)
            return pull(result)
        if transform == "vmap of grad":
            return vmap(grad(scalar))(*[torch.stack([operand, operand.sin()]) for operand in operands])
        return {"grad": grad, "hessian": hessian}[transform](scalar)(*operands)

    torch.testing.assert_close(transformed(fast_einsum), transformed(torch.einsum))


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


# ---- modes


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtypes", [["float32"], ["float32", "bfloat16"]])
def test_autocast_chooses_the_dtype(equation: str, dtypes: Sequence[str], device: str) -> None:
    operands = [
        operand.to(getattr(torch, dtype))
        for operand, dtype in zip(tensors(equation, device), itertools.cycle(dtypes), strict=False)
    ]
    if len(dtypes) == 1:
        fast_einsum(equation, *operands)  # a plan of this call would give another dtype
    with torch.autocast(device, dtype=torch.bfloat16):
        same(fast_einsum(equation, *operands), torch.einsum(equation, *operands))
    if len(dtypes) == 1:
        same(fast_einsum(equation, *operands), torch.einsum(equation, *operands))


def test_autocast_of_another_device_makes_a_plan_of_its_own() -> None:
    operands = tensors("bij,bjk->ibk", dtype=torch.float32, **LARGE)
    was_on = torch.is_autocast_enabled("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        assert fast_einsum("bij,bjk->ibk", *operands).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert fast_einsum("bij,bjk->ibk", *operands).dtype == torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", was_on)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_grad_modes(equation: str, mode: Callable[[], AbstractContextManager[Any]]) -> None:
    operands = [operand.requires_grad_() for operand in tensors(equation)]
    with mode():
        got, wanted = fast_einsum(equation, *operands), torch.einsum(equation, *operands)
    same(got, wanted)
    assert got.is_inference() == wanted.is_inference()


def test_checkpoint_recomputes() -> None:
    from torch.utils.checkpoint import checkpoint

    a, b = tensors("ij,jk->ik")
    a.requires_grad_()
    checkpoint(lambda a: fast_einsum("ij,jk->ik", a, b).sin(), a, use_reentrant=False).sum().backward()
    torch.testing.assert_close(a.grad, (a @ b).cos() @ b.mT)


# ---- compilation


def three_spellings(a: Any, b: Any) -> Any:
    words = fast_einsum("row middle, middle column -> row column", a, b)
    lists = fast_einsum(a, [0, 1], b, [1, 2], [0, 2])
    return words + lists + fast_einsum("...i,ij", a, b)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        three_spellings,
        lambda a, b: fast_einsum("ij,jk->ik", [a, b]),
        lambda a, b: fast_einsum("ij,jk,kl->il", a, b, b.mT, optimize=[(1, 2), (0, 1)]),
        lambda a, b: fast_einsum("ij,jk->ik", a, b, dtype=torch.complex128),
        lambda a, b: fast_einsum("ij,jk->ik", a, b, out=b.new_zeros(a.shape[0], b.shape[1])),
        lambda a, b: vmap(lambda row: fast_einsum("j,jk->k", row, b))(a),
        lambda a, b: fast_einsum("ii->i", a @ a.mT),
    ],
    ids=["spellings", "sequence", "three operands", "dtype", "out", "vmap", "diagonal"],
)
def test_compiles_without_graph_breaks(function: Callable[..., Any], dynamic: bool) -> None:
    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for i in (3, 5):
        operands = tensors("ij,jk", i=i)
        torch.testing.assert_close(compiled(*operands), function(*operands))


def test_compiled_out_is_written() -> None:
    torch.compiler.reset()
    a, b = tensors("ij,jk")
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def call(a: Any, b: Any) -> None:
        fast_einsum("ij,jk->ik", a, b, out=out)

    call(a, b)
    torch.testing.assert_close(out, a @ b)


def test_compiled_gradient() -> None:
    torch.compiler.reset()
    compiled = torch.compile(three_spellings, fullgraph=True, backend="aot_eager")
    operands = [operand.requires_grad_() for operand in tensors("ij,jk")]
    got, wanted = (torch.autograd.grad(call(*operands).sin().sum(), operands) for call in (compiled, three_spellings))
    torch.testing.assert_close(got, wanted)


FIRST_CALL = """
import torch
from einops_fast import fast_einsum

@torch.compile(fullgraph=True, backend="aot_eager")
def call(a, b):
    return fast_einsum({})

assert call(torch.ones(2, 3), torch.ones(3, 4)).eq(3).all()
"""


@pytest.mark.parametrize(
    "arguments",
    ["'row middle, middle column -> row column', a, b", "'ij,jk->ik', [a, b]", "a, [0, 1], b, [1, 2]"],
    ids=["words", "sequence", "lists"],
)
def test_first_call_of_a_process_may_be_compiled(arguments: str) -> None:
    root = Path(__file__).parents[1]
    script = FIRST_CALL.format(arguments)
    done = subprocess.run([sys.executable, "-c", script], cwd=root, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_symbolic_trace_fits_other_sizes() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda a, b: fast_einsum("bij,bjk->ibk", a, b), tracing_mode="symbolic")(*tensors("bij,bjk"))
    operands = tensors("bij,bjk", b=5, i=7, j=6, k=8)
    torch.testing.assert_close(traced(*operands), torch.einsum("bij,bjk->ibk", *operands))


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


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    operands = tensors("bij,bjk->ibk")
    fast_einsum("bij,bjk->ibk", *operands)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for given in (operands, [mode.from_tensor(operand) for operand in operands]):
            got, wanted = fast_einsum("bij,bjk->ibk", *given), torch.einsum("bij,bjk->ibk", *given)
            assert type(got) is type(wanted) is FakeTensor
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)


def test_result_of_parameters_is_a_plain_tensor() -> None:
    parameters = [torch.nn.Parameter(operand) for operand in tensors("ij,jk->ik")]
    same(fast_einsum("ij,jk->ik", *parameters), torch.einsum("ij,jk->ik", *parameters))


# ---- dtype=, casting=, out=, order=


def test_dtype() -> None:
    a, b = tensors("ij,jk", dtype=torch.float32)
    exact = a.double() @ b.double()
    torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b, dtype=torch.float64), exact, rtol=1e-15, atol=1e-15)
    torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b.double(), dtype=torch.float64), exact)
    whole = fast_einsum("ij,jk->ik", a.int(), b.int(), dtype=torch.int64)
    torch.testing.assert_close(whole, a.long() @ b.long())


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


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk->ki", "ij->ji", "ij->"])
def test_order(equation: str) -> None:
    operands = tensors(equation)
    wanted = torch.einsum(equation, *operands)
    for order in "CF":
        got = fast_einsum(equation, *operands, order=order)
        torch.testing.assert_close(got, wanted)
        assert (got if order == "C" else got.permute([*range(got.dim())][::-1])).is_contiguous()


# ---- plans


def test_plans_differ_by_whatever_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    original = front.make_plan
    monkeypatch.setattr(front, "make_plan", lambda *args: made.append(args) or original(*args))
    clear_plans()
    a = torch.ones(4, 4)
    variants: list[tuple[Any, AbstractContextManager[Any]]] = [
        (a, nullcontext()),
        (a.mT, nullcontext()),
        (a[:2], nullcontext()),
        (a.double(), nullcontext()),
        (a.to("meta"), nullcontext()),
        (a.clone().requires_grad_(), nullcontext()),
        (a.clone().requires_grad_(), torch.no_grad()),
        (a.as_subclass(Plain), nullcontext()),
    ]
    for operand, mode in variants * 2:
        with mode:
            fast_einsum("ij,jk->ik", operand, a.to(operand))
    assert len(made) == len(variants)


# ---- CUDA


@pytest.mark.gpu
@pytest.mark.parametrize("equation", EQUATIONS)
def test_cuda_graph(equation: str) -> None:
    """After a call to warm up, a call can be captured, and replayed on other values."""
    operands = tensors(equation, "cuda", **LARGE)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        fast_einsum(equation, *operands)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = fast_einsum(equation, *operands)
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
