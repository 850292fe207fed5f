"""Batches of tiny products are multiplied elementwise where the next compiler fuses that; others stay contractions."""

from typing import Any

import fused_programs
import pytest
import torch
from fused_programs import Graphs, Program, random_operands

import einops_fast
from einops_fast.compiler.report import FusionLog

N = 300


Shapes = tuple[tuple[int, ...], ...]

FOUND: dict[str, tuple[Program, Shapes, str]] = {
    "rotations": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((N, 3, 3), (N, 3)), "a b c, a c -> a b"),
    "matrices": (lambda r, s: r @ s, ((N, 3, 3), (N, 3, 4)), "a b c, a c d -> a b d"),
    "quadratic_form": (lambda x, y: torch.bmm(x[:, None], y[..., None]), ((N, 4), (N, 4)), "a b, a b -> a"),
    "points_of_frames": (lambda r, x: torch.einsum("bnij,bnpj->bpni", r, x), ((2, N, 3, 3), (2, N, 8, 3)), ""),
    "one_of_a_batch": (lambda r, x: torch.einsum("bij,bj->ib", r, x), ((N, 2, 5), (N, 5)), "a b c, a c -> b a"),
}

LEFT: dict[str, tuple[Program, Shapes]] = {
    "few": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((9, 3, 3), (9, 3))),
    "long_sums": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((N, 3, 8), (N, 8))),
    "weighted_sum": (lambda x, w: torch.einsum("bnd,bn->bd", x, w), ((N, 40, 8), (N, 40))),
    "wide": (lambda r, x: r @ x, ((N, 3, 3), (N, 3, 17))),
    "one_matrix_for_all": (lambda r, x: x @ r, ((3, 3), (N, 3))),
    "square": (lambda r, x: r @ x, ((N, 9, 3), (N, 3, 9))),
    "another_dtype": (lambda r, x: torch.einsum("nij,nj->ni", r.bool().int(), x.int()) * x, ((N, 3, 3), (N, 3))),
}


def check(program: Program, shapes: Shapes, then: Any, **options: Any) -> FusionLog:
    return fused_programs.check(program, random_operands(*shapes), then=then, **options)


@pytest.mark.parametrize("name", FOUND)
def test_tiny_products_are_elementwise(name: str) -> None:
    program, shapes, pattern = FOUND[name]
    log = check(program, shapes, Graphs())
    assert [each.what for each in log.fused] == ["small product"], str(log)
    assert pattern in ("", log.fused[0].pattern)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_contractions(name: str) -> None:
    log = check(*LEFT[name], Graphs())
    assert not log.fused
    assert not log.missed


def test_a_backend_that_fuses_nothing_gets_contractions() -> None:
    program, shapes, _ = FOUND["matrices"]
    assert not check(program, shapes, "eager").fused
    assert not check(program, shapes, Graphs(), dynamic=True).fused


def test_inductor_makes_one_kernel_of_products_and_neighbours() -> None:
    from torch._inductor import metrics

    def program(r: Any, x: Any) -> Any:
        return torch.einsum("nij,nj->ni", r * 2, x).relu()

    metrics.reset()
    with torch.no_grad():
        operands = torch.randn(N, 3, 3), torch.randn(N, 3)
        torch._dynamo.reset()
        found = einops_fast.compile(program)(*operands)
    torch.testing.assert_close(found, program(*operands), rtol=1e-4, atol=1e-5)
    assert metrics.generated_kernel_count == 1
