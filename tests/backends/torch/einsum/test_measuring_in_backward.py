"""What is timed while gradients are made, in autograd's own thread, changes nothing that anybody else holds.

Without a GPU, the clock is a stand-in, and kernels are run by Triton's interpreter.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from kernel_tensors import DEVICE, randn, randoms
from ops_problems import kernels

from einops_fast import autotune, fast_einsum, ops
from einops_fast.backends.torch import backend as torch_backend
from einops_fast.backends.torch.ceilings import KERNEL_DTYPES
from einops_fast.backends.torch.memory import TorchMemory
from einops_fast.backends.triton.contraction import candidates
from einops_fast.backends.triton.launching import measuring
from einops_fast.backends.triton.rows import contest
from einops_fast.runtime import measuring as clocks
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[int]]:
    """How many ways were timed, each time that there were several; nothing of it is kept on the user's disk."""
    found: list[int] = []
    measure = measuring.measure

    def recorded(*given: Any) -> Any:
        record = measure(*given)
        found.append(sum(seconds is not None for seconds in record["candidates"].values()))
        return record

    monkeypatch.setenv("EINOPS_FAST_CACHE_DIR", str(tmp_path))
    for module in (candidates, contest):
        monkeypatch.setattr(module, "measure", recorded)
    monkeypatch.setattr(candidates, "_MOST_ALWAYS", 3)  # compiling takes most of the time
    if DEVICE == "cpu":
        for module in (candidates, contest):
            monkeypatch.setattr(module, "interpreted", lambda: False)
        monkeypatch.setattr(measuring, "works", lambda way: True)
        monkeypatch.setattr(torch_backend, "kernel_dtypes", lambda _: KERNEL_DTYPES)
        # Every look at the clock is a second later: however slow the interpreter is, there is time for three ways.
        now = itertools.count()
        monkeypatch.setattr(clocks, "perf_counter", lambda: float(next(now)))
        # It runs what it is to time, once, and says that each is as fast.
        monkeypatch.setattr(
            TorchMemory, "seconds", lambda self, run, device, repeat: [1e-3] * (run() is not run) * repeat
        )
    clear_plans()
    yield found
    clear_plans()


def gradients(loss: Callable[..., Any], tensors: Sequence[Any]) -> list[Any]:
    """As autograd's engine makes them of leaves, in float64 and by torch itself."""
    leaves = [each.detach().double().requires_grad_() for each in tensors]
    loss(*leaves).backward()
    return [leaf.grad for leaf in leaves]


def check(
    ours: Callable[..., Any], theirs: Callable[..., Any], tensors: Sequence[Any], measured: list[int], least: int
) -> None:
    """Gradients are right, those that there were before are added to, and operands stay as they are.

    ``least``: in how many choices backward has measured.
    """
    # A result is rounded once; in float32, sums of thousands of products are, too.
    most = (64 if tensors[0].dtype == torch.float32 else 4) * torch.finfo(tensors[0].dtype).eps
    kept = [each.clone() for each in tensors]
    expected = gradients(theirs, tensors)
    leaves = [each.detach().requires_grad_() for each in tensors]
    starts = [randn(*each.shape, dtype="float32", seed=20 + at) for at, each in enumerate(tensors)]
    for leaf, start in zip(leaves, starts, strict=True):
        leaf.grad = start.to(leaf.dtype)
    begun = [leaf.grad.double() for leaf in leaves]
    with autotune("always"):
        loss = ours(*leaves)
    value, before = loss.detach().clone(), len(measured)
    loss.backward()
    assert len(measured) - before >= least
    assert all(count > 1 for count in measured[before:])
    torch.testing.assert_close(loss.detach(), value, rtol=0, atol=0)
    for tensor, copy in zip(tensors, kept, strict=True):
        assert torch.equal(tensor, copy)
    for leaf, start, gradient in zip(leaves, begun, expected, strict=True):
        missed = (leaf.grad.double() - start - gradient).square().mean().sqrt()
        # What was added to is rounded as well.
        assert float(missed) <= most * float((gradient.abs() + start.abs()).square().mean().sqrt())
    # A second call is as chosen before, and by other memory.
    for leaf in leaves:
        leaf.grad = None
    before = len(measured)
    with autotune("always"):
        ours(*leaves).backward()
    assert len(measured) == before
    for leaf, gradient in zip(leaves, expected, strict=True):
        missed = (leaf.grad.double() - gradient).square().mean().sqrt()
        assert float(missed) <= most * float(gradient.square().mean().sqrt())


EINSUMS: dict[str, tuple[str, Any, Any, str]] = {
    "scores": ("bind,bjnd->bnij", ((2, 9, 2, 5), (2, 7, 2, 5)), ((8, 300, 6, 64), (8, 200, 6, 64)), "float16"),
    "a matrix": ("bsd,df->bsf", ((2, 9, 6), (6, 7)), ((8, 400, 512), (512, 777)), "float32"),
    "three": ("ij,jk,kl->il", ((9, 7), (7, 11), (11, 5)), ((900, 700), (700, 1100), (1100, 500)), "float32"),
    "vectors": ("bij,bj->bi", ((2, 9, 7), (2, 7)), ((40, 300, 500), (40, 500)), "float32"),
}


@pytest.mark.parametrize("case", EINSUMS)
def test_contractions(case: str, measured: list[int]) -> None:
    equation, small, large, dtype = EINSUMS[case]
    dtype = "float32" if DEVICE == "cpu" else dtype
    tensors = randoms(large if DEVICE == "cuda" else small, dtype)
    count = len(tensors)
    weights: dict[Any, Any] = {}

    def loss(einsum: Callable[..., Any], *operands: Any) -> Any:
        result = einsum(equation, *operands)
        if not weights:
            weights["of"] = randn(*result.shape, dtype=dtype, seed=9)
        return (result.double() * weights["of"].double()).sum()

    check(
        lambda *operands: loss(fast_einsum, *operands),
        lambda *operands: loss(torch.einsum, *operands),
        tensors,
        measured,
        2 * (count - 1),
    )


def _normalised(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


ROWS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "softmax": (ops.softmax, lambda x: torch.softmax(x, -1), 1),
    "layer norm": (lambda x, w, b: ops.layer_norm(x, weight=w, bias=b, eps=1e-5), _normalised, 3),
    "bias and activation": (ops.bias_gelu, lambda x, b: torch.nn.functional.gelu(x + b), 2),
}


@pytest.mark.parametrize("case", ROWS)
def test_operators(case: str, measured: list[int]) -> None:
    ours, theirs, count = ROWS[case]
    rows, columns = (2048, 3000) if DEVICE == "cuda" else (12, 70)
    tensors = [randn(rows, columns, dtype="float32"), randn(columns, dtype="float32", seed=1)]
    tensors = [*tensors, randn(columns, dtype="float32", seed=2)][:count]
    weights = randn(rows, columns, dtype="float32", seed=9)
    with kernels():
        check(
            lambda *operands: (ours(*operands) * weights).sum(),
            lambda *operands: (theirs(*operands) * weights.double()).sum(),
            tensors,
            measured,
            1,
        )
