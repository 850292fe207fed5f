"""Kernels that are told sizes and strides when they run, and kernels on integers, which wrap around as in NumPy."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from families import error_of
from fused_steps import INTEGERS, ON, fused_step
from kernel_problems import LOOPS, MATRICES, check
from kernel_tensors import MEMORY, decided, randn, randoms

from einops_fast import fast_einsum
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.contraction.ways import GENERIC, KernelCandidate
from einops_fast.planning.epilogue import Epilogue


@pytest.mark.parametrize("equation", ["ik,kj->ij", "ecbfa,fd->abcde", "bij,bj->bij", "abc->b"])
def test_any_tiles_are_right(equation: str) -> None:
    shapes = next(case[1:] for case in (*MATRICES[11:], *MATRICES, *LOOPS) if case[0] == equation)
    operands = [randn(*shape, dtype="float16", seed=at) for at, shape in enumerate(shapes)]
    found = kernel_candidates(fused_step(equation, operands), "float16", ON)
    single = [way for way in found if isinstance(way, KernelCandidate) and way.kind in GENERIC]
    told = [KernelCandidate(way._order, way.seconds, way.tiling, True) for way in single]
    check(equation, operands, told[::7])


def test_an_epilogue() -> None:
    left, right, bias = randn(40, 70, dtype="float16"), randn(70, 24, dtype="float16"), randn(24, dtype="float16")
    step = fused_step("ik,kj->ij", (left, right)).replace(any_order=False, epilogue=Epilogue("relu", (0, 1)))
    way = generic_kernel(step, "float16", ON)
    assert way is not None
    wanted = (left.double() @ right.double() + bias.double()).relu()
    torch.testing.assert_close(way.run(MEMORY, 0)(left, right, bias).double(), wanted, rtol=1e-2, atol=1e-2)


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
