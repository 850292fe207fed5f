"""Our own kernels on integers: exactly what NumPy's einsum gives in the same dtype, where numbers wrap around, too."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import error_of
from fused_steps import INTEGERS, ON
from kernel_tensors import decided, randn, randoms

from einops_fast import explain, fast_einsum
from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.torch.ceilings import KERNEL_DTYPES
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused, Multiply
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture
def on_kernels() -> Iterator[list[str]]:
    """Integers go where they go on a GPU, and every step to a kernel."""
    with decided(lambda kernels: kernels[0]) as ran:
        yield ran


@pytest.mark.parametrize(
    ("equation", "shapes", "kernels"),
    [
        ("ik,kj->ji", ((9, 7), (7, 5)), 1),
        ("ij,jk,kl->il", ((9, 7), (7, 5), (5, 6)), 2),  # no chain in one kernel
        ("bi,oij,bj->bo", ((9, 7), (3, 7, 5), (9, 5)), 2),
        ("bi,bij,bj->b", ((9, 7), (9, 7, 5), (9, 5)), 1),
        ("ij,k->k", ((9, 7), (5,)), 2),
        ("ii,ij->j", ((7, 7), (7, 5)), 1),
    ],
)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_calls(on_kernels: list[str], equation: str, shapes: Any, kernels: int, dtype: str) -> None:
    """Numbers over the whole range of the dtype: sums of products wrap around."""
    operands = randoms(shapes, dtype)
    result = fast_einsum(equation, *operands)
    assert len(on_kernels) == kernels
    assert error_of(result, equation, operands) == 0


def test_one_operand_is_summed_as_torch_does(on_kernels: list[str]) -> None:
    operand = randn(9, 7, dtype="int8")
    result = fast_einsum("ij->i", operand)
    assert not on_kernels
    assert result.dtype == torch.int64
    assert torch.equal(result, torch.einsum("ij->i", operand))


def test_the_library_multiplies_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has no matrix product of integers on a GPU: what is small, or not to be measured, goes this way."""
    monkeypatch.setattr(torch_backend, "kernel_dtypes", lambda _: KERNEL_DTYPES)
    clear_plans()
    for dtype in INTEGERS:
        operands = randoms(((9, 7), (7, 5), (5, 3)), dtype)
        steps = explain("ij,jk,kl->li", *operands).plan.steps
        for step in steps:
            assert isinstance(step, Fused)
            assert all(isinstance(each, Multiply) or len(each.reads) == 1 for each in step.library)
        assert len(steps) == 2
        assert error_of(fast_einsum("ij,jk,kl->li", *operands), "ij,jk,kl->li", operands) == 0
    clear_plans()


@pytest.mark.parametrize(("dtype", "gemm"), [("int32", False), ("float32", True)])
def test_a_large_product_is_not_left_to_the_library(dtype: str, gemm: bool) -> None:
    """It would write every single product of integers before it sums them."""
    operands = [Operand((256, 256), contiguous_strides((256, 256)), dtype)] * 2
    target = Target("torch", "cuda:0", ON, kernels=frozenset({dtype}))
    (step,) = make_plan(parse("ik,kj->ij", (2, 2)), operands, target, Numerics(dtype, dtype, gemm=gemm)).steps
    assert isinstance(step, Fused)
    assert choice_module._small(step) == gemm
