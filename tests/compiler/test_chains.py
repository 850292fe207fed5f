"""Contractions that the compiler reorders, and batches of tiny products that it multiplies elementwise."""

from itertools import pairwise
from typing import Any

import fused_programs
import pytest
import torch
import torch.nn.functional as F
from fused_programs import Graphs, Program, random_operands
from hypothesis import given, settings
from hypothesis import strategies as st

import einops_fast
from einops_fast import fusions
from einops_fast.compiler.report import FusionLog

T, D, R = 24, 32, 4
"""Rows, features, and the rank of what has a low one."""


SHAPES = ((2, T, D), (D, R), (R, D))

REORDERED: dict[str, tuple[Program, tuple[tuple[int, ...], ...], str]] = {
    "merged_matrices": (lambda x, a, b: x @ (a @ b), SHAPES, "(a b c, c d), d e -> a b e"),
    "scaled_on_the_way": (lambda x, a, b: x @ (a @ b * 0.5) * 3, SHAPES, "(a b c, c d), d e -> a b e"),
    "weight_of_a_layer": (
        lambda x, a, b, c: F.linear(x, (a @ b).t() / 2, c), (*SHAPES, (D,)), "(a b c, c d), d e -> a b e"
    ),
    "product_that_is_added_to": (
        lambda x, a, b, c: torch.baddbmm(c, x, (a @ b).expand(2, D, D), beta=0.3, alpha=2.0), (*SHAPES, (2, T, D)),
        "(a b c, c d), d e -> a b e",
    ),
    "matrix_for_each_head": (
        lambda x, a, b: torch.einsum("btd,dhe->bhte", x, torch.einsum("dr,rhe->dhe", a, b)),
        ((2, T, D), (D, R), (R, 2, D)), "(a b c, c d), d e f -> a e b f",
    ),
    "rows_of_all_batches": (
        lambda x, a, b: (x.reshape(-1, D) @ (a @ b)).view(2, T, D), SHAPES, "(a b c, c d), d e -> a b e"
    ),
    "from_the_right": (lambda a, b, v: ((a @ b) @ v[:, None])[:, 0], ((D, D), (D, D), (D,)), "a b, (b c, c) -> a"),
    "three_squares": (
        lambda a, b, c, d: (a @ b) @ (c @ d), ((T, D), (D, D), (D, D), (D, 2)), "a b, (b c, (c d, d e)) -> a e"
    ),
    "einsum_of_a_product": (
        lambda x, a, b: torch.einsum("tr,sr->ts", x @ (a @ a.mT), b), ((T, D), (D, R), (2, D)), ""
    ),
    "einsum_with_a_batch": (
        lambda x, a, b: torch.einsum("bij,bjk->bik", torch.einsum("bir,bjr->bij", a, b), x),
        ((2, T, D), (2, T, R), (2, T, R)), "",
    ),
}  # fmt: skip
"""With the report's pattern, where that is worth reading."""

KEPT: dict[str, tuple[Program, tuple[tuple[int, ...], ...]]] = {
    "low_rank_first": (lambda x, a, b: x @ a @ b * 2, SHAPES),
    "two_layers": (lambda x, a, b: F.linear(F.linear(x, a.t()), b.t()), SHAPES),
    "einsum_of_three": (lambda x, a, b: torch.einsum("btd,dr,re->bte", x, a, b), SHAPES),
    "little_to_gain": (lambda x, a, b: x @ (a @ b), ((D, D), (D, D), (D, D - 1))),
    "matrix_that_is_returned": (lambda x, a, b: (lambda w: (x @ w, w))(a @ b), SHAPES),
    "matrix_that_is_used_twice": (lambda x, a, b: (lambda w: x @ w + x @ w.t())(a @ b), SHAPES),
    "activation": (lambda x, a, b: x @ (a @ b).relu(), SHAPES),
    "activation_in_place": (lambda x, a, b: x @ (a @ b).tanh_(), SHAPES),
    "sum": (lambda x, a, b: x @ (torch.eye(D) + a @ b), SHAPES),
    "bias_between": (lambda x, a, b, c: x @ F.linear(a, b.t(), c), (*SHAPES, (D,))),
    "gate_between": (lambda x, a, b: x @ ((a @ b) * x[0, :1]), SHAPES),
    "softmax_between": (lambda x, a, b: x @ (a @ b).softmax(-1), SHAPES),
    "detached": (lambda x, a, b: x @ (a @ b).detach() + (a.sum() + b.sum()), SHAPES),
    "part": (lambda x, a, b: x[..., :8] @ (a @ b)[:8], SHAPES),
    "triangle": (lambda x, a, b: x @ (a @ b).tril(), SHAPES),
    "written_row": (lambda x, a, b: x @ written(a @ b), SHAPES),
    "written_operand": (lambda x, a, b: written_meanwhile(x, a, b), SHAPES),
    "another_dtype": (lambda x, a, b: (x.double() @ (a @ b).double()).to(x.dtype), SHAPES),
    "without_gradient": (lambda x, a, b: x @ without_gradient(a, b) + (a.sum() + b.sum()), SHAPES),
    "repeated": (lambda x, a, b: x @ (a @ b).repeat(1, 2), SHAPES),
    "trace": (lambda x, a, b: torch.einsum("btd,dd->bt", x, a @ b), SHAPES),
    "sum_of_one_alone": (lambda x, a, b: torch.einsum("btd,ef->bt", x, a @ b), SHAPES),
}


def written(matrix: Any) -> Any:
    matrix[0] = 1
    return matrix


def written_meanwhile(x: Any, a: Any, b: Any) -> Any:
    c = torch.ones(D, R, dtype=x.dtype)
    matrix = c @ b.detach()
    c.mul_(2)
    return x @ matrix + (a.sum() + b.sum())


def without_gradient(a: Any, b: Any) -> Any:
    with torch.no_grad():
        return a @ b


def check(program: Program, shapes: tuple[tuple[int, ...], ...], **options: Any) -> FusionLog:
    operands = [each.detach().div(each.shape[-1] ** 0.5).requires_grad_() for each in random_operands(*shapes)]
    return fused_programs.check(program, operands, **options)


@pytest.mark.parametrize("name", REORDERED)
def test_a_chain_is_reordered(name: str) -> None:
    program, shapes, pattern = REORDERED[name]
    log = check(program, shapes)
    assert [each.what for each in log.fused] == ["chain"], str(log)
    assert pattern in ("", log.fused[0].pattern)
    assert not log.missed


@pytest.mark.parametrize("name", KEPT)
def test_another_one_is_left_alone(name: str) -> None:
    program, shapes = KEPT[name]
    log = check(program, shapes)
    assert not log.fused, str(log)


def test_an_order_has_to_be_better_for_all_sizes() -> None:
    width = 256
    a, b = torch.randn(width, R), torch.randn(R, width)

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

        def forward(self, x: Any) -> Any:
            return x @ (self.a @ self.b)

    torch._dynamo.reset()
    layer, x = Layer(), torch.randn(3, 7, width)
    with fusions() as log:
        found = einops_fast.compile(layer, then="eager", dynamic=True)(x)
    torch.testing.assert_close(found, layer(x), rtol=1e-3, atol=1e-3)
    assert [each.what for each in log.fused] == ["chain"]  # rows change, the layer doesn't
    assert not check(lambda x, y, z: x @ (y @ z), ((T, D), (D, R), (R, D)), dynamic=True).fused


@settings(max_examples=25)
@given(data=st.data())
def test_a_drawn_chain_has_its_own_values(data: st.DataObject) -> None:
    """Products of matrices in any brackets, some of which are views, scaled, shared or returned."""
    count = data.draw(st.integers(3, 5))
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 5, 32]), min_size=count + 1, max_size=count + 1))
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=count, max_size=count))
    cuts = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    shared = data.draw(st.integers(0, 5)) == 0

    def program(*matrices: Any) -> Any:
        parts, kept = list(matrices), None
        for cut, kind in zip(cuts, kinds, strict=True):
            if len(parts) == 1:
                break
            at = cut % (len(parts) - 1)
            made = product(kind, parts[at], parts[at + 1])
            kept = made if kept is None else kept
            parts[at : at + 2] = [made]
        made = parts[0]
        while len(parts) > 1:
            parts[:2] = [parts[0] @ parts[1]]
            made = parts[0]
        return (made, kept * 2) if shared else made

    check(program, tuple(pairwise(sizes)))


KINDS = ("matmul", "einsum", "linear", "scaled", "transposed", "views", "addmm", "activation")


def product(kind: str, x: Any, y: Any) -> Any:
    """The product of two matrices, in one of many ways, and perhaps something else of it."""
    if kind == "einsum":
        return torch.einsum("ij,jk->ik", x, y)
    if kind == "linear":
        return F.linear(x, y.t())
    if kind == "scaled":
        return x @ (y * 0.5) / 3
    if kind == "transposed":
        return (y.t() @ x.t()).t()
    if kind == "views":
        return torch.einsum("aib,bj->aij", x[None], y)[0].contiguous().reshape(x.shape[0], -1)
    if kind == "addmm":
        return torch.addmm(torch.ones(1, dtype=x.dtype), x, y)
    return (x @ y).tanh() if kind == "activation" else x @ y


N = 300


Sizes = tuple[tuple[int, ...], ...]

FOUND: dict[str, tuple[Program, Sizes, str]] = {
    "rotations": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((N, 3, 3), (N, 3)), "a b c, a c -> a b"),
    "matrices": (lambda r, s: r @ s, ((N, 3, 3), (N, 3, 4)), "a b c, a c d -> a b d"),
    "quadratic_form": (lambda x, y: torch.bmm(x[:, None], y[..., None]), ((N, 4), (N, 4)), "a b, a b -> a"),
    "points_of_frames": (lambda r, x: torch.einsum("bnij,bnpj->bpni", r, x), ((2, N, 3, 3), (2, N, 8, 3)), ""),
    "one_of_a_batch": (lambda r, x: torch.einsum("bij,bj->ib", r, x), ((N, 2, 5), (N, 5)), "a b c, a c -> b a"),
}

LEFT: dict[str, tuple[Program, Sizes]] = {
    "few": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((9, 3, 3), (9, 3))),
    "long_sums": (lambda r, x: torch.einsum("nij,nj->ni", r, x), ((N, 3, 8), (N, 8))),
    "weighted_sum": (lambda x, w: torch.einsum("bnd,bn->bd", x, w), ((N, 40, 8), (N, 40))),
    "wide": (lambda r, x: r @ x, ((N, 3, 3), (N, 3, 17))),
    "one_matrix_for_all": (lambda r, x: x @ r, ((3, 3), (N, 3))),
    "square": (lambda r, x: r @ x, ((N, 9, 3), (N, 3, 9))),
    "another_dtype": (lambda r, x: torch.einsum("nij,nj->ni", r.bool().int(), x.int()) * x, ((N, 3, 3), (N, 3))),
}


def check_products(program: Program, shapes: Sizes, then: Any, **options: Any) -> FusionLog:
    return fused_programs.check(program, random_operands(*shapes), then=then, **options)


@pytest.mark.parametrize("name", FOUND)
def test_tiny_products_are_elementwise(name: str) -> None:
    program, shapes, pattern = FOUND[name]
    log = check_products(program, shapes, Graphs())
    assert [each.what for each in log.fused] == ["small product"], str(log)
    assert pattern in ("", log.fused[0].pattern)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_contractions(name: str) -> None:
    log = check_products(*LEFT[name], Graphs())
    assert not log.fused
    assert not log.missed


def test_a_backend_that_fuses_nothing_gets_contractions() -> None:
    program, shapes, _ = FOUND["matrices"]
    assert not check_products(program, shapes, "eager").fused
    assert not check_products(program, shapes, Graphs(), dynamic=True).fused


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
