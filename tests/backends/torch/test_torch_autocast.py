"""What autocast converts, beside torch.einsum: whatever is drawn, on a CPU in bfloat16."""

import itertools
from typing import Any

import pytest
import torch
from equations import Case, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast import fast_einsum
from einops_fast.backends.torch.autocast import torch_path, whole_dtype
from einops_fast.planning.notation import parse

CASTABLE = ["float32", "bfloat16", "float16"]


@st.composite
def problems(draw: st.DrawFn) -> tuple[Case, list[str]]:
    """A contraction without empty axes, and a dtype for each operand."""
    case = draw(cases(max_operands=4, max_size=3).filter(lambda case: all(0 not in shape for shape in case.shapes)))
    alike = draw(st.sampled_from([*CASTABLE, "float64", None]))
    return case, [alike or draw(st.sampled_from(CASTABLE)) for _ in case.shapes]


def operands_of(case: Case, dtypes: list[str]) -> list[Any]:
    return [torch.rand(shape).to(getattr(torch, name)) for shape, name in zip(case.shapes, dtypes, strict=True)]


@pytest.mark.parametrize("reorders", [True, False])
@settings(max_examples=200)
@given(problems())
def test_dtypes_are_those_of_torch(reorders: bool, problem: tuple[Case, list[str]]) -> None:
    case, dtypes = problem
    operands = operands_of(case, dtypes)
    subscripts = parse(case.equation, case.ranks)
    ones = [[size == 1 for size in shape] for shape in case.shapes]
    asked = [*subscripts.inputs], subscripts.output, ones, dtypes
    with torch.backends.opt_einsum.flags(enabled=reorders), torch.autocast("cpu", torch.bfloat16):
        path = torch_path(subscripts.equation, case.shapes)
        found = whole_dtype(*asked, path, "cpu")
        assert whole_dtype(*asked, None, "cpu") in (found, None)
        try:
            wanted = torch.einsum(subscripts.equation, *operands)
        except RuntimeError:
            assert len(set(dtypes)) > 1
            return
    if found is not None:
        assert str(wanted.dtype) == f"torch.{found}"
        converted = torch.einsum(subscripts.equation, *[each.to(wanted.dtype) for each in operands])
        torch.testing.assert_close(converted, wanted, rtol=5e-2, atol=5e-2)


@settings(max_examples=200)
@given(problems())
def test_results_are_those_of_torch(problem: tuple[Case, list[str]]) -> None:
    case, dtypes = problem
    operands = operands_of(case, dtypes)
    equation = parse(case.equation, case.ranks).equation
    with torch.autocast("cpu", torch.bfloat16):
        try:
            wanted = torch.einsum(equation, *operands)
        except RuntimeError:  # two dtypes that it neither converts nor promotes
            return
        torch.testing.assert_close(fast_einsum(case.equation, *operands), wanted, rtol=5e-2, atol=5e-2)


def test_a_dtype_that_is_asked_for_is_computed_in() -> None:
    a, b = torch.rand(3, 4), torch.rand(4, 5)
    with torch.autocast("cpu", torch.bfloat16):
        result = fast_einsum("ij,jk->ik", a, b, dtype=torch.float32)
    torch.testing.assert_close(result, a @ b)


def test_the_dtype_of_autocast_changes() -> None:
    a, b = torch.rand(3, 4), torch.rand(4, 5)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            assert fast_einsum("ij,jk->ik", a, b).dtype == dtype


@pytest.mark.parametrize(
    ("equation", "dtypes", "wanted"),
    [
        ("ij->ji", ["float32"], "float16"),
        ("ij->i", ["bfloat16"], "float16"),
        ("ij,k->ik", ["bfloat16", "float32"], "float16"),
        ("bi,b->bi", ["float32", "float32"], "float16"),
        ("bi,b->bi", ["float64", "float64"], "float64"),
        ("bi,b->bi", ["float64", "float32"], None),
    ],
)
def test_all_operands_are_converted_on_cuda(equation: str, dtypes: list[str], wanted: str | None) -> None:
    inputs, _, output = equation.partition("->")
    terms = inputs.split(",")
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    try:
        torch.set_autocast_enabled("cuda", True)
        torch.set_autocast_dtype("cuda", torch.float16)
        ones = [[False] * len(term) for term in terms]
        assert whole_dtype(terms, output, ones, dtypes, None, "cuda") == wanted
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [["float32"], ["bfloat16"], ["bfloat16", "float32"]])
@pytest.mark.parametrize("equation", ["ij->i", "ij->ji", "ij,k->ik", "ij,jk->k", "bi,b->bi", "bi,bij,bj->b"])
def test_results_on_cuda_are_those_of_torch(equation: str, dtypes: list[str]) -> None:
    terms = equation.partition("->")[0].split(",")
    made = [torch.rand([3 + ord(label) % 5 for label in term], device="cuda") for term in terms]
    operands = [each.to(getattr(torch, name)) for each, name in zip(made, itertools.cycle(dtypes), strict=False)]
    with torch.autocast("cuda", torch.bfloat16):
        wanted = torch.einsum(equation, *operands)
        torch.testing.assert_close(fast_einsum(equation, *operands), wanted, rtol=5e-2, atol=5e-2)
