"""Equations whose shapes change from call to call: new shapes go to the framework first, those that come back don't."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from einops_fast import ShapeError, fast_einsum, profile
from einops_fast.backends import get_backend
from einops_fast.runtime.plan_cache import clear_plans, compiled

torch = pytest.importorskip("torch")


@pytest.fixture
def make() -> Any:
    clear_plans()
    get_backend("torch")
    return lambda *shape: torch.rand(*shape, dtype=torch.float64)


def test_a_plan_is_made_where_a_shape_comes_back(make: Any) -> None:
    def plans(size: int) -> int:
        a, b = make(3, size), make(size, 4)
        np.testing.assert_allclose(np.asarray(fast_einsum("ij,jk->ik", a, b)), np.asarray(a @ b))
        return len(compiled)

    assert [plans(size) for size in (2, 3, 4, 5, 6)] == [1, 2, 2, 2, 2]
    assert [plans(size) for size in (4, 5, 4, 2, 7)] == [3, 4, 4, 4, 4]


def test_other_strides_are_no_new_shape(make: Any) -> None:
    for left in (make(3, 4), make(4, 3).T, make(6, 8)[::2, ::2], make(3, 1).expand(3, 4)):
        fast_einsum("ij,jk->ik", left, make(4, 5))
    assert len(compiled) == 4


def test_a_checkpoint_saves_the_same_twice(make: Any) -> None:
    """It refuses a second forward pass that saves other tensors than the first."""
    for size in range(2, 7):
        a, b, c = make(2, size, 3).requires_grad_(), make(size, 4, 2), make(2)
        run = partial(fast_einsum, "bij,ikb,b->kjb")
        torch.utils.checkpoint.checkpoint(run, a, b, c, use_reentrant=False).sum().backward()
        torch.testing.assert_close(a.grad, (b.sum(1) * c).T[..., None].expand_as(a))


def test_large_operands_are_planned_at_once(make: Any) -> None:
    for size in (2, 3, 4, 900, 901):
        a = make(size, size)
        fast_einsum("ij,ij->i", a, a)
    assert len(compiled) == 4


@pytest.mark.parametrize("equation", ["row in, in col -> row col", "... i, i j"])
def test_equations_that_the_framework_reads_otherwise(make: Any, equation: str) -> None:
    for size in range(2, 7):
        a, b = make(3, size), make(size, 4)
        np.testing.assert_allclose(np.asarray(fast_einsum(equation, a, b)), np.asarray(a @ b))


def test_errors_are_ours(make: Any) -> None:
    for size in range(2, 6):
        fast_einsum("ij,jk->ik", make(3, size), make(size, 4))
    for _ in range(2):
        with pytest.raises(ShapeError, match="operand 1"):
            fast_einsum("ij,jk->ik", make(3, 7), make(8, 4))


def test_frameworks_and_options_are_told_apart(make: Any) -> None:
    for size in range(2, 6):
        fast_einsum("ij,jk->ik", make(3, size), make(size, 4))
    a, b = np.ones((3, 9), "f"), np.ones((9, 4), "f")
    assert isinstance(fast_einsum("ij,jk->ik", a, b), np.ndarray)
    assert fast_einsum("ij,jk->ik", a, b, order="F").flags.f_contiguous


def test_gradients_of_new_shapes() -> None:
    clear_plans()
    for size in range(2, 8):
        a, b, c = (torch.rand(size, size, requires_grad=True) for _ in range(3))
        result = fast_einsum("ij,jk,kl->il", a, b, c)
        found = torch.autograd.grad(result.sum(), (a, b, c))
        expected = torch.autograd.grad((a @ b @ c).sum(), (a, b, c))
        torch.testing.assert_close(found, expected)


def test_deterministic_programs_compute_the_same_bits_from_the_first_call_on() -> None:
    clear_plans()
    torch.use_deterministic_algorithms(True)
    try:
        for size in range(2, 6):
            fast_einsum("ij,jk->ik", torch.rand(3, size), torch.rand(size, 4))
        assert len(compiled) == 4
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_profile_sees_every_call(make: Any) -> None:
    with profile() as seen:
        for size in range(2, 8):
            fast_einsum("ij,jk->ik", make(3, size), make(size, 4))
    assert sum(row.calls for row in seen.rows) == 6
