"""From an equation to our own kernels, whatever is drawn: on a GPU, or in Triton's interpreter without one."""

import itertools
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equations import Case, contractions, expected, operands, preferring
from families import picking
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tensors import DEVICE
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

from einops_fast import autotune, contract_expression, explain, fast_einsum, metrics
from einops_fast.backends import get_backend
from einops_fast.backends.gpus import gpu_ceilings
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.choice import StepProblem
from einops_fast.einsum import plan_call
from einops_fast.planning.notation import parse
from einops_fast.runtime.plan_cache import clear_plans

EXAMPLES = 16 if DEVICE == "cuda" else 50
"""Of each dtype. The interpreter takes milliseconds for each program, the compiler half a second for each kernel."""

LARGEST = 5 if DEVICE == "cuda" else 3
"""Extent of an axis: so that on a GPU some are more than a tile holds."""


@pytest.fixture(autouse=True)
def kernels() -> Iterator[list[str]]:
    """Every step that can be is run by a kernel, any of those that might be tried."""
    with picking() as ran:
        yield ran


@pytest.fixture
def library_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is left to the library."""
    monkeypatch.setattr(StepProblem, "decide", lambda self, arrays: self.library)


def _on_device(array: Any) -> Any:
    """A tensor with the strides of a NumPy array."""
    strides = [stride // array.itemsize for stride in array.strides]
    reach = 1 + sum((size - 1) * stride for size, stride in zip(array.shape, strides, strict=True))
    flat = np.lib.stride_tricks.as_strided(array, (max(reach, 0) if array.size else 0,), (array.itemsize,))
    return torch.from_numpy(flat.copy()).to(DEVICE).as_strided(array.shape, strides)


def _run(case: Case, arrays: Sequence[Any]) -> None:
    clear_plans()
    result = fast_einsum(case.equation, *map(_on_device, arrays))
    dtype = arrays[0].dtype
    wide = "int64" if dtype.kind == "i" else "float64"
    wanted = expected(case, [array.astype(wide) for array in arrays]).astype(dtype)  # of 8 bits, some don't fit
    np.testing.assert_array_equal(result.cpu().numpy(), wanted, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "int64"])
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_contraction(dtype: str, data: st.DataObject) -> None:
    case = data.draw(contractions(max_size=LARGEST))
    _run(case, data.draw(operands(case.shapes, dtype=dtype, negative=False)))


@pytest.mark.parametrize(
    "dtype", ["float16", pytest.param("bfloat16", marks=pytest.mark.gpu), "float32"]
)  # Triton's interpreter cuts bfloat16 off
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_rounding_is_no_worse_than_native(dtype: str, data: st.DataObject) -> None:
    case = data.draw(contractions(max_size=2 * LARGEST))
    seed = data.draw(st.integers(0, 99))
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=generator).to(DEVICE, getattr(torch, dtype)) for shape in case.shapes]
    rounded = [tensor.double().cpu().numpy() for tensor in tensors]
    wanted, magnitude = expected(case, rounded), expected(case, [np.abs(each) for each in rounded])
    clear_plans()
    found, native = (
        np.abs(call(case.letters, *tensors).double().cpu().numpy() - wanted).max()
        for call in (fast_einsum, torch.einsum)
    )
    assert found <= 2 * native + 2 * torch.finfo(tensors[0].dtype).eps * magnitude.max()


def randn(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64).to(DEVICE, torch.float32)


@pytest.mark.parametrize("by_library", [False, True])
def test_an_intermediate_with_gaps_between_rows(
    kernels: list[str], monkeypatch: pytest.MonkeyPatch, by_library: bool
) -> None:
    monkeypatch.setattr(choice_module, "_small", lambda step: by_library and step.strides is not None)
    a, b, c = randn(20, 17), randn(17, 41), randn(41, 23)
    path = [(0, 1), (0, 1)]
    steps = explain("ij,jk,kl->il", a, b, c, optimize=path).plan.steps
    assert [step.strides for step in steps] == [(44, 1), None]
    result = fast_einsum("ij,jk,kl->il", a, b, c, optimize=path)
    assert len(kernels) == 2 - by_library
    torch.testing.assert_close(result, a @ b @ c, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("order", ["K", "C"])
def test_a_sum_of_one_operand_is_written_in_the_order_of_the_result(kernels: list[str], order: str) -> None:
    a = randn(9, 20, 33)
    (step,) = explain("abc->ca", a).plan.steps
    assert step.labels == "ca"
    result = fast_einsum("abc->ca", a, order=order)
    assert len(kernels) == 1
    assert order == "K" or result.is_contiguous()
    torch.testing.assert_close(result, torch.einsum("abc->ca", a))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtypes", [["float16"], ["float32"], ["float16", "float32"]], ids="+".join)
@pytest.mark.parametrize(
    "equation", ["ij,jk->ki", "bi,bij,bj->b", "ai,ij,jb->ab", "ij,i->ij", "i,j,k->kij", "i,ij,kj->ik"]
)
def test_kernels_run_under_autocast(kernels: list[str], equation: str, dtypes: list[str], gradients: bool) -> None:
    """The result has torch's dtype."""
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    operands = [randn(*[3 + ord(label) % 5 for label in term]) for term in terms]
    operands = [each.to(getattr(torch, name)) for each, name in zip(operands, itertools.cycle(dtypes), strict=False)]
    operands = [each.requires_grad_(gradients) for each in operands]

    def of(einsum: Any) -> Sequence[Any]:
        with torch.autocast(DEVICE, torch.float16):
            result = einsum(equation, *operands)
        return [result, *(torch.autograd.grad(result.sum(), operands) if gradients else ())]

    wanted = of(torch.einsum)
    assert not kernels
    torch.testing.assert_close(of(fast_einsum), wanted, rtol=1e-2, atol=1e-2)
    # What torch promotes and doesn't convert is left to it.
    assert kernels or (len(dtypes) == 2 and set("".join(terms)) == set(output))


def test_gradients_taken_under_autocast_keep_their_digits(kernels: list[str]) -> None:
    a, b = randn(3, 4).requires_grad_(), randn(4)
    with torch.autocast(DEVICE, torch.float16):
        (gradient,) = torch.autograd.grad(fast_einsum("ij,j->ij", a, b).sum(), a)
    converted = b if DEVICE == "cpu" else b.half().float()  # on CUDA, autocast converts all operands
    torch.testing.assert_close(gradient, converted.expand(3, 4), rtol=0, atol=0)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("equation", ["jk,ai,kb,ji->ba", "jk,ai,kb,ji->ab"])
def test_the_library_multiplies_a_chain_as_the_kernel_does(library_alone: None, equation: str, autocast: bool) -> None:
    """Under autocast it reads what was converted."""
    chain = randn(5, 7), randn(16, 6).T, randn(7, 40).to(torch.float16 if autocast else torch.float32), randn(5, 16)
    with torch.autocast(DEVICE, torch.float16, enabled=autocast):
        result, wanted = (einsum(equation, *chain) for einsum in (fast_einsum, torch.einsum))
    # Sums of terms of up to a hundred.
    torch.testing.assert_close(result, wanted, **({"rtol": 2e-2, "atol": 5e-1} if autocast else {}))


def test_gradients_of_a_chain_go_pair_by_pair(kernels: list[str]) -> None:
    chain = [randn(*shape).requires_grad_() for shape in ((3, 2), (2, 4), (4, 5))]
    found, wanted = (
        torch.autograd.grad(einsum("ai,ij,jb->ba", *chain).square().sum(), chain)
        for einsum in (fast_einsum, torch.einsum)
    )
    torch.testing.assert_close(found, wanted)
    assert kernels
    assert not any(name.startswith("chain") for name in kernels)


def test_gradients_go_through_kernels(kernels: list[str]) -> None:
    a, b = randn(2, 2, 2).double().requires_grad_(), randn(2, 2, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: fast_einsum("bij,bjk->kbi", a, b), (a, b))
    assert len(kernels) == 3  # the product, and a gradient for each operand


def test_c_order_is_written_and_not_made_of_another() -> None:
    equation, operands = "dbea,ec->abcd", (randn(4, 3, 5, 6), randn(5, 7))
    assert explain(equation, *operands).plan.steps[0].any_order
    expression = contract_expression(equation, *operands, order="C")
    for result in (fast_einsum(equation, *operands, order="C"), expression(*operands)):
        assert result.is_contiguous()
        torch.testing.assert_close(result, torch.einsum(equation, *operands))
    backend = get_backend("torch")
    plan = plan_call(parse(equation, (4, 2)), backend, operands, None, "safe", "auto", "C")
    assert [type(step).__name__ for step in plan.steps] == ["Fused"]
    assert not plan.steps[0].any_order


def test_gradients_are_tuned_as_the_forward_call_was(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    chosen = StepProblem.decide

    def choose(self: StepProblem, arrays: Sequence[Any]) -> Any:
        modes.append(self.mode)
        return chosen(self, arrays)

    monkeypatch.setattr(StepProblem, "decide", choose)
    a, b = randn(2, 3, 4).requires_grad_(), randn(2, 4, 5).requires_grad_()
    with autotune("never"):
        result = fast_einsum("bij,bjk->kbi", a, b)
    worker = threading.Thread(target=result.sum().backward)
    worker.start()
    worker.join()
    assert set(modes) == {"never"}
    assert len(modes) >= 3  # the product, and a gradient for each operand


def test_a_tensor_outlives_the_transform_that_made_it(kernels: list[str]) -> None:
    left_behind = []

    def square(tensor: Any) -> Any:
        left_behind.append(tensor)
        return tensor.square().sum()

    a, b = randn(2, 3), randn(3, 4).requires_grad_()
    torch.func.grad(square)(a)
    (gradient,) = torch.autograd.grad(fast_einsum("ij,jk->ik", left_behind[0], b).sum(), b)
    torch.testing.assert_close(gradient, a.sum(0)[:, None].expand(3, 4))
    assert kernels


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,kj->ik", ((4, 5), (6, 5))),
        ("bsd,df->fbs", ((2, 3, 4), (4, 5))),
        ("bihd,bjhd->bhij", ((2, 3, 2, 4), (2, 5, 2, 4))),
        ("ij,ij->ij", ((2, 3), (2, 3))),
        ("ij,ij->i", ((2, 3), (1, 3))),
    ],
)
@pytest.mark.parametrize("way", ["GEMMs", "products"])
def test_torch_records_what_is_small(
    way: str, equation: str, shapes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(choice_module, "_small", lambda _: True)
    operands = [randn(*shape).double().requires_grad_() for shape in shapes]

    def call(*operands: Any) -> Any:
        with preferring(way):
            return fast_einsum(equation, *operands)

    assert gradcheck(call, operands, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(call, operands, fast_mode=True)
    assert "FastEinsum" not in call(*operands).grad_fn.name()
    with autotune("always"):
        clear_plans()
        assert "FastEinsum" in call(*operands).grad_fn.name()
    clear_plans()
    with metrics.record(tmp_path, ["plans"]):
        call(*operands).sum().backward()
    calls = [int(row["calls"]) for row in metrics.read(tmp_path)["plans"]]
    assert sum(calls) == 3  # the product, and a gradient for each operand


def test_a_small_product_that_is_broadcast_keeps_its_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_module, "_small", lambda _: True)
    rows, row = randn(7, 9).requires_grad_(), randn(9).requires_grad_()
    result = fast_einsum("ij,j->ij", rows, row)
    assert "FastEinsum" in result.grad_fn.name()


def test_what_the_library_gives_lies_as_the_next_kernel_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(self: StepProblem, arrays: Sequence[Any]) -> Any:
        if len(self.step.library) > 1 or self.step.labels != "ac":
            return self.library
        return kernel_candidates(self.step, "float32", gpu_ceilings("H200"))[0]

    monkeypatch.setattr(StepProblem, "decide", choose)
    a, b, c = randn(7, 5).T, randn(7, 5).T, randn(7, 6)
    wanted = torch.einsum("ab,ab,bc->ac", a, b, c)
    result = fast_einsum("ab,ab,bc->ac", a, b, c, optimize=[(0, 1), (0, 1)])
    torch.testing.assert_close(result, wanted)
    summed = fast_einsum("abd,bc->ac", randn(5, 3, 7).permute(2, 1, 0), randn(3, 6))
    assert summed.shape == (7, 6)


def test_expanded_operands_are_converted() -> None:
    v, w = randn(12), randn(12, 3)
    result = fast_einsum("ij,jk->ik", v.expand(8, 12), w, dtype=torch.float64)
    torch.testing.assert_close(result, v.double().expand(8, 12) @ w.double())


def test_windows_that_overlap() -> None:
    windows = randn(40).unfold(0, 9, 1)
    torch.testing.assert_close(fast_einsum("ij->", windows), windows.sum())
    torch.testing.assert_close(fast_einsum("ij,j->i", windows, randn(9) * 0 + 1), windows.sum(1))


@pytest.mark.gpu
def test_extra_memory_of_a_contraction_is_none() -> None:
    a, b = randn(64, 100, 8, 128).half(), randn(64, 50, 8, 128).half()
    fast_einsum("bind,bjnd->bnij", a, b)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = fast_einsum("bind,bjnd->bnij", a, b)
    extra = torch.cuda.max_memory_allocated() - before
    assert extra <= result.numel() * result.element_size() + 512


def test_a_batch_of_gradients() -> None:
    """Several at a time aren't for the kernels, which one after the other are."""
    operands = [randn(8, 9).requires_grad_(), randn(9, 10).requires_grad_()]
    result = fast_einsum("ij,jk->ik", *operands)
    seeds = randn(3, 8, 10)
    one_by_one = [torch.autograd.grad(result, operands, seed, retain_graph=True) for seed in seeds]
    found = torch.autograd.grad(result, operands, seeds, is_grads_batched=True)
    torch.testing.assert_close(found, tuple(map(torch.stack, zip(*one_by_one, strict=True))))


def test_what_writes_down_calls_sees_them() -> None:
    """A graph that torch records has all calls in it, although kernels have computed the same before."""
    operands = [randn(8, 9), randn(9, 10)]
    expected = fast_einsum("ij,jk->ik", *operands)
    graph = make_fx(lambda *operands: fast_einsum("ij,jk->ik", *operands))(*operands)
    again = [randn(8, 9), randn(9, 10)]
    torch.testing.assert_close(graph(*operands), expected)
    torch.testing.assert_close(graph(*again), fast_einsum("ij,jk->ik", *again))
