"""The mode ``'reproducible'``: a call has the same bits the first time, later, and in every process."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from einops_fast import attention, autotune, contract_expression, fast_einsum, ops, patched
from einops_fast.runtime.plan_cache import clear_plans

EQUATIONS = [
    ("ij,jk->ik", (7, 9), (9, 11)),
    ("ij,jk->ik", (3, 130), (130, 4)),
    ("bnid,bnjd->bnij", (2, 3, 5, 16), (2, 3, 6, 16)),
    ("abcd,dbe->aec", (2, 3, 4, 50), (50, 3, 6)),
    ("i,i->", (900,), (900,)),
    ("ij,ij->", (40, 30), (40, 30)),
    ("abc,ac->b", (5, 6, 70), (5, 70)),
    ("ij,jk,kl->il", (8, 33), (33, 9), (9, 12)),
    # The loops would do in lists, but not in letters; by sizes, but not for so many operands
    ("bij,bjk->bik", (3, 7, 9), (3, 9, 5)),
    ("i,i,i,i->", *[(700,)] * 4),
    ("ab,b->a", (30, 40), (40,)),
]

PATTERN = "b h i d, b h j d, b h j e -> b h i e"

Make = Callable[[tuple[int, ...]], Any]


def of_numpy(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def of_torch(shape: tuple[int, ...]) -> Any:
    torch: Any = pytest.importorskip("torch")
    return torch.from_numpy(of_numpy(shape))


def bits(result: Any) -> bytes:
    return np.ascontiguousarray(np.asarray(result)).tobytes()


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    clear_plans()


def in_letters(equation: str, *operands: Any) -> Any:
    return fast_einsum(equation, *operands)


def in_lists(equation: str, *operands: Any) -> Any:
    inputs, _, output = equation.partition("->")
    pairs = zip(operands, map(list, inputs.split(",")), strict=True)
    return fast_einsum(*[each for pair in pairs for each in pair], list(output))


def in_a_list(equation: str, *operands: Any) -> Any:
    return fast_einsum(equation, list(operands))


@cache
def expression(equation: str, *shapes: tuple[int, ...]) -> Any:
    return contract_expression(equation, *shapes)


def as_expression(equation: str, *operands: Any) -> Any:
    return expression(equation, *[tuple(each.shape) for each in operands])(*operands)


def when_patched(equation: str, *operands: Any) -> Any:
    module: Any = np if isinstance(operands[0], np.ndarray) else pytest.importorskip("torch")
    with patched(module.__name__):
        return module.einsum(equation, *operands)


def of_complex(shape: tuple[int, ...]) -> Any:
    return of_numpy(shape) * np.complex64(1 + 2j)


@pytest.mark.parametrize("make", [of_numpy, of_complex, of_torch])
@pytest.mark.parametrize("einsum", [in_letters, in_lists, in_a_list, as_expression, when_patched])
def test_einsum_has_the_same_bits_from_the_first_call_on(make: Make, einsum: Callable[..., Any]) -> None:
    for equation, *shapes in EQUATIONS:
        operands = [make(shape) for shape in shapes]
        with autotune("reproducible"):
            found = {bits(einsum(equation, *operands)) for _ in range(3)}
        # What calls in other modes learn makes no difference, here or where they come first.
        for forget in (bool, clear_plans):
            forget()
            for _ in range(3):
                einsum(equation, *operands)
            with autotune("reproducible"):
                found.add(bits(einsum(equation, *operands)))
        assert len(found) == 1, equation


def test_einsum_has_the_same_bits_after_calls_on_arrays_of_another_framework() -> None:
    torch: Any = pytest.importorskip("torch")
    for equation, *shapes in EQUATIONS:
        operands = [of_numpy(shape) for shape in shapes]
        fast_einsum(equation, *map(torch.from_numpy, operands))
        with autotune("reproducible"):
            assert len({bits(fast_einsum(equation, *operands)) for _ in range(3)}) == 1, equation


def product(x: Any, y: Any) -> Any:
    return fast_einsum("ij,jk->ik", x, y)


def attended(q: Any, k: Any, v: Any) -> Any:
    return attention(PATTERN, q, k, v, causal=True)


@pytest.mark.parametrize(
    ("call", "cases"),
    [
        *[(product, [[make((rows, 64)), make((64, 6))] for rows in range(2, 12)]) for make in (of_numpy, of_torch)],
        (attended, [[of_torch((2, 3, length, 16)) for _ in range(3)] for length in (9, 40, 130)]),
        *[(operator, [[of_torch((rows, 70))] for rows in (9, 10)]) for operator in (ops.softmax, ops.layer_norm)],
    ],
)
def test_the_bits_are_the_same_whatever_shapes_came_before(call: Callable[..., Any], cases: Any) -> None:
    alone = []
    with autotune("reproducible"):
        for operands in cases:
            clear_plans()
            alone.append(bits(call(*operands)))
        clear_plans()
        for _ in range(3):
            assert [bits(call(*operands)) for operands in cases] == alone


def test_gradients_of_attention_are_to_be_summed_in_one_order() -> None:
    pytest.importorskip("torch")
    from einops_fast.attention.torch_state import deterministic

    assert not deterministic()
    with autotune("reproducible"):
        assert deterministic()
