"""Calls that torch.compile, or another tracer of torch, sees; and our operator.

Tests that could turn out otherwise on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_operands import EQUATIONS, LARGE, Einsum, tensors, terms_of

from einops_fast import SubscriptsError, contract_expression, fast_einsum, traced

torch = pytest.importorskip("torch")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402
from torch.func import vmap  # noqa: E402

# ---- torch's own einsum


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

    graph = make_fx(lambda a, b: fast_einsum("bij,bjk->ibk", a, b), tracing_mode="symbolic")(*tensors("bij,bjk"))
    operands = tensors("bij,bjk", b=5, i=7, j=6, k=8)
    torch.testing.assert_close(graph(*operands), torch.einsum("bij,bjk->ibk", *operands))


def compiled(function: Callable[..., Any], *operands: Any, **options: Any) -> tuple[Any, list[str]]:
    """The result of the compiled function, and the functions that its graph calls."""
    torch.compiler.reset()
    called: list[str] = []

    def keep(graph: Any, _: Any) -> Any:
        targets = [node.target for node in graph.graph.nodes]
        called.extend(str(each) if "einops_fast" in str(each) else getattr(each, "__name__", "") for each in targets)
        return graph

    return torch.compile(function, fullgraph=True, backend=keep, **options)(*operands), called


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", "CFAK")
def test_compiled_order(order: str, dynamic: bool) -> None:
    a, b = tensors("ij,jk")
    for operands in ((a, b), (a.mT.contiguous().mT, b.mT.contiguous().mT)):
        got, _ = compiled(lambda a, b: fast_einsum("ij,jk->ki", a, b, order=order), *operands, dynamic=dynamic)
        torch.testing.assert_close(got, (a @ b).mT)
        if order != "K":
            assert got.stride() == fast_einsum("ij,jk->ki", *operands, order=order).stride()


# ---- NumPy arrays, which the compiler turns into tensors


def test_compiled_numpy() -> None:
    a, b = np.random.default_rng(0).random((2, 3, 3))
    for function in (
        lambda a, b: fast_einsum("row middle, middle column -> row column", a, b),
        lambda a, b: fast_einsum(a, [0, 1], b, [1, 2], dtype=np.float64),
        lambda a, b: fast_einsum("ij,jk->ik", a, b, out=np.zeros((3, 3))),
        lambda a, b: fast_einsum("ij,jk->ik", a, b.astype(np.float32)),
    ):
        got, _ = compiled(function, a, b)
        assert isinstance(got, np.ndarray)
        np.testing.assert_allclose(got, a @ b, rtol=1e-6)


@pytest.mark.parametrize("order", "CFA")
def test_compiled_numpy_order(order: str) -> None:
    a, b = np.random.default_rng(0).random((2, 3, 3))
    for operands in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        got, _ = compiled(lambda a, b: fast_einsum("ij,jk->ki", a, b, order=order), *operands)
        np.testing.assert_allclose(got, (a @ b).T)
        assert got.strides == fast_einsum("ij,jk->ki", *operands, order=order).strides


# ---- our operator

LABELS_ONCE = [each for each in EQUATIONS if all(len(set(term)) == len(term) for term in terms_of(each))]


def operator(equation: str, *operands: Any) -> Any:
    from einops_fast.backends.torch_ops import einsum

    return einsum(list(operands), equation, "auto")


@pytest.mark.parametrize("equation", LABELS_ONCE)
def test_operator(equation: str, device: str) -> None:
    """Registered as torch wants it; its result is new and contiguous."""
    from einops_fast.backends.torch_ops import einsum

    operands = [operand.requires_grad_() for operand in tensors(equation, device)]
    torch.library.opcheck(einsum, (operands, equation, "auto"))
    got = operator(equation, *operands)
    torch.testing.assert_close(got, torch.einsum(equation, *operands))
    assert got.is_contiguous()
    assert got.untyped_storage().data_ptr() not in {each.untyped_storage().data_ptr() for each in operands}


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("equation", [*LABELS_ONCE, "ijk,il->l", "ij,->ij"])
def test_gradients_of_the_operator(equation: str, dtype: str) -> None:
    operands = [operand.requires_grad_() for operand in tensors(equation, dtype=getattr(torch, dtype))]
    assert gradcheck(lambda *operands: operator(equation, *operands), operands)
    assert gradgradcheck(lambda *operands: operator(equation, *operands), operands)


def test_operator_broadcasts() -> None:
    for at, axis in [(0, 0), (0, 2), (1, 0), (1, 1)]:
        operands = tensors("bij,bjk->ibk")
        operands[at] = operands[at].narrow(axis, 0, 1).clone()
        operands = [operand.requires_grad_() for operand in operands]
        torch.testing.assert_close(operator("bij,bjk->ibk", *operands), torch.einsum("bij,bjk->ibk", *operands))
        assert gradcheck(lambda *operands: operator("bij,bjk->ibk", *operands), operands)


def test_operator_takes_a_path() -> None:
    from einops_fast.backends.torch_ops import einsum

    operands = tensors("ij,jk,kl->il")
    for optimize in ("greedy", "False", "((1, 2), (0, 1))", "['einsum_path', (0, 1), (0, 1)]"):
        got = einsum(operands, "ij,jk,kl->il", optimize)
        torch.testing.assert_close(got, torch.einsum("ij,jk,kl->il", *operands))


def test_operator_writes_what_a_gemm_can_write() -> None:
    """Where the result has another order, that is a view of the operator's."""
    from einops_fast.backends.torch_ops import in_product_order

    assert in_product_order("bhij,bjhd->bihd") == ("bhij,bjhd->bhid", (0, 2, 1, 3))
    for equation in ("bihd,bjhd->bhij", "bij,bjk->ibk", "ij,jk->ki", "bij,bij->ib", "ij,jk,kl->li", "ij,ij->"):
        rank = len(equation.partition("->")[2])
        assert in_product_order(equation) == (equation, tuple(range(rank)))


def test_operator_refuses_diagonals() -> None:
    a = tensors("ij", i=3, j=3)[0].requires_grad_()
    with pytest.raises(SubscriptsError, match="take the diagonal first"):
        operator("ii,ij->j", a.to("meta"), a.to("meta"))
    with pytest.raises(SubscriptsError, match="take the diagonal first"):
        operator("ii,ij->j", a, a).sum().backward()


def test_operator_is_registered_when_it_is_needed() -> None:
    script = """
import sys, torch, einops_fast
einops_fast.fast_einsum("ij,jk->ik", torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)).sum().backward()
assert "einops_fast.backends.torch_ops" not in sys.modules
"""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- where the compiler calls it


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator is called for tensors of every device."""
    monkeypatch.setattr(traced, "_WITH_OPERATOR", ("cpu", "cuda"))


WEIGHT = torch.nn.Parameter(tensors("ij")[0])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: fast_einsum("row middle, middle column -> row column", a, b),
        lambda a, b: fast_einsum(a, [0, 1], b, [1, 2], [0, 2]),
        lambda a, b: fast_einsum("ij,jk->ki", a, b, order="F"),
        lambda a, b: fast_einsum("ij,jk,kl->il", a, b, b.mT, optimize=[(1, 2), (0, 1)]),
        lambda a, b: fast_einsum("ij,jk->ik", WEIGHT, b) * a.sum(),
        contract_expression("ij,jk->ik", (3, 4), (4, 2)),
    ],
    ids=["words", "lists", "order", "three operands", "parameter", "expression"],
)
def test_compiler_calls_the_operator(function: Callable[..., Any], dynamic: bool) -> None:
    operands = tensors("ij,jk")
    got, called = compiled(function, *operands, dynamic=dynamic)
    torch.testing.assert_close(got, function(*operands))
    assert "einops_fast.einsum" in called
    assert "einsum" not in called


def autocast(a: Any, b: Any) -> Any:
    with torch.autocast(a.device.type, torch.bfloat16):
        return fast_einsum("ij,jk->ik", a, b)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: vmap(lambda row: fast_einsum("j,jk->k", row, b))(a),
        autocast,
        lambda a, b: fast_einsum("ij->ji", a),
        lambda a, b: fast_einsum("ii,ij->j", a @ a.mT, a),
        lambda a, b: fast_einsum("ij,jk->ik", a.to(torch.complex64), b.to(torch.complex64)),
        lambda a, b: fast_einsum("ij,jk->ik", a.to(torch.int64), b.to(torch.int64)),
    ],
    ids=["vmap", "autocast", "one operand", "diagonal", "complex", "integers"],
)
def test_compiler_calls_einsum(function: Callable[..., Any]) -> None:
    operands = tensors("ij,jk", dtype=torch.float32)
    got, called = compiled(function, *operands)
    torch.testing.assert_close(got, function(*operands))
    assert "einsum" in called


@pytest.mark.usefixtures("everywhere")
def test_autocast_around_a_compiled_call() -> None:
    operands = tensors("ij,jk", dtype=torch.float32)
    torch.compiler.reset()
    call = torch.compile(lambda a, b: fast_einsum("ij,jk->ik", a, b), fullgraph=True, backend="aot_eager")
    assert call(*operands).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert call(*operands).dtype == torch.bfloat16
    assert call(*operands).dtype == torch.float32


@pytest.mark.usefixtures("everywhere")
def test_exports_have_no_operator() -> None:
    class Product(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return fast_einsum("ij,jk->ik", a, b)

    operands = tuple(tensors("ij,jk"))
    for strict in (False, True):
        exported = torch.export.export(Product(), operands, strict=strict)
        assert "einops_fast" not in str(exported.graph)
        torch.testing.assert_close(exported.module()(*operands), operands[0] @ operands[1])


def attention(einsum: Einsum) -> Callable[..., Any]:
    def call(q: Any, k: Any, v: Any) -> Any:
        scores = einsum("bihd,bjhd->bhij", q.sin(), k)
        return einsum("bhij,bjhd->bihd", scores.softmax(-1), v).cos()

    return call


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dynamic", [None, False, True])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.gpu)])
def test_compiled_training(backend: str, dynamic: bool | None) -> None:
    """Forward and backward, at several sizes."""
    torch.compiler.reset()
    on = "cuda" if backend == "inductor" else "cpu"
    call = torch.compile(attention(fast_einsum), fullgraph=True, backend=backend, dynamic=dynamic)
    for i in (3, 5, 9):
        operands = [each.requires_grad_() for each in tensors("bihd,bjhd,bjhd", on, i=i)]
        wanted, got = attention(torch.einsum)(*operands), call(*operands)
        torch.testing.assert_close(got, wanted)
        seed = torch.ones_like(wanted)
        found = [torch.autograd.grad(each, operands, seed) for each in (got, wanted)]
        torch.testing.assert_close(*found)


@pytest.mark.usefixtures("everywhere")
def test_dynamic_sizes_are_compiled_once() -> None:
    torch.compiler.reset()
    call = torch.compile(attention(fast_einsum), fullgraph=True, backend="aot_eager")
    for j in (4, 6, 11):
        operands = tensors("bihd,bjhd,bjhd", j=j)
        for operand in operands[1:]:
            torch._dynamo.mark_dynamic(operand, 1)
        with torch._dynamo.config.patch(error_on_recompile=j > 4):
            torch.testing.assert_close(call(*operands), attention(torch.einsum)(*operands))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_compiled_on_cuda(dtype: str) -> None:
    operands = [each / 8 for each in tensors("bihd,bjhd,bjhd", "cuda", getattr(torch, dtype), **LARGE)]
    got, called = compiled(attention(fast_einsum), *operands)
    assert called.count("einops_fast.einsum") == 2
    wanted = attention(torch.einsum)(*[operand.double() for operand in operands])
    torch.testing.assert_close(got, wanted.to(got.dtype), rtol=2e-2, atol=2e-2)
