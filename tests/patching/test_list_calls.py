"""Calls of torch's einsum with the operands in a list: as cheap for the host as without it."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from einops_fast import fast_einsum, patched
from einops_fast.runtime.plan_cache import clear_plans

Spelling = Callable[..., tuple[Any, ...]]
SPELLINGS: dict[str, Spelling] = {
    "list": lambda equation, terms, tensors: (equation, tensors),
    "tuple": lambda equation, terms, tensors: (equation, tuple(tensors)),
    "labels": lambda equation, terms, tensors: tuple(
        part
        for tensor, term in zip(tensors, terms, strict=True)
        for part in (tensor, [ord(label) % 26 for label in term])
    ),
}
EQUATIONS = [("ij->", ["ij"]), ("ij,jk", ["ij", "jk"]), ("ij,jk,kl", ["ij", "jk", "kl"])]


@pytest.fixture(params=["patched", "own"])
def einsum(request: Any) -> Any:
    if request.param == "own":
        yield fast_einsum
        return
    with patched("torch"):
        yield torch.einsum


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize(("equation", "terms"), EQUATIONS)
def test_no_tensor_is_printed(
    einsum: Any, spelling: str, equation: str, terms: list[str], grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = [torch.randn(4, 4, requires_grad=grad) for _ in terms]
    call = SPELLINGS[spelling](equation, terms, tensors)
    printed: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda tensor, **options: printed.append(tensor) or "")
    for _ in range(2):
        einsum(*call)
    assert not printed


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(("equation", "terms"), EQUATIONS)
def test_the_second_call_thinks_of_nothing(
    kind: type, equation: str, terms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = kind([torch.randn(4, 4) for _ in terms])
    expected = fast_einsum(equation, tensors)
    with patched("torch"):
        torch.einsum(equation, tensors)
        for module in ("einops_fast.einsum", "einops_fast.patching.replacement"):
            monkeypatch.delattr(sys.modules[module], "_call")
        assert torch.equal(torch.einsum(equation, tensors), expected)
    assert torch.equal(fast_einsum(equation, tensors), expected)


def test_what_is_no_tensor_is_refused_without_printing_it(einsum: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor, foreign = torch.randn(4, 4), torch.randn(4, 4).tolist()
    printed: list[Any] = []
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda each, **options: printed.append(each) or "")
    for operands in ((tensor, foreign), (foreign, tensor), ([tensor, foreign],)):
        with pytest.raises((TypeError, ValueError, RuntimeError, AttributeError)):
            einsum("ij,jk", *operands)
    assert not printed


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_default_device_costs_no_thinking(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It's a mode, but one that lets einsum pass; other modes still see each call."""
    clear_plans()
    a, b = torch.randn(4, 5), torch.randn(5, 6)
    expected = fast_einsum("ij,jk->ik", a, b)
    with patched("torch"), torch.device(device):
        torch.einsum("ij,jk->ik", a, b)
        monkeypatch.delattr(sys.modules["einops_fast.patching.replacement"], "_call")
        assert torch.equal(torch.einsum("ij,jk->ik", a, b), expected)
