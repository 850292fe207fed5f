"""The contraction kernel that has boxes copied by the hardware: on Hopper, and its source on a CPU."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from fused_steps import ON, fused_step
from gluon_on_cpu import boxes_on_cpu
from kernel_problems import check, problems
from kernel_tensors import DEVICE, MEMORY

from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.ways import BoxCandidate, BoxKernel
from einops_fast.backends.triton.launching.launch import copies_boxes

on_hopper = pytest.mark.skipif(DEVICE == "cpu" or not copies_boxes(), reason="needs a Hopper GPU")


def halves(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.randn(shape).half() for shape in shapes]


PROBLEMS = [
    ("bind,bjnd->bnij", (2, 200, 3, 64), (2, 136, 3, 64)),  # both contiguous along the contracted axis
    ("bnij,bjnd->bind", (2, 3, 144, 96), (2, 96, 3, 72)),  # the right one along columns
    ("bda,dc->abc", (5, 96, 136), (96, 288)),  # the left one along rows; columns in two parts
    ("acd,db->abc", (9, 80, 72), (72, 96)),  # the result along rows
    ("adc,bd->abc", (7, 96, 160), (40, 96)),
    ("bnih,nhd->bid", (2, 4, 130, 64), (4, 64, 200)),  # two contracted axes
    ("ik,kj->ij", (200, 328), (328, 72)),
    ("ik,kj->ij", (40, 520), (520, 24)),  # the sum in parts
    ("ik,kj->ij", (64, 16), (16, 40)),  # all smaller than a box
    ("ik,jk->ij", (130, 72), (65, 72)),  # rows of the result begin at odd places
    ("ahk,jk->jah", (3, 100, 72), (50, 72)),  # the result along rows, which are odd
    ("ik,jk->ij", (70, 520), (33, 520)),  # the sum in parts, too
]


FACTORED = [
    ("bi,oij,bj->bo", (200, 6), (40, 6, 72), (200, 72)),
    ("bi,oij,bj->bo", (70, 12), (200, 12, 64), (70, 64)),  # the sum in parts
    ("bi,oij,bj->ob", (136, 5), (96, 5, 136), (136, 136)),  # the result along rows, columns in two parts
    ("abi,oij,abj->abo", (3, 70, 4), (33, 4, 64), (3, 70, 64)),  # several axes of rows, rows that begin at odd places
    ("ijk,jr,kr->ir", (72, 5, 72), (5, 40), (72, 40)),
    ("ki,k,kj->ij", (200, 136), (200,), (200, 72)),  # the factor goes along with the sum, the left operand lies turned
    ("bij,bj,bjk->bki", (2, 72, 136), (2, 136), (2, 136, 64)),
    ("clhn,chpn,hcl->clhp", (2, 70, 2, 40), (2, 2, 40, 40), (2, 2, 70)),
]

STAYING = [
    ("ik,kj->ij", (700, 160), (160, 96)),  # columns in two parts
    ("bda,dc->abc", (5, 152, 136), (152, 288)),  # the left one along rows, steps that aren't whole
    ("acd,db->abc", (9, 80, 264), (264, 64)),  # the result along rows
    ("ik,jk->ij", (450, 264), (65, 264)),  # threads write
]
"""Where the right operand may stay in shared memory, on a device so small that each program has several tiles."""


def boxes(equation: str, operands: Any, on: Any = ON) -> list[BoxCandidate]:
    dtype = str(operands[0].dtype).removeprefix("torch.")
    return [
        way for way in kernel_candidates(fused_step(equation, operands), dtype, on) if isinstance(way, BoxCandidate)
    ]


def boxes_executed(equation: str, operands: Any, on: Any = ON) -> list[BoxCandidate]:
    """Those that can be executed on a CPU: Triton adds up the parts of sums, on a GPU where there is one."""
    return [way for way in boxes(equation, operands, on) if DEVICE == "cpu" or way.tiling.split == 1]


@on_hopper
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@problems(*PROBLEMS)
def test_boxes(equation: str, shapes: Any, dtype: str) -> None:
    operands = [torch.randn(shape, dtype=getattr(torch, dtype), device="cuda") for shape in shapes]
    found = boxes(equation, operands)
    assert found
    check(equation, operands, found)


@problems(*PROBLEMS, *FACTORED, *STAYING)
def test_boxes_on_a_cpu(equation: str, shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tiling, with several tiles for each program: both warp groups have parts of each, or take turns."""
    stays = (equation, *shapes) in STAYING
    monkeypatch.setattr(candidates, "_BOXES_WORTH_TRYING", 40 if stays else 20)
    operands = halves(*shapes)
    with boxes_on_cpu(2):
        found = boxes_executed(equation, operands, replace(ON, units=2) if stays else ON)
        if stays:
            found = [way for way in found if way.tiling.resident]
            assert {way.tiling.turns for way in found} == {1, 2}
        assert found
        check(equation, operands, found)


@on_hopper
@pytest.mark.gpu
def test_boxes_of_slices() -> None:
    left = torch.randn(300, 4, 96, dtype=torch.float16, device="cuda")[10:250, :, 16:80]
    right = torch.randn(160, 2, 80, dtype=torch.float16, device="cuda")[:, 1, 8:72]
    found = boxes("ihk,jk->hij", (left, right))
    assert found
    check("ihk,jk->hij", (left, right), found)


@on_hopper
@pytest.mark.gpu
def test_another_kernel_where_an_address_is_not_aligned() -> None:
    left, right = (torch.randn(256, 64, dtype=torch.float16, device="cuda") for _ in range(2))
    (way, *_) = boxes("ik,jk->ij", (left, right))
    run = way.run(MEMORY, 0)
    memory = torch.randn(256 * 64 + 1, dtype=torch.float16, device="cuda")
    shifted = memory[1:].view(256, 64)
    for operands in ((left, right), (shifted, right), (left, right)):
        expected = torch.einsum("ik,jk->ij", *(each.double() for each in operands))
        assert (run(*operands).double() - expected).abs().max() < 0.1


@problems(PROBLEMS[7], PROBLEMS[8])
def test_another_kernel_where_the_launcher_refuses_an_address(equation: str, shapes: Any) -> None:
    operands = [each.to(DEVICE) for each in halves(*shapes)]
    with boxes_on_cpu(2), mock.patch.object(BoxKernel, "__call__", return_value=False):
        check(equation, operands, boxes(equation, operands))


@pytest.mark.skipif(DEVICE != "cpu" and not copies_boxes(), reason="needs a Hopper GPU, or none")
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
def test_an_infinite_factor_is_multiplied_with_what_there_is() -> None:
    """Boxes reach beyond the 72 positions of ``j``."""
    factor, matrices, other = (each.to(DEVICE) for each in halves((70, 6), (40, 6, 72), (70, 72)))
    factor[3, 2] = float("inf")
    matrices.abs_()
    other.abs_()
    operands = factor, matrices, other
    with boxes_on_cpu(2) if DEVICE == "cpu" else nullcontext():
        found = boxes_executed("bi,oij,bj->bo", operands)
        assert found
        for way in found:
            result = way.run(MEMORY, 0)(*(operands[at] for at in fused_step("bi,oij,bj->bo", operands).reads))
            assert (result[3] == float("inf")).all()
            assert result[4:].isfinite().all()
