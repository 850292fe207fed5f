"""The contraction kernel that has boxes copied by the hardware: on Hopper, and its source on a CPU."""

from typing import Any
from unittest import mock

import pytest
import torch
from families import executed
from fused_steps import ON, fused_step
from gluon_on_cpu import boxes_on_cpu
from kernel_problems import check, problems
from kernel_tensors import DEVICE, MEMORY, randoms

from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.contraction.boxes.tilings import tilings
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.problems import Contraction, problem
from einops_fast.backends.triton.contraction.ways import BoxCandidate, BoxKernel
from einops_fast.backends.triton.device.tiling import Axis
from einops_fast.backends.triton.launching.launch import copies_boxes
from einops_fast.planning.layout import contiguous_strides

on_hopper_or_cpu = pytest.mark.skipif(DEVICE != "cpu" and not copies_boxes(), reason="needs a Hopper GPU, or none")


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


def boxes(equation: str, operands: Any) -> list[BoxCandidate]:
    """Those that can be run here: Triton adds up the parts of sums, on a GPU where there is one."""
    dtype = str(operands[0].dtype).removeprefix("torch.")
    return [
        way for way in kernel_candidates(fused_step(equation, operands), dtype, ON) if isinstance(way, BoxCandidate)
    ]


@on_hopper_or_cpu
@problems(*PROBLEMS, *FACTORED)
def test_boxes(equation: str, shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tiling, on a CPU with several tiles for each program: both warp groups have parts of each."""
    monkeypatch.setattr(candidates, "_BOXES_WORTH_TRYING", 20)
    operands = randoms(shapes, "float16")
    with executed():
        found = boxes(equation, operands)
        assert found
        check(equation, operands, found)


@on_hopper_or_cpu
def test_boxes_of_slices() -> None:
    left, right = randoms(((300, 4, 96), (160, 2, 80)), "float16")
    operands = left[10:250, :, 16:80], right[:, 1, 8:72]
    with executed():
        found = boxes("ihk,jk->hij", operands)
        assert found
        check("ihk,jk->hij", operands, found)


@on_hopper_or_cpu
def test_a_result_that_the_hardware_writes_in_another_order() -> None:
    operands = randoms(((136, 72), (65, 72)), "float16")
    with executed():
        found = boxes("ik,jk->ij", operands)
        assert {(each.tiling.loose, each.in_order) for each in found} == {(True, True), (False, False)}
        check("ik,jk->ij", operands, found)


@on_hopper_or_cpu
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
    operands = randoms(shapes, "float16")
    with boxes_on_cpu(2), mock.patch.object(BoxKernel, "__call__", return_value=False):
        check(equation, operands, boxes(equation, operands))


def loops(equation: str, *shapes: tuple[int, ...]) -> Any:
    step = fused_step(equation, randoms(shapes, "float16", "meta"))
    return problem(step, contiguous_strides(step.shape))


BACKWARDS = Contraction((), (Axis(256, (-128, 0, 256)),), (Axis(256, (0, 1, 1)),), (Axis(128, (1, 256, 0)),))


@pytest.mark.parametrize(
    ("of", "dtype", "any_boxes"),
    [
        (loops("ik,kj->ij", (256, 128), (128, 256)), "float16", True),
        (loops("ik,kj->ij", (256, 128), (128, 256)), "float32", False),
        (loops("ik,kj->ij", (256, 100), (100, 256)), "float16", False),  # strides of 200 bytes
        (loops("aebf,dfce->abcd", (8, 16, 8, 64), (8, 64, 8, 16)), "float16", False),  # two contracted axes
        (loops("dca,bd->abc", (64, 64, 64), (64, 64)), "float16", False),  # contiguous along two kinds of rows
        (BACKWARDS, "float16", False),  # a negative stride
    ],
)
def test_boxes_are_offered_where_the_hardware_can_copy_them(of: Any, dtype: str, any_boxes: bool) -> None:
    assert bool(tilings(of, dtype, ON)) == any_boxes


@on_hopper_or_cpu
@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply")
def test_an_infinite_factor_is_multiplied_with_what_there_is() -> None:
    """Boxes reach beyond the 72 positions of ``j``."""
    factor, matrices, other = operands = randoms(((70, 6), (40, 6, 72), (70, 72)), "float16")
    factor[3, 2] = float("inf")
    matrices.abs_()
    other.abs_()
    with executed():
        found = boxes("bi,oij,bj->bo", operands)
        assert found
        for way in found:
            result = way.run(MEMORY, 0)(*(operands[at] for at in fused_step("bi,oij,bj->bo", operands).reads))
            assert (result[3] == float("inf")).all()
            assert result[4:].isfinite().all()
