"""Kernels that are told sizes and strides when they run, and kernels on integers, which wrap around as in NumPy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import FINISH, printed
from families import error_of
from fused_steps import INTEGERS, ON, fused_step
from kernel_problems import LOOPS, MATRICES, check
from kernel_tensors import MEMORY, decided, randn, randoms

from einops_fast import explain, fast_einsum
from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.torch.ceilings import KERNEL_DTYPES
from einops_fast.backends.triton.contraction import choice as choice_module
from einops_fast.backends.triton.contraction.candidates import kernel_candidate, kernel_candidates
from einops_fast.backends.triton.contraction.choice import Choice, StepProblem
from einops_fast.backends.triton.contraction.generic import generic_kernel
from einops_fast.backends.triton.contraction.ways import GENERIC, KernelCandidate
from einops_fast.planning.epilogue import Epilogue
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import make_plan
from einops_fast.planning.steps import Fused, Multiply
from einops_fast.planning.target import Numerics, Operand, Target
from einops_fast.runtime.plan_cache import clear_plans


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


@pytest.mark.parametrize("size", [2, 3, 7, 8, 641, (1 << 30) - 1, 1 << 30, (1 << 31) - 1])
def test_the_numbers_that_divide_are_right(size: int) -> None:
    """An axis of that size inside another one: the first array steps through both, the second through one."""
    from einops_fast.backends.triton.device.generic import _Told
    from einops_fast.backends.triton.device.tiling import Axis

    told = _Told([Axis(size, (1,))], 8)
    told._divisor(size, True, 1)
    multiplier, shift = told.numbers[1] % (1 << 32), told.numbers[2]
    for position in {0, 1, size - 1, size, size + 1, 2 * size - 1, (1 << 31) - 1, (1 << 31) - 2, 12345678}:
        if position < 1 << 31:
            assert position * multiplier >> 32 + shift == position // size


def test_a_problem_finds_the_kernel_that_others_have() -> None:
    def asked(length: int) -> tuple[StepProblem, str, Any]:
        operands = [randn(4, length, 8, 64, dtype="float16")] * 2
        step = fused_step("bihd,bjhd->bhij", operands)
        problem = StepProblem(Choice(step, torch.einsum, MEMORY, "ieee", "auto"), operands, 0, True)
        found = problem.for_any()
        assert found is not None
        name, way, key = found
        assert way.name == name
        again = kernel_candidate(name, step, "float16", problem.on)
        assert again is not None
        assert again.tiling == way.tiling
        return problem, name, key

    problems, _, keys = zip(*map(asked, (44, 52, 40)), strict=True)
    assert len({problem.kind for problem in problems}) == 1
    assert keys[0] == keys[1] != keys[2]


PROGRAM = (
    FINISH
    + """
import re
import sys
from collections import Counter

import torch

from fused_steps import ON, fused_step

from einops_fast.backends.triton.contraction.generic import generic_kernel  # noqa: E402
from einops_fast.backends.triton.contraction.ways import GENERIC

finish(False)
pretend(90)

def moved(way):
    # How much a thread loads or stores at once, as often as it does.
    text = way._kernel.compile_for(*way._kernel.declared()).asm["llir"]
    return Counter(re.findall(r"cp\\.async\\S* |(?:ld|st)\\.global\\S*|0x10", text))

for case in sys.argv[1:]:
    equation, *texts = case.split()
    operands = [
        torch.empty(tuple(map(int, text.split("x"))), dtype=torch.bfloat16, device="meta") for text in texts
    ]
    way = generic_kernel(fused_step(equation, operands), "bfloat16", ON)
    special = type(way)(way._order, way.seconds, way.tiling)
    print(moved(way) == moved(special), sum(moved(way).values()) > 1)
"""
)


def test_as_much_is_loaded_at_once_as_where_sizes_are_known(tmp_path: Path) -> None:
    """Also where a tile goes on in the next row, and where an array lacks the axis in between."""
    cases = [
        "bihd,bjhd->bhij 4x330x8x64 4x328x8x64",
        "bij,bjk->bik 8x600x600 8x600x600",
        "aebf,fdec->abcd 48x32x48x32 32x48x32x24",
        "bij,bj->bij 64x100x504 64x504",
        "ijk->j 64x300x96",
    ]
    assert printed(PROGRAM, tmp_path, *cases) == ["True True"] * len(cases)


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
