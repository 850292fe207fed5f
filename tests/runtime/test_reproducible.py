"""The mode ``'reproducible'``: a call has the same bits the first time, later, and in every process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from einops_fast import attention, autotune, contract_expression, fast_einsum, ops, patched
from einops_fast.runtime import disk_cache
from einops_fast.runtime.choosing import Chooser
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


@pytest.mark.parametrize("make", [of_numpy, of_torch])
@pytest.mark.parametrize("in_lists", [False, True])
def test_einsum_has_the_same_bits_from_the_first_call_on(make: Make, in_lists: bool) -> None:
    for equation, *shapes in EQUATIONS:
        operands: list[Any] = [make(shape) for shape in shapes]
        spelled: list[Any] = [equation, *operands]
        if in_lists:
            terms = equation.partition("->")[0].split(",")
            spelled = [each for pair in zip(operands, map(list, terms), strict=True) for each in pair]
            spelled.append(list(equation.partition("->")[2]))
        with autotune("reproducible"):
            found = {bits(fast_einsum(*spelled)) for _ in range(3)}
        # What calls in other modes learn makes no difference.
        for _ in range(3):
            fast_einsum(*spelled)
        with autotune("reproducible"):
            found.add(bits(fast_einsum(*spelled)))
        assert len(found) == 1, equation


@pytest.mark.parametrize("make", [of_numpy, of_torch])
def test_changing_shapes_have_the_same_bits_as_shapes_that_come_alone(make: Make) -> None:
    cases = [[make((rows, 64)), make((64, 6))] for rows in range(2, 12)]
    alone = []
    with autotune("reproducible"):
        for operands in cases:
            clear_plans()
            alone.append(bits(fast_einsum("ij,jk->ik", *operands)))
        clear_plans()
        for _ in range(3):
            assert [bits(fast_einsum("ij,jk->ik", *operands)) for operands in cases] == alone


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_patched_einsum_has_the_same_bits_from_the_first_call_on(framework: str) -> None:
    module: Any = pytest.importorskip(framework)
    make = {"numpy": of_numpy, "torch": of_torch}[framework]
    for equation, *shapes in EQUATIONS:
        operands = [make(shape) for shape in shapes]
        with patched(framework), autotune("reproducible"):
            assert len({bits(module.einsum(equation, *operands)) for _ in range(3)}) == 1, equation


def test_attention_has_the_same_bits_whatever_length_came_before() -> None:
    alone = []
    lengths = (9, 40, 130)
    cases = [[of_torch((2, 3, length, 16)) for _ in range(3)] for length in lengths]
    with autotune("reproducible"):
        for q, k, v in cases:
            clear_plans()
            alone.append(bits(attention(PATTERN, q, k, v, causal=True)))
        clear_plans()
        for _ in range(3):
            assert [bits(attention(PATTERN, q, k, v, causal=True)) for q, k, v in cases] == alone


def test_row_operators_have_the_same_bits() -> None:
    x = of_torch((9, 70))
    with autotune("reproducible"):
        assert len({bits(ops.softmax(x)) for _ in range(3)}) == 1
        assert len({bits(ops.layer_norm(x)) for _ in range(3)}) == 1


def test_an_expression_takes_the_mode_too() -> None:
    run = contract_expression("ij,jk->ik", (7, 9), (9, 11))
    operands = of_numpy((7, 9)), of_numpy((9, 11))
    with autotune("reproducible"):
        assert len({bits(run(*operands)) for _ in range(3)}) == 1


def test_nothing_that_was_measured_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    key = {"problem": "one", "device": "a GPU"}
    disk_cache.write(key, {"choice": "measured", "seconds": 1.0, "candidates": {"measured": 1.0}})

    def chosen(mode: str) -> str:
        choice = Chooser[str](mode).choose(
            key, str, lambda: ["measured", "predicted"], lambda: "predicted", "predicted", lambda ways: None
        )
        assert choice.final
        return choice.way

    assert chosen("never") == "measured"
    assert chosen("reproducible") == "predicted"


def test_gradients_of_attention_are_to_be_summed_in_one_order() -> None:
    pytest.importorskip("torch")
    from einops_fast.attention.torch_state import deterministic

    assert not deterministic()
    with autotune("reproducible"):
        assert deterministic()
