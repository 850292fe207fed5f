"""Equations whose shapes change from call to call: new shapes go to the framework first, those that come back don't."""

import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from einops_fast import EinsumError, contract_expression, fast_einsum, patched
from einops_fast.backends import get_backend
from einops_fast.runtime import new_shapes
from einops_fast.runtime.plan_cache import clear_plans, compiled


@pytest.fixture
def make() -> Any:
    clear_plans()
    get_backend("torch")
    return lambda *shape: torch.rand(*shape, dtype=torch.float64)


@pytest.fixture(autouse=True)
def planned_at_the_second_call(planned_at_the_first_call: None) -> None:
    new_shapes.AT_SECOND_CALL = True


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("spelled", ["ij,jk->ik", "row in, in col -> row col", "... i, i k", "lists"])
def test_equations_are_planned_at_the_second_call_however_they_are_spelled(
    make: Any, framework: str, spelled: str
) -> None:
    of = make if framework == "torch" else lambda rows, columns: np.ones((rows, 2 * columns))[:, ::2]
    for size in range(20, 23):
        a, b = of(3, size), of(size, 30)
        operands = (a, [..., "x"], b, ["x", 7]) if spelled == "lists" else (spelled, a, b)
        clear_plans()
        for plans in (0, 1, 1):
            np.testing.assert_allclose(np.asarray(fast_einsum(*operands)), np.asarray(a @ b))
            assert len(compiled) == plans


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,ij->i", "i j, j k, k l -> i l", "ij,jk"])
@pytest.mark.parametrize("before", ["without gradients", "in no_grad"])
def test_shapes_that_get_gradients_are_new_shapes(make: Any, equation: str, before: str) -> None:
    sizes = range(3, 9)
    count = equation.count(",") + 1
    with torch.no_grad():
        for size in sizes:
            fast_einsum(equation, *[make(size, size).requires_grad_(before == "in no_grad")] * count)
    for plans in (0, 1):
        for size in sizes:
            operands = [make(size, size).requires_grad_() for _ in range(count)]
            result = fast_einsum(equation, *operands)
            torch.testing.assert_close(result, torch.einsum(equation.replace(" ", ""), *operands))
            assert result.requires_grad
        assert len(compiled) == plans * len(sizes)


@pytest.mark.parametrize("equation", ["ij,jk->ik", "ij,jk,kl->il"])
def test_small_operands_of_changing_shapes_go_straight_to_the_framework(
    make: Any, equation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = np.random.default_rng(0)

    def random(shape: Any) -> Any:
        return numbers.random(shape)[::-1]  # arrays without gaps are products of any sizes

    def call(of: Any, size: int) -> None:
        operands = [of((20, size)), of((size, 20)), of((20, 5))][: equation.count(",") + 1]
        np.testing.assert_allclose(
            np.asarray(fast_einsum(equation, *operands)), np.einsum(equation, *map(np.asarray, operands))
        )

    for of in (random, lambda shape: make(*shape)):
        for size in (21, 22):
            call(of, size)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["einops_fast.einsum"], "_call", None)
            for size in (23, 24):
                call(of, size)
        call(of, 24)
        assert len(compiled) == 1
        clear_plans()


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ii,ij->j", [(1, 3), (3, 2)]),
        ("ij,jk->ik", [(2, 3), (4, 5)]),
        ("ij,jk->iz", [(2, 3), (3, 5)]),
        ("ij,jk->ii", [(2, 3), (3, 5)]),
        ("ij,jk", [(2, 3, 4), (3, 5)]),
        ("ij,jk->ik", [(30, 17)]),
        ("ij,jk->ik", [(30, 17)] * 3),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_what_a_plan_refuses_is_refused(make: Any, equation: str, shapes: Any, known: bool) -> None:
    """By the framework, too, and where other shapes have come before."""
    for of in (make, lambda *shape: np.ones(shape)):
        for size in range(2, 6) if known else ():
            fast_einsum("ij,jk->ik", of(30, size), of(size, 40))
        for _ in range(2):
            with pytest.raises(EinsumError):
                fast_einsum(equation, *[of(*shape) for shape in shapes])


@pytest.mark.parametrize("constants", [None, [1]])
def test_expressions_are_planned_at_the_second_call(make: Any, constants: Any) -> None:
    a, b = np.random.rand(20, 30), np.random.rand(30, 20)
    expression = contract_expression("ij,jk->ik", a, b, constants=constants)
    kept = []
    for _ in range(3):
        np.testing.assert_allclose(expression(*([a] if constants else [a, b])), a @ b)
        kept.append(len(expression._runs))
    assert kept == ([1, 1, 1] if constants else [0, 1, 1])


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_patched_functions_plan_at_the_second_call(make: Any, framework: str) -> None:
    module: Any = {"numpy": np, "torch": torch}[framework]
    a = module.ones((32, 32))
    clear_plans()
    with patched(framework):
        for plans in (0, 1, 1):
            assert float(module.einsum("ij,jk->ik", a, a)[0, 0]) == 32
            assert len(compiled) == plans


def test_a_checkpoint_saves_the_same_twice(make: Any) -> None:
    """It refuses a second forward pass that saves other tensors than the first."""
    for size in range(2, 7):
        a, b, c = make(2, size, 3).requires_grad_(), make(size, 4, 2), make(2)
        run = partial(fast_einsum, "bij,ikb,b->kjb")
        torch.utils.checkpoint.checkpoint(run, a, b, c, use_reentrant=False).sum().backward()
        torch.testing.assert_close(a.grad, (b.sum(1) * c).T[..., None].expand_as(a))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk,kl->il", ["nm", "mn", "n1"]),
        ("i,ij,j", ["n", "nm", "m"]),
        ("bi, oij, bj -> bo", ["2n", "3nm", "2m"]),
        ("...i,ij,j->...", ["31n", "nm", "m"]),
        ("ab,bc,cd,da->", ["nm", "m2", "2n", "nn"]),
    ],
)
def test_several_tensors_of_new_shapes_need_no_order_of_opt_einsums(
    make: Any, equation: str, shapes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To describe a path takes opt_einsum most of the time of a small torch.einsum."""
    monkeypatch.setattr("opt_einsum.contract_path", None)
    for n in range(2, 7):
        sizes = {"n": n, "m": n + 1, "1": 1, "2": 2, "3": 3}
        arrays = [make(*[sizes[each] for each in shape]).requires_grad_() for shape in shapes]
        expected = np.einsum(equation, *[each.detach().numpy() for each in arrays])
        result = fast_einsum(equation, *arrays)
        np.testing.assert_allclose(result.detach().numpy(), expected)
        for each, gradient in zip(arrays, torch.autograd.grad(result.sum(), arrays), strict=True):
            # A sum of products is linear in each of its factors.
            torch.testing.assert_close((gradient * each).sum(), result.sum())
    assert not compiled


def test_deterministic_programs_compute_the_same_bits_from_the_first_call_on() -> None:
    clear_plans()
    torch.use_deterministic_algorithms(True)
    try:
        for size in range(2, 6):
            fast_einsum("ij,jk->ik", torch.rand(3, size), torch.rand(size, 4))
        assert len(compiled) == 4
    finally:
        torch.use_deterministic_algorithms(False)
