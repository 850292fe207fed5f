"""torch on a GPU: precision of float32, CUDA graphs, and calls that don't wait for the device."""

from collections.abc import Iterator

import pytest
import torch
from graphs import captured
from torch_operands import EQUATIONS, LARGE, tensors

from einops_fast import contract_expression, fast_einsum


@pytest.fixture
def precision() -> Iterator[None]:
    """The precision of float32 is afterwards what it was."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("size", [16, 512])
def test_precision_of_float32_takes_effect_at_once(size: int) -> None:
    """Be it the library or a kernel that was chosen for the call before."""
    a, b = (torch.randn(size, size, device="cuda") for _ in range(2))
    exact = a.double() @ b.double()
    expression = contract_expression("ij,jk->ik", a.shape, b.shape)
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        theirs = float((torch.einsum("ij,jk->ik", a, b) - exact).abs().max())
        for found in (fast_einsum("ij,jk->ik", a, b), expression(a, b)):
            assert float((found - exact).abs().max()) <= 2 * theirs


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
def test_precision_of_float32_takes_effect_where_it_is_asked_for_as_a_dtype() -> None:
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float64) for _ in range(2))
    exact = a @ b
    expression = contract_expression("ij,jk->ik", a.shape, b.shape, dtype=torch.float32)
    errors = []
    for precision in ("high", "highest"):
        torch.set_float32_matmul_precision(precision)
        errors.append(float((expression(a, b) - exact).abs().max()))
    assert 10 * errors[1] < errors[0]


@pytest.mark.gpu
@pytest.mark.usefixtures("precision")
def test_precision_of_float32_takes_effect_in_small_chains() -> None:
    """They are a kernel of ours, unlike small products of two, for which the library looks at the precision."""
    operands = [torch.randn(16, 16, device="cuda") for _ in range(3)]
    exact = torch.linalg.multi_dot([each.double() for each in operands])
    expression = contract_expression("ij,jk,kl->il", *[each.shape for each in operands])
    errors = []
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        for found in (fast_einsum("ij,jk,kl->il", *operands), expression(*operands)):
            errors.append(float((found - exact).abs().max() / exact.abs().max()))
    assert max(*errors[:2], *errors[4:]) <= 1e-6
    assert max(errors) <= 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("equation", EQUATIONS)
def test_cuda_graph(equation: str) -> None:
    """After a call to warm up, a call can be captured, and replayed on other values."""
    operands = tensors(equation, "cuda", **LARGE)
    result, graph = captured(lambda: fast_einsum(equation, *operands), warm_up=1)
    for operand in operands:
        operand.sin_()
    graph.replay()
    torch.testing.assert_close(result, torch.einsum(equation, *operands))


@pytest.mark.gpu
@pytest.mark.parametrize("equation", EQUATIONS)
def test_no_call_waits_for_the_device(equation: str) -> None:
    operands = tensors(equation, "cuda", **LARGE)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(2):
            fast_einsum(equation, *operands)
    finally:
        torch.cuda.set_sync_debug_mode("default")
