"""Kernels write to an array that there is already, and to nothing that is made for the result."""

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
import torch
from fused_steps import ON, fused_step
from kernel_problems import CHAINS, LOOPS, MATRICES
from kernel_tensors import DEVICE, MEMORY, decided, randn, randoms

from einops_fast import fast_einsum
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.contraction.candidates import kernel_candidates
from einops_fast.backends.triton.contraction.generic import generic_kernel

CASES = [
    (equation, shapes, dtype)
    for cases, dtype in ((MATRICES[::3] + LOOPS[::2] + CHAINS[:1], "float16"), (LOOPS[::3] + MATRICES[:2], "complex64"))
    for equation, *shapes in cases
]


@pytest.mark.parametrize(("equation", "shapes", "dtype"), CASES)
def test_kernels_write_to_an_array_behind_the_operands(
    equation: str, shapes: Sequence[tuple[int, ...]], dtype: str
) -> None:
    operands = randoms(shapes, dtype)
    step = fused_step(equation, operands).replace(placed=True, any_order=False)
    ways = kernel_candidates(step, dtype, ON)
    cut = [way for way in ways if getattr(getattr(way, "tiling", None), "split", 1) > 1]
    wide = torch.complex128 if dtype == "complex64" else torch.float64
    wanted = torch.einsum(equation, *[each.to(wide) for each in operands])
    for way in [ways[0], *cut[:1], *filter(None, [generic_kernel(step, dtype, ON)])]:
        out = torch.full(step.shape, torch.nan, dtype=operands[0].dtype, device=DEVICE)
        memory = _Counting()
        assert way.run(memory, 0)(*operands, out) is out
        torch.testing.assert_close(out.to(wide), wanted, rtol=3e-2, atol=3e-2)
        assert tuple(step.shape) not in memory.made


class _Counting(type(MEMORY)):  # type: ignore[misc]
    def __init__(self) -> None:
        self.made: list[tuple[int, ...]] = []

    def empty(self, like: Any, shape: Any, strides: Any) -> Any:
        self.made.append(tuple(shape))
        return super().empty(like, shape, strides)


@pytest.mark.parametrize("beta", [0, 2])
@pytest.mark.parametrize("layout", ["C", "transposed", "slice", "overlapping"])
def test_calls_with_out(layout: str, beta: float) -> None:
    a, b = randn(40, 24), randn(24, 40, seed=1)
    if layout == "overlapping":
        a = randn(40, 40)[:, :24]
    base = torch.ones(40, 60, device=DEVICE)
    out = {"C": base.view(60, 40)[:40], "transposed": base.view(60, 40)[:40].T, "slice": base[:, 7:47]}.get(layout)
    out = a.as_strided((40, 40), (40, 1)) if out is None else out
    wanted = a.double() @ b.double() + beta * out.double()
    made: list[Any] = []

    def maker(self: Any, dtype: str) -> Any:
        return lambda like, *layout: made.append(layout) or like.new_empty_strided(*layout)

    with decided(lambda ways: ways[0]) as ran, mock.patch.object(TorchMemory, "maker", maker):
        assert fast_einsum("ij,jk->ik", a, b, out=out, beta=beta) is out
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-4)
    by_kernel = layout == "overlapping" or not beta  # the library's product adds to out itself
    assert bool(ran) == by_kernel
    assert bool(made) == (by_kernel and layout in ("slice", "overlapping"))
    if layout == "slice":
        assert (base[:, :7] == 1).all()
        assert (base[:, 47:] == 1).all()
