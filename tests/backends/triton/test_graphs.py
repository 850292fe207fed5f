"""Calls captured in a CUDA graph and replayed on other numbers: every kind of kernel, and several in turn."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from families import FAMILIES, allowed, error_of, parametrized, picking, rounding
from graphs import captured
from kernel_tensors import randn, randoms

from einops_fast import contract_expression, fast_einsum
from einops_fast.backends.triton.contraction.ways import Candidate

pytestmark = pytest.mark.gpu


def check(call: Callable[..., Any], equation: str, operands: Sequence[Any], most: float) -> None:
    """Replays give the results of the numbers that the operands hold then, also after other calls in between."""
    result, graph = captured(lambda: call(*operands))
    for seed in (10, 20):
        for at, operand in enumerate(operands):
            operand.copy_(randn(*operand.shape, dtype=str(operand.dtype)[6:], seed=seed + at))
        result.fill_(77)
        graph.replay()
        assert error_of(result, equation, operands) <= most, seed
        # Memory that isn't the graph's own may be had by others meanwhile.
        again = call(*operands)
        assert torch.equal(again, result)
    del again
    graph.replay()
    assert error_of(result, equation, operands) <= most, "again"


@pytest.mark.parametrize("expression", [False, True])
@parametrized()
def test_a_kernel(name: str, expression: bool) -> None:
    """Also where it is two: a copy and a kernel, or sums of parts and theirs, the second of which begins early."""
    family = FAMILIES[name]
    operands = family.operands(True)
    with picking(family.meant, family.on(True)) as ran:
        call: Any = (
            contract_expression(family.equation, *(each.shape for each in operands))
            if expression
            else lambda *operands: fast_einsum(family.equation, *operands)
        )
        check(call, family.equation, operands, allowed(family))
    assert len(ran) == 1


IN_TURN: dict[str, tuple[str, str, str, Callable[[Candidate], bool] | None]] = {
    "two products": ("ij,jk,kl->il", "160x280 280x560 560x96", "float32", None),
    "products of halves": ("ij,jk,kl->il", "160x288 288x544 544x96", "float16", None),
    "two split sums": ("ij,jk,kl->il", "16x2080 2080x2080 2080x16", "float32", lambda way: "split 1" not in way.name),
    "a sum, then a product": ("abd,bc->ac", "160x80x132 80x96", "float32", None),
    "integers": ("ij,jk,kl->il", "160x280 280x560 560x96", "int32", None),
}


@pytest.mark.parametrize("case", IN_TURN)
def test_an_intermediate(case: str) -> None:
    """It lies in the graph's own memory, where it is written and read again at each replay."""
    equation, shapes, dtype, meant = IN_TURN[case]
    operands = randoms([tuple(map(int, shape.split("x"))) for shape in shapes.split()], dtype)
    with picking(meant) as ran:
        check(lambda *operands: fast_einsum(equation, *operands), equation, operands, 2 * rounding(dtype))
    assert len(ran) == 2


def test_gradients() -> None:
    """Forward and backward in one graph."""
    leaves = [each.requires_grad_() for each in randoms([(4, 100, 80), (4, 90, 80)])]
    back = randn(100, 4, 90, seed=7)

    def call() -> Any:
        result = fast_einsum("bik,bjk->ibj", *leaves)
        return torch.cat([each.flatten() for each in torch.autograd.grad(result, leaves, back)])

    with picking() as ran:
        result, graph = captured(call)
        with torch.no_grad():
            for at, leaf in enumerate(leaves):
                leaf.copy_(randn(*leaf.shape, seed=10 + at))
        graph.replay()
    assert len(ran) == 3
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(torch.einsum("bik,bjk->ibj", *exact), exact, back.double())
    found = torch.cat([each.flatten() for each in expected])
    torch.testing.assert_close(result.double(), found, rtol=1e-5, atol=1e-4)
