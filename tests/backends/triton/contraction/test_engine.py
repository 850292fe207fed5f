"""From an equation to our own kernels, whatever is drawn: on a GPU, or in Triton's interpreter without one."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from equations import Case, contractions, expected, operands
from families import picking
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_tensors import DEVICE

from einops_fast import fast_einsum
from einops_fast.backends.triton.contraction import choice as choice_module
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


def test_gradients_go_through_kernels(kernels: list[str]) -> None:
    a, b = randn(2, 2, 2).double().requires_grad_(), randn(2, 2, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: fast_einsum("bij,bjk->kbi", a, b), (a, b))
    assert len(kernels) == 3  # the product, and a gradient for each operand


def test_a_small_product_that_is_broadcast_keeps_its_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_module, "_small", lambda _: True)
    rows, row = randn(7, 9).requires_grad_(), randn(9).requires_grad_()
    result = fast_einsum("ij,j->ij", rows, row)
    assert "FastEinsum" in result.grad_fn.name()


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
