"""The contraction kernel by threads, executed by NumPy: what it computes, whatever the tiles."""

from dataclasses import replace

import pytest
import torch
from fused_steps import fused_step
from gluon_on_cpu import by_threads_on_cpu

from einops_fast.backends.triton.contraction.problems import (
    Contraction,
    layouts,
    problem,
)
from einops_fast.backends.triton.contraction.threads.tilings import tiling_of
from einops_fast.backends.triton.launching.launch import interpreted


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.skipif(not interpreted(), reason="on a GPU, Triton's functions aren't Python's")
@pytest.mark.parametrize(
    ("equation", "left", "right", "shape"),
    [
        ("bik,bjk->bij", numbers(2, 70, 40), numbers(2, 50, 40), ((64,), (32, 16, 4), 8, 4, 2)),
        ("bik,bjk->bij", numbers(2, 100, 24), numbers(2, 50, 24), ((64, 32, 8), (32, 16, 8), 8, 2, 2)),
        ("ik,kj->ij", numbers(200, 24), numbers(24, 24), ((64,), (16, 8), 8, 2, 3)),
        ("efbad,cf->abcde", numbers(3, 5, 4, 3, 7), numbers(6, 5), ((32,), (8,), 8, 1, 2)),
        ("efbad,cf->abcde", numbers(3, 5, 4, 3, 7), numbers(24, 5), ((32,), (16, 8), 8, 1, 3)),
        ("acd,dbc->ab", numbers(40, 6, 9), numbers(9, 40, 6), ((32,), (32, 8), 16, 1, 2)),
        ("ik,kj->ij", numbers(33, 30).T[:, ::3], numbers(22, 44)[::2, 1::2], ((32, 8), (16, 4), 8, 1, 4)),
        ("bik,bkj->bij", numbers(3, 9, 20), numbers(3, 7, 20).transpose(1, 2), ((16, 8), (8,), 8, 1, 2)),
    ],
)
@pytest.mark.parametrize(("split", "swapped"), [(1, True), (1, False), (2, False)])
@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("turns", [False, True])
def test_tiles(  # type: ignore[no-untyped-def]
    equation, left, right, shape, split, swapped, order, turns
) -> None:
    """All parts of all tiles are written once."""
    if swapped:
        terms, result = equation.split("->")
        equation, left, right = f"{','.join(terms.split(',')[::-1])}->{result}", right, left
    step = fused_step(equation, (left, right))
    expected = torch.einsum(equation, left.double(), right.double())
    orders = layouts(step)
    if order >= len(orders):
        pytest.skip("no such order")
    loops = problem(step, orders[order])
    assert isinstance(loops, Contraction)
    tiling = tiling_of(loops, *shape, split=split)
    if tiling is None:
        pytest.skip("these columns can't be taken in parts")
    if turns:
        tiling = replace(tiling, one_by_one=tuple(operand for operand in (0, 1) if tiling.in_runs(operand, 0)))
        if not tiling.one_by_one:
            pytest.skip("nothing is contiguous along contracted axes")
    if split > tiling.contracted.tiles:
        pytest.skip("too few steps")
    places = 1 + sum((size - 1) * stride for size, stride in zip(step.shape, orders[order], strict=True))
    memory = torch.full((tiling.split, places), torch.nan)
    by_threads_on_cpu(tiling, left, right, memory)
    found = torch.as_strided(memory.double().sum(0), step.shape, orders[order])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
