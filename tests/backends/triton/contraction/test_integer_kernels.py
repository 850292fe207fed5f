"""Our own kernels on integers: exactly what NumPy's einsum gives in the same dtype, where numbers wrap around, too."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from families import error_of, numbers
from fused_steps import INTEGERS, ON, fused_step
from kernel_problems import LOOPS, MATRICES
from kernel_tensors import MEMORY, decided

from einops_fast import explain, fast_einsum
from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.torch.ceilings import KERNEL_DTYPES
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused, Multiply
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.plan_cache import clear_plans

CASES = [case for case in (*MATRICES[:12], *LOOPS[2:13]) if len(case) > 2]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(("equation", "shapes"), [(case[0], case[1:]) for case in CASES[::5]])
def test_numbers_wrap_around(equation: str, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
    operands = [numbers(*shape, dtype=dtype, seed=at) for at, shape in enumerate(shapes)]
    step = fused_step(equation, operands)
    assert all(isinstance(each, Multiply) or len(each.reads) == 1 for each in step.library)
    assert step.reads == tuple(range(len(operands)))
    result = kernel_candidates(step, dtype, ON)[0].run(MEMORY, 0)(*operands)
    assert error_of(result, equation, operands) == 0


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
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_calls(on_kernels: list[str], equation: str, shapes: Any, kernels: int, dtype: str) -> None:
    operands = [numbers(*shape, dtype=dtype, seed=at) for at, shape in enumerate(shapes)]
    result = fast_einsum(equation, *operands)
    assert len(on_kernels) == kernels
    assert result.dtype == operands[0].dtype
    np.testing.assert_array_equal(result.cpu().numpy(), np.einsum(equation, *(each.cpu() for each in operands)))


def test_one_operand_is_summed_as_torch_does(on_kernels: list[str]) -> None:
    operand = numbers(9, 7, dtype="int8")
    result = fast_einsum("ij->i", operand)
    assert not on_kernels
    assert result.dtype == torch.int64
    assert torch.equal(result, torch.einsum("ij->i", operand))


def test_the_library_multiplies_and_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has no matrix product of integers on a GPU: what is small, or not to be measured, goes this way."""
    monkeypatch.setattr(torch_backend, "kernel_dtypes", lambda _: KERNEL_DTYPES)
    clear_plans()
    for dtype in INTEGERS:
        operands = [numbers(9, 7, dtype=dtype), numbers(7, 5, dtype=dtype, seed=1), numbers(5, 3, dtype=dtype, seed=2)]
        told = explain("ij,jk,kl->li", *operands)
        assert [step.kind for step in told.steps] == ["fused", "fused"]
        result = fast_einsum("ij,jk,kl->li", *operands)
        assert result.dtype == operands[0].dtype
        np.testing.assert_array_equal(
            result.cpu().numpy(), np.einsum("ij,jk,kl->li", *(each.cpu() for each in operands))
        )
    clear_plans()


def test_a_large_product_is_not_left_to_the_library() -> None:
    """It would write every single product before it sums them."""
    operands = [Operand((256, 256), contiguous_strides((256, 256)), "int32")] * 2
    target = Target("torch", "cuda:0", ON, kernels=frozenset(INTEGERS))
    (step,) = make_plan(parse("ik,kj->ij", (2, 2)), operands, target, Numerics("int32", "int32", gemm=False)).steps
    assert isinstance(step, Fused)
    assert not choice_module._small(step)
    numerics = Numerics("float32", "float32")
    floats = [Operand((256, 256), contiguous_strides((256, 256)), "float32")] * 2
    target = Target("torch", "cuda:0", ON, kernels=frozenset({"float32"}))
    (step,) = make_plan(parse("ik,kj->ij", (2, 2)), floats, target, numerics).steps
    assert isinstance(step, Fused)
    assert choice_module._small(step)
