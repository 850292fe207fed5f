"""Kernels that are told sizes and strides when they run; `test_kernels` has their results among those of others."""

from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import FINISH, printed
from fused_steps import ON, fused_step
from kernel_problems import LOOPS, MATRICES, check
from kernel_tensors import MEMORY, randn

from einops_fast.backends.triton.contraction.candidates import kernel_candidate, kernel_candidates
from einops_fast.backends.triton.contraction.choice import Choice, StepProblem
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
