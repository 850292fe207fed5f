"""Contractions on a GPU from their first call on: right whatever runs, and by a kernel in the end."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from first_calls import decisions

from einops_fast import fast_einsum, wait_for_kernels
from einops_fast.backends.triton.contraction.choice import Choice
from einops_fast.runtime import tiers

pytestmark = pytest.mark.gpu


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The names of the ways that were chosen for good; kernels pay at once, and nothing is known of any."""
    yield from decisions(Choice, "keep", monkeypatch, tmp_path)


def operands(*shapes: tuple[int, ...]) -> list[Any]:
    return [torch.randn(shape, device="cuda", dtype=torch.float16) for shape in shapes]


CASES = {
    "bihd,bjhd->bhij": ((2, 300, 8, 64), (2, 200, 8, 64)),
    "bnd,bn->bd": ((64, 300, 200), (64, 300)),
    "abcd,dbe->aec": ((30, 64, 48, 32), (32, 64, 40)),
    # Three steps; one of an operand that is converted before.
    "ij,jk,kl->il": ((900, 64), (64, 800), (800, 700)),
}


@pytest.mark.parametrize("equation", CASES)
def test_every_call_is_right_and_a_way_is_chosen(equation: str, chosen: list[str]) -> None:
    given = operands(*CASES[equation])
    wanted = torch.einsum(equation, *[each.double() for each in given])
    bound = 2 * (torch.einsum(equation, *given).double() - wanted).abs().max() + 1e-6
    end = time.monotonic() + 90
    while not chosen and time.monotonic() < end:
        assert (fast_einsum(equation, *given).double() - wanted).abs().max() <= bound
    assert chosen
    assert (fast_einsum(equation, *given).double() - wanted).abs().max() <= bound


def test_gradients_are_right_meanwhile(chosen: list[str]) -> None:
    q, k = (each.requires_grad_() for each in operands((2, 300, 8, 64), (2, 200, 8, 64)))
    back = torch.randn(2, 8, 300, 200, device="cuda", dtype=torch.float16)
    wanted = torch.autograd.grad(torch.einsum("bihd,bjhd->bhij", q, k), (q, k), back)
    end = time.monotonic() + 120
    while len(chosen) < 3 and time.monotonic() < end:
        found = torch.autograd.grad(fast_einsum("bihd,bjhd->bhij", q, k), (q, k), back)
        for got, expected in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-2, atol=0.1)
    assert len(chosen) == 3


def test_waiting_chooses_for_what_was_called(chosen: list[str]) -> None:
    equation = "bihd,bjhd->bhij"
    given = operands(*CASES[equation])
    first = fast_einsum(equation, *given)
    assert not chosen
    wait_for_kernels()
    assert len(set(chosen)) == 1  # once with and once without gradients
    torch.testing.assert_close(fast_einsum(equation, *given), first, rtol=1e-2, atol=0.1)


def test_the_bits_stay_where_determinism_is_asked_for(chosen: list[str]) -> None:
    equation = "bnd,bn->bd"
    given = operands(*CASES[equation])
    torch.use_deterministic_algorithms(True)
    try:
        first = fast_einsum(equation, *given)
        for _ in range(200):
            assert torch.equal(fast_einsum(equation, *given), first)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not chosen


def test_sizes_that_never_pay_share_a_kernel(chosen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths that come a few times each: the second length already makes the kind one of many sizes."""
    monkeypatch.setattr(tiers, "PRICE", 1e9)
    monkeypatch.setattr(tiers, "_PRICE_OF_ONE", 1e9)
    monkeypatch.setattr(tiers, "_PRICE_FOR_ANY", 0.0)
    monkeypatch.setattr(tiers, "_PRICE_OF_SIZE", 0.0)
    equation = "bihd,bjhd->bhij"
    given = [operands((2, length, 8, 64), (2, length, 8, 64)) for length in range(300, 420, 10)]
    wanted = [torch.einsum(equation, *each) for each in given]
    end = time.monotonic() + 120
    shared: list[Any] = []
    while time.monotonic() < end:
        for each, expected in zip(given, wanted, strict=True):
            torch.testing.assert_close(fast_einsum(equation, *each), expected, rtol=1e-2, atol=0.1)
        shared = [kernel for kind in tiers._kinds.values() for kernel in kind.shared.values()]
        if shared and all(kernel.faster is not None for kernel in shared):
            break
    assert 1 <= len(shared) <= 4
    assert not chosen
