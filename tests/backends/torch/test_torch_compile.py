"""Calls that torch.compile, or another tracer of torch, sees.

Tests that could turn out otherwise on a GPU take a ``device``; `pytest -m gpu` runs those on CUDA.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from python_process import run_python
from torch.func import vmap
from torch_operands import LARGE, Einsum, compiled, tensors, whole

from einops_fast import contract_expression, fast_einsum
from einops_fast.backends.torch.ceilings import target_of
from einops_fast.backends.torch.steps import without_onednn
from einops_fast.runtime.plan_cache import clear_plans

# ---- torch's own einsum


def three_spellings(a: Any, b: Any) -> Any:
    words = fast_einsum("row middle, middle column -> row column", a, b)
    lists = fast_einsum(a, [0, 1], b, [1, 2], [0, 2])
    return words + lists + fast_einsum("...i,ij", a, b)


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
def test_compiles_without_graph_breaks(function: Callable[..., Any]) -> None:
    """Of known sizes, and then of any."""
    compiled = whole(function)
    for i in (3, 5):
        operands = tensors("ij,jk", i=i)
        torch.testing.assert_close(compiled(*operands), function(*operands))


@pytest.mark.parametrize("option", [{"order": "Q"}, {"casting": "Q"}, {"precision": "bogus"}])
def test_wrong_options_are_refused_while_tracing(option: dict[str, Any]) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda a, b: fast_einsum("ij,jk->ik", a, b, **option), backend="aot_eager")
    with pytest.raises(ValueError, match=f"{next(iter(option))} is one of"):
        compiled(*tensors("ij,jk"))


def test_compiled_out_is_written() -> None:
    a, b = tensors("ij,jk")
    out = torch.zeros(a.shape[0], b.shape[1], dtype=a.dtype)
    whole(lambda a, b: fast_einsum("ij,jk->ik", a, b, out=out))(a, b)
    torch.testing.assert_close(out, a @ b)


FIRST_CALLS = """
import os

import torch

from einops_fast import fast_einsum

import torch._dynamo

a, b = torch.ones(2, 3), torch.ones(3, 4)
for call in (
    lambda a, b: fast_einsum("row middle, middle column -> row column", [a, b]),
    lambda a, b: fast_einsum(a, [0, 1], b, [1, 2]),
):
    child = os.fork()
    if not child:
        found = torch.compile(call, fullgraph=True, backend="aot_eager")(a, b)
        os._exit(not found.eq(3).all())
    assert os.waitpid(child, 0)[1] == 0
"""


def test_first_call_of_a_process_may_be_compiled() -> None:
    """Of words, and of lists of labels."""
    run_python("-c", FIRST_CALLS)


@pytest.mark.usefixtures("everywhere")
def test_probes_of_a_first_call_inside_of_the_dispatcher() -> None:
    """In the first call of an operator, torch compares results with operands. Nobody can switch tracing on there."""
    for cached in (target_of, without_onednn):
        cached.cache_clear()
    clear_plans()
    operands = [each.requires_grad_() for each in tensors("bihd,bjhd,bjhd")]
    torch.testing.assert_close(whole(attention(fast_einsum))(*operands), attention(torch.einsum)(*operands))


@pytest.mark.parametrize(("order", "dynamic"), [("F", False), *((order, True) for order in "CFAK")])
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


# ---- where the compiler calls it


WEIGHT = torch.nn.Parameter(tensors("ij")[0])


@pytest.mark.usefixtures("everywhere")
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
def test_compiler_calls_the_operator(function: Callable[..., Any]) -> None:
    """Of sizes that may change; `test_bad_input_is_named` and others are of known ones."""
    operands = tensors("ij,jk")
    got, called = compiled(function, *operands, dynamic=True)
    torch.testing.assert_close(got, function(*operands))
    assert "einops_fast.einsum" in called
    assert "einsum" not in called


@pytest.mark.usefixtures("everywhere")
def test_the_operator_gets_diagonals() -> None:
    def function(a: Any, b: Any) -> Any:
        return fast_einsum("iji,jk->ik", a[..., None] * a[:, 0], b)

    operands = tensors("ij,jk")
    got, called = compiled(function, *operands)
    torch.testing.assert_close(got, function(*operands))
    assert [each for each in called if "einsum" in each] == ["einsum", "einops_fast.einsum"]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64"])
def test_compiler_calls_the_operator_of_integers_with_kernels(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from einops_fast.backends.torch import backend as torch_backend

    operands = [(9 * each).to(getattr(torch, dtype)) for each in tensors("ij,jk")]
    for kernels in (True, False):
        monkeypatch.setattr(
            torch_backend, "kernel_dtypes", lambda _, kernels=kernels: frozenset({dtype} if kernels else ())
        )
        clear_plans()
        got, called = compiled(lambda a, b: fast_einsum("ij,jk->ik", a, b), *operands)
        torch.testing.assert_close(got, torch.einsum("ij,jk->ik", *operands))
        assert ("einops_fast.einsum" in called) is kernels
    clear_plans()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: vmap(lambda row: fast_einsum("j,jk->k", row, b))(a),
        lambda a, b: fast_einsum("ij->ji", a),
        lambda a, b: fast_einsum("ij,jk->ik", a.to(torch.complex64), b.to(torch.complex64)),
    ],
    ids=["vmap", "one operand", "complex"],
)
def test_compiler_calls_einsum(function: Callable[..., Any]) -> None:
    operands = tensors("ij,jk", dtype=torch.float32)
    got, called = compiled(function, *operands)
    torch.testing.assert_close(got, function(*operands))
    assert "einsum" in called


# ---- what is wrong


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda a, b: fast_einsum("ij,jk->ik", a, b.mT), "axis 'j' has size 2 in operand 1 .* but size 4 in operand 0"),
        (lambda a, b: fast_einsum("ij,jkl->ik", a, b), "operand 1 has 2 axes, but its term names 3"),
        (lambda a, b: fast_einsum("ij,jk->ix", a, b), "'x'"),
        (contract_expression("ij,jk->ik", (3, 4), (4, 5)), r"operand 1 has shape \(4, 2\); .* made for \(4, 5\)"),
    ],
    ids=["size", "rank", "output", "expression"],
)
def test_bad_input_is_named(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        compiled(function, *tensors("ij,jk"))


@pytest.mark.usefixtures("everywhere")
def test_bad_sizes_that_are_dynamic_are_named() -> None:
    a, b = tensors("ij,jk")
    with pytest.raises(RuntimeError, match="axis 'j' has size"):
        compiled(lambda a, b: fast_einsum("ij,jk->ik", a, b.mT), a, b, dynamic=True)


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
    on = "cuda" if backend == "inductor" else "cpu"
    call = whole(attention(fast_einsum), backend, dynamic=dynamic)
    for i in (3, 5, 9):
        operands = [each.requires_grad_() for each in tensors("bihd,bjhd,bjhd", on, i=i)]
        wanted, got = attention(torch.einsum)(*operands), call(*operands)
        torch.testing.assert_close(got, wanted)
        seed = torch.ones_like(wanted)
        found = [torch.autograd.grad(each, operands, seed) for each in (got, wanted)]
        torch.testing.assert_close(*found)


@pytest.mark.usefixtures("everywhere")
def test_dynamic_sizes_are_compiled_once() -> None:
    call = whole(attention(fast_einsum))
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


@pytest.mark.gpu
@pytest.mark.parametrize("training", [False, True])
def test_cuda_graphs_of_a_compiled_function(training: bool) -> None:
    """The operator's kernels are captured, and read what is there at each replay."""
    torch.compiler.reset()
    call = torch.compile(attention(fast_einsum), fullgraph=True, mode="reduce-overhead")
    for scale in (8, 4, 2, 1):
        torch.compiler.cudagraph_mark_step_begin()
        sizes = {"b": 2, "h": 4, "i": 128, "j": 128, "d": 64}
        operands = [each / scale for each in tensors("bihd,bjhd,bjhd", "cuda", torch.float16, **sizes)]
        operands = [each.requires_grad_(training) for each in operands]
        got, wanted = call(*operands), attention(torch.einsum)(*operands)
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)
        if training:
            seed = torch.ones_like(wanted)
            found = [torch.autograd.grad(each, operands, seed) for each in (got, wanted)]
            torch.testing.assert_close(*found, rtol=3e-2, atol=3e-2)
