"""Sums of products of torch's tensors on a CPU where the operands lie along different axes."""

from typing import Any

import pytest
import torch

from einops_fast import explain, fast_einsum, patched
from einops_fast.backends.torch.einsum import blocks as torch_blocks
from einops_fast.backends.torch.einsum.lines import sum_by_lines
from einops_fast.planning.steps import Multiply
from einops_fast.runtime.plan_cache import clear_plans

CROSSED = [
    ("ij,ji->", (300, 260), (260, 300)),
    ("ij,ji->i", (300, 260), (260, 300)),
    ("ij,ji->j", (260, 301), (301, 260)),
    ("ij,ji->", (4, 70_000), (70_000, 4)),
    ("ij,ji->", (70_000, 4), (4, 70_000)),
    ("bij,bji->b", (3, 300, 301), (3, 301, 300)),
    ("bij,bji->bi", (40, 90, 80), (40, 80, 90)),
    ("bij,bji->", (80, 64, 64), (80, 64, 64)),
    ("ijk,kji->", (70, 60, 75), (75, 60, 70)),
    ("abc,cab->", (100, 8, 350), (350, 100, 8)),
    ("abcd,acdb->ca", (3, 130, 5, 140), (3, 5, 140, 130)),
]


def operands(*shapes: tuple[int, ...], dtype: Any = torch.float64) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


def reference(equation: str, a: Any, b: Any) -> Any:
    """Return the sum of products in float64, with both operands in the same axis order."""
    (left, right), output = equation.split("->")[0].split(","), equation.split("->")[1]
    b = b.double().permute([right.index(label) for label in left])
    return torch.einsum(f"{left}->{output}", a.double() * b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64], ids=str)
@pytest.mark.parametrize(("equation", "left", "right"), CROSSED)
def test_values(equation: str, left: Any, right: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_lines: list[Any] = []
    # On one thread, which importing MXNet leaves, blocks are predicted to be faster for the smallest of these.
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    clear_plans()
    monkeypatch.setattr(torch_blocks, "sum_by_lines", lambda *a: by_lines.append(sum_by_lines(*a)) or by_lines[-1])
    given = operands(left, right, dtype=dtype if not dtype.is_complex else torch.float32)
    expected = reference(equation, *given)
    found = fast_einsum(equation, *[each.to(dtype) for each in given])
    assert found.dtype == dtype
    taken = dtype == torch.float32 and "d" not in equation and left[-1] > 4  # few columns are copied
    assert not taken or [each is not None for each in by_lines] == [True]
    tolerance = {torch.float64: 1e-9, torch.bfloat16: 4.0}.get(dtype, 1e-2)
    torch.testing.assert_close(found.real.double(), expected, rtol=1e-2, atol=tolerance)


SHORT = [
    ("ac,abc->cb", (2, 3000), (2, 3, 3000)),
    ("ac,abc->cb", (3, 40_000), (3, 4, 40_000)),
    ("xk,kyx->xy", (30_000, 3), (3, 4, 30_000)),
    ("abn,bcn->nac", (3, 4, 9000), (4, 3, 9000)),
    ("ac,bac->cb", (2, 50_000), (3, 2, 50_000)),
    ("abc,dabc->cd", (2, 3, 20_000), (4, 2, 3, 20_000)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("equation", "left", "right"), SHORT)
def test_sums_of_few_products(equation: str, left: Any, right: Any, dtype: Any) -> None:
    """The result lies as the larger operand does; patched, as the native one does where code may rely on it."""
    given = operands(left, right, dtype=dtype)
    expected = torch.einsum(equation, *[each.double() for each in given])
    found = fast_einsum(equation, *given)
    tolerance = 1e-10 if dtype == torch.float64 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=10 * tolerance)
    assert isinstance(explain(equation, *given).plan.steps[0], Multiply)
    assert found.stride(0) == 1
    with patched("torch"):
        assert torch.einsum(equation, *given).is_contiguous()
    torch.testing.assert_close(fast_einsum(equation, *given, order="C"), found, rtol=0, atol=0)
