"""What waiting for kernels plans of calls that went to the framework, as on a GPU."""

from collections.abc import Iterator

import pytest
import torch

from einops_fast import fast_einsum, patched, wait_for_kernels
from einops_fast.runtime import new_shapes
from einops_fast.runtime.plan_cache import clear_plans, compiled


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(new_shapes, "AT_SECOND_CALL", True)
    monkeypatch.setattr(new_shapes, "_on_gpu", lambda operand: True)
    clear_plans()
    yield
    clear_plans()


def equations() -> set[str]:
    return {str(key[0][0] if isinstance(key[0], tuple) else key[1]) for key in compiled}


@pytest.mark.parametrize("grad", [False, True])
def test_what_came_is_planned(grad: bool) -> None:
    a, b = torch.randn(4, 5, requires_grad=grad), torch.randn(5, 6).T.contiguous().T
    for _ in range(3):
        fast_einsum("ij,jk->ik", a, b)
    assert not compiled
    wait_for_kernels()
    assert "ij,jk->ik" in equations()
    planned = len(compiled)
    torch.testing.assert_close(fast_einsum("ij,jk->ik", a, b), a @ b)
    assert len(compiled) == planned


def test_patched_calls() -> None:
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    with patched("torch"):
        torch.einsum("ij,jk->ik", a, b)
        assert not compiled
        wait_for_kernels()
        assert "ij,jk->ik" in equations()


def test_shapes_that_stay_are_planned_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_shapes, "_PLANNED", 3)
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    for calls in range(4):
        assert bool(compiled) == (calls > 3)
        fast_einsum("ij,jk->ik", a, b)
    assert compiled
