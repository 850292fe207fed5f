"""Calls captured in a CUDA graph and replayed on other numbers: every kind of kernel, and several one after the other.

Without a GPU the calls are run again where they would be replayed.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from families import DEVICE, FAMILIES, Family, allowed, error_of, executed, parametrized, picking, rounding
from graphs import captured
from kernel_tensors import randn, randoms

from einops_fast import contract_expression, fast_einsum
from einops_fast.backends.triton.contraction.ways import Candidate

LARGE = DEVICE == "cuda"
SEEDS = (10, 20) if LARGE else (10,)
# Without a graph, a call that is made again says no more of one kernel than of another.
KINDS = () if LARGE else ("pointers, split", "boxes on a copy")


def replayed(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """What the call returned while it was captured, and what replays it."""
    if DEVICE == "cpu":
        result = call()
        return result, lambda: result.copy_(call())
    result, graph = captured(call)
    return result, graph.replay


def check(call: Callable[..., Any], equation: str, operands: Sequence[Any], dtype: str, most: float) -> None:
    """Replays give the results of the numbers that the operands hold then, also after other calls in between."""
    result, replay = replayed(lambda: call(*operands))
    for seed in SEEDS:
        for at, operand in enumerate(operands):
            operand.copy_(randn(*operand.shape, dtype=dtype, seed=seed + at))
        result.fill_(77)
        replay()
        assert error_of(result, equation, operands) <= most, seed
        # Memory that isn't the graph's own may be had by others meanwhile.
        again = call(*operands)
        assert torch.equal(again, result)
    del again
    replay()
    assert error_of(result, equation, operands) <= most, "again"


@pytest.mark.parametrize("expression", [False, pytest.param(True, marks=pytest.mark.gpu)])
@parametrized(*KINDS)
def test_a_kernel(name: str, expression: bool) -> None:
    """Also where it is two: a copy and a kernel, or sums of parts and theirs, the second of which begins early."""
    family = FAMILIES[name]
    operands = family.operands(LARGE)
    with executed(), picking(family.meant, family.on(LARGE)) as ran:
        call: Any = (
            contract_expression(family.equation, *(each.shape for each in operands))
            if expression
            else lambda *operands: fast_einsum(family.equation, *operands)
        )
        check(call, family.equation, operands, family.dtype, allowed(family))
    assert len(ran) == 1


def _scaled(shapes: Any, factor: int) -> Any:
    """Extents that are kept from a few elements up."""
    return tuple(tuple(size * factor if size > 16 else size for size in shape) for shape in shapes)


IN_TURN: dict[str, tuple[str, Any, str, Callable[[Candidate], bool] | None, int]] = {
    "two products": ("ij,jk,kl->il", ((40, 70), (70, 140), (140, 24)), "float32", None, 2),
    "products of halves": ("ij,jk,kl->il", ((40, 72), (72, 136), (136, 24)), "float16", None, 2),
    "two split sums": (
        "ij,jk,kl->il",
        ((16, 520), (520, 520), (520, 16)),
        "float32",
        lambda way: "split 1" not in way.name,
        2,
    ),
    "a sum, then a product": ("abd,bc->ac", ((40, 20, 33), (20, 24)), "float32", None, 2),
    "integers": ("ij,jk,kl->il", ((40, 70), (70, 140), (140, 24)), "int32", None, 2),
}


@pytest.mark.parametrize("case", IN_TURN if LARGE else ["products of halves"])
def test_an_intermediate(case: str) -> None:
    """It lies in the graph's own memory, where it is written and read again at each replay."""
    equation, shapes, dtype, meant, count = IN_TURN[case]
    shapes = _scaled(shapes, 4) if LARGE else shapes
    operands = randoms(shapes, dtype)
    with executed(), picking(meant) as ran:
        check(lambda *operands: fast_einsum(equation, *operands), equation, operands, dtype, 2 * rounding(dtype))
    assert len(ran) == count


def test_gradients() -> None:
    """Forward and backward in one graph."""
    shapes = ((4, 100, 80), (4, 90, 80)) if LARGE else ((2, 20, 18), (2, 17, 18))
    leaves = [each.requires_grad_() for each in randoms(shapes)]
    back = randn(shapes[0][1], shapes[0][0], shapes[1][1], seed=7)

    def call() -> Any:
        result = fast_einsum("bik,bjk->ibj", *leaves)
        return torch.cat([each.flatten() for each in torch.autograd.grad(result, leaves, back)])

    with picking() as ran:
        result, replay = replayed(call)
        with torch.no_grad():
            for at, leaf in enumerate(leaves):
                leaf.copy_(randn(*leaf.shape, seed=10 + at))
        replay()
    assert len(ran) == 3
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.autograd.grad(torch.einsum("bik,bjk->ibj", *exact), exact, back.double())
    found = torch.cat([each.flatten() for each in expected])
    torch.testing.assert_close(result.double(), found, rtol=1e-5, atol=1e-4)


def test_families_are_what_runs() -> None:
    """A kernel that isn't one of those that were asked for is an error, and not another test."""
    family = FAMILIES["chain"]
    operands = family.operands()
    nothing = Family(family.equation, family.shapes, family.large, family.kind, lambda tiling: False)
    with picking(nothing.meant), pytest.raises(AssertionError):
        fast_einsum(family.equation, *operands)
