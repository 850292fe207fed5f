"""Contractions that memory bounds, on a CPU: no stack of interleaved matrices with an extent of 1 is multiplied."""

from typing import Any

import numpy as np
import pytest
import torch

from einops_fast import explain, fast_einsum
from einops_fast.backends.torch import steps as torch_steps
from einops_fast.backends.torch.einsum.blocks import sum_in_blocks
from einops_fast.planning.steps import Gemm, Multiply, Native, View
from einops_fast.runtime.plan_cache import clear_plans

# Matrices times vectors, whose short rows lie between those of other matrices.
INTERLEAVED = [
    ("bhd,hd->bh", (2048, 8, 32), (8, 32)),
    ("bhd,hd->hb", (2048, 8, 32), (8, 32)),
    ("bshd,hd->bsh", (4, 512, 8, 32), (8, 32)),
    ("ibk,bk->bi", (512, 32, 64), (32, 64)),
]
DOTS = [
    ("bi,bi->b", (1024, 1024), (1024, 1024)),
    ("bnid,bnid->bni", (4, 8, 512, 64), (4, 8, 512, 64)),
    ("bind,bind->bni", (4, 512, 8, 64), (4, 512, 8, 64)),
    ("bij,bij->ij", (32, 128, 128), (32, 128, 128)),
    ("ij,ij->j", (4096, 100), (4096, 100)),
    ("ij,ji->i", (700, 700), (700, 700)),
    ("bij,bij->", (33, 128, 128), (33, 128, 128)),
]
LONG = DOTS[0], DOTS[-1]
"""Those of ``DOTS`` that go to BLAS: there it is faster than NumPy's loops. Float32 is summed in pieces."""
SINGLE = [
    ("ik,kj->ij", (300, 1), (1, 300)),
    ("bik,bkj->bij", (8, 100, 1), (8, 1, 100)),
    ("ik,k->i", (1 << 17, 1), (1,)),
]
GEMV = [("ik,k->i", (512, 512), (512,)), ("ki,k->i", (512, 512), (512,)), ("bik,bk->bi", (8, 256, 128), (8, 128))]
CASES = INTERLEAVED + DOTS + SINGLE + GEMV


def operands(shapes: tuple[tuple[int, ...], ...], dtype: Any = None) -> list[Any]:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    return arrays if dtype is None else [torch.from_numpy(array).to(dtype) for array in arrays]


LOOPS = [case for case in INTERLEAVED + DOTS + SINGLE if case not in LONG]
FLOATS = (None, torch.float32, torch.bfloat16)
KINDS: list[tuple[Any, tuple[Any, ...], Any]] = [
    # cases, dtypes (None for NumPy), and what holds for the one step of a plan
    (LOOPS, (None,), lambda step: isinstance(step, (Native, Multiply))),
    (LONG, (None,), lambda step: isinstance(step, Gemm) and step.left.moves + step.right.moves == ""),
    (
        INTERLEAVED,
        (torch.float32, torch.float16),
        lambda step: isinstance(step, Multiply) and 0 < step.block < step.full,
    ),
    (SINGLE, FLOATS, lambda step: not isinstance(step, Gemm)),
    (GEMV, FLOATS, lambda step: isinstance(step, Gemm)),
]


@pytest.mark.parametrize(
    ("case", "dtype", "holds"),
    [(case, dtype, holds) for cases, dtypes, holds in KINDS for dtype in dtypes for case in cases],
)
def test_the_one_step(case: Any, dtype: Any, holds: Any) -> None:
    """Loops or blocks where BLAS would read again; BLAS where it is as fast as memory."""
    (step,) = [step for step in explain(case[0], *operands(case[1:], dtype)).plan.steps if not isinstance(step, View)]
    assert holds(step), step


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("equation", "left", "right"), CASES)
def test_values(equation: str, left: Any, right: Any, dtype: Any) -> None:
    """At most twice as far from float64 as the framework's own einsum, or as one rounding."""
    given = operands((left, right), dtype)
    exact = np.einsum(equation, *[np.asarray(a.double() if dtype else a, "float64") for a in given])
    own = (torch if dtype else np).einsum(equation, *given)
    got = fast_einsum(equation, *given)
    assert got.shape == exact.shape
    errors = [np.abs(np.asarray(a.double() if dtype else a, "float64") - exact).max() for a in (got, own)]
    rounding = torch.finfo(dtype or torch.float32).eps * np.abs(exact).max()
    # The order of a sum alone changes the last digits.
    assert errors[0] <= 2 * max(errors[1], 4 * rounding if dtype in (None, torch.float32) else rounding / 2)


@pytest.mark.parametrize("block", [1, 7, 64, 1000])
@pytest.mark.parametrize("summed", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lacking", [(), (0,), (1,), (0, 2)])
def test_blocks_of_any_size(lacking: tuple[int, ...], dtype: Any, summed: int, block: int) -> None:
    """Also with axes that one operand lacks, and in another order in memory."""
    shape = (5, 6, 7)
    a = torch.randn(shape[::-1], dtype=torch.float64).to(dtype).permute(2, 1, 0)
    b = torch.randn([1 if at in lacking else size for at, size in enumerate(shape)], dtype=torch.float64).to(dtype)
    wanted = (a.double() * b.double()).sum(tuple(range(-summed, 0)))
    for left, right in ((a, b), (b, a), (a, b.squeeze(0) if 0 in lacking else b)):
        got = sum_in_blocks(left, right, summed, block)
        assert got.dtype == dtype
        torch.testing.assert_close(got.double(), wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-12, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,i->j", ((30, 20), (30,))),
        ("bij,bi->bj", ((3, 30, 20), (3, 30))),
        ("bhij,bhi->bhj", ((3, 2, 30, 20), (3, 2, 30))),
        ("bij,i->bj", ((3, 30, 20), (30,))),
        ("ij,j->i", ((30, 20), (20,))),
        ("ij,j->i", ((30, 50), (50,))),
        ("j,ij->i", ((20,), (3, 20))),
        ("bij,bj->bi", ((3, 30, 50), (3, 50))),
        ("bhij,hj->bhi", ((3, 2, 5, 50), (2, 50))),
    ],
)
def test_rows_times_matrices(
    equation: str, shapes: tuple[tuple[int, ...], ...], dtype: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers and gradients whether half precision is multiplied by oneDNN or by torch's own loops."""
    halves = (torch.float16, torch.bfloat16)
    monkeypatch.setattr(torch_steps, "without_onednn", lambda: halves if slow else ())
    clear_plans()
    wide = [torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) for shape in shapes]
    operands = [each.to(getattr(torch, dtype)).requires_grad_() for each in wide]
    exact = [each.detach().double().requires_grad_() for each in operands]
    found, expected = fast_einsum(equation, *operands), torch.einsum(equation, *exact)
    torch.testing.assert_close(found.double(), expected, rtol=2e-2, atol=2e-2)
    gradients = torch.autograd.grad(found.sum(), operands), torch.autograd.grad(expected.sum(), exact)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-2, atol=8e-2)
    clear_plans()
