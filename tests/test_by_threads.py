"""The contraction kernel by threads, executed by NumPy: what it computes, whatever the tiles."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from gluon_on_cpu import by_threads_on_cpu  # noqa: E402

from einops_fast.backends.gpus import gpu_ceilings  # noqa: E402
from einops_fast.backends.triton.contraction_tilings import Contraction  # noqa: E402
from einops_fast.backends.triton.fma_tilings import tiling_of  # noqa: E402
from einops_fast.backends.triton.problems import layouts, problem  # noqa: E402
from einops_fast.notation import parse  # noqa: E402
from einops_fast.plan import make_plan  # noqa: E402
from einops_fast.steps import Fused  # noqa: E402
from einops_fast.target import Numerics, Operand, Target  # noqa: E402

ON = gpu_ceilings("H200")


def step_of(equation: str, left: torch.Tensor, right: torch.Tensor) -> Fused:
    operands = [Operand(tuple(each.shape), each.stride(), "float32") for each in (left, right)]
    where = Target("torch", "cuda:0", ON, kernels=frozenset({"float32"}))
    numerics = Numerics("float32", "float32", gemm=True)
    (step,) = make_plan(parse(equation, (left.ndim, right.ndim)), operands, where, numerics).steps
    assert isinstance(step, Fused)
    return step


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("equation", "left", "right", "shape"),
    [
        ("bik,bjk->bij", numbers(2, 70, 40), numbers(2, 50, 40), (64, (32, 16, 4), 8, 4)),
        ("ik,kj->ij", numbers(200, 24), numbers(24, 24), (64, (16, 8), 8, 2)),
        ("efbad,cf->abcde", numbers(3, 5, 4, 3, 7), numbers(6, 5), (32, (8,), 8, 1)),
        ("efbad,cf->abcde", numbers(3, 5, 4, 3, 7), numbers(24, 5), (32, (16, 8), 8, 1)),
        ("acd,dbc->ab", numbers(40, 6, 9), numbers(9, 40, 6), (32, (32, 8), 16, 1)),
        ("ik,kj->ij", numbers(33, 30).T[:, ::3], numbers(22, 44)[::2, 1::2], (32, (16, 4), 8, 1)),
        ("bik,bkj->bij", numbers(3, 9, 20), numbers(3, 7, 20).transpose(1, 2), (16, (8,), 8, 1)),
    ],
)
@pytest.mark.parametrize(("programs", "split"), [(0, 1), (3, 1), (0, 2)])
@pytest.mark.parametrize("order", [0, 1, 2])
def test_tiles(equation, left, right, shape, programs, split, order) -> None:  # type: ignore[no-untyped-def]
    """All parts of all tiles are written once, by programs that go through one or several of them."""
    step = step_of(equation, left, right)
    orders = layouts(step)
    if order >= len(orders):
        pytest.skip("no such order")
    loops = problem(step, orders[order])
    assert isinstance(loops, Contraction)
    tiling = tiling_of(loops, *shape, programs=programs, split=split)
    assert tiling is not None
    assert len(tiling.parts) == len(shape[1])
    if split > tiling.contracted.tiles:
        pytest.skip("too few steps")
    places = 1 + sum((size - 1) * stride for size, stride in zip(step.shape, orders[order], strict=True))
    memory = torch.full((tiling.split, places), torch.nan)
    by_threads_on_cpu(tiling, left, right, memory)
    found = torch.as_strided(memory.double().sum(0), step.shape, orders[order])
    expected = torch.einsum(equation, left.double(), right.double())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
