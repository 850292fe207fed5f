"""Which steps an equation becomes for given shapes and strides. Steps are data: no framework is involved."""

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import pytest
from equations import Case, contractions
from hypothesis import given
from hypothesis import strategies as st

from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.notation import bind_sizes, parse
from einops_fast.planning.plan import Plan, make_plan
from einops_fast.planning.steps import (
    Arrange,
    Cast,
    Contraction,
    Diagonal,
    Gemm,
    Multiply,
    Select,
    Step,
    Sum,
    View,
)
from einops_fast.planning.target import Numerics, Operand, Target

SIZE = 64  # of every axis: large enough for GEMMs to be worth it

CEILINGS = Ceilings(
    bandwidth=1e10, runs=5e9, gather=2e9, flops={"float32": 1e11}, call=1e-6, again=1e-6, item=1e-8, broadcast=5e9
)
STRIDED = Target("pure", "cpu", CEILINGS)
UNSTRIDED = STRIDED.replace(strided=False, broadcasts=False, writes=False, drops_expanded=False)
FLOAT = Numerics("float32", "float32")


def operand(term: str, memory: str = "", sizes: dict[str, int] | None = None) -> Operand:
    """An operand whose axes ``term`` lie in the order ``memory``, outermost first.

    An axis that ``memory`` lacks is expanded; a ``'_'`` there is an axis of a larger array, left out by slicing.
    """
    sizes = {**dict.fromkeys(term, SIZE), "_": 2, **(sizes or {})}
    order = memory or term
    strides = dict(zip(order, contiguous_strides([sizes[label] for label in order]), strict=True))
    return Operand(tuple(sizes[label] for label in term), tuple(strides.get(label, 0) for label in term), "float32")


def plan(
    equation: str, *memory: str, target: Target = STRIDED, numerics: Numerics = FLOAT, optimize: Any = "auto"
) -> Plan:
    """The plan for operands that lie in these orders in memory; in C order if none are given."""
    terms = equation.partition("->")[0].split(",")
    operands = [operand(term, order) for term, order in zip(terms, memory or terms, strict=True)]
    return make_plan(parse(equation, tuple(map(len, terms))), operands, target, numerics, optimize)


def steps(equation: str, *memory: str, **options: Any) -> tuple[Step, ...]:
    return plan(equation, *memory, **options).steps


def kinds(steps: Sequence[Step]) -> list[type[Step]]:
    return [type(step) for step in steps]


def arrangements(step: Step) -> list[Arrange]:
    """How a step reads its operands."""
    if isinstance(step, View):
        return [step.how]
    return [step.left, step.right] if isinstance(step, (Gemm, Multiply)) else []


def copies(steps: Sequence[Step]) -> list[str]:
    """Why operands are copied, for every copy."""
    return [how.moves for how in chain.from_iterable(map(arrangements, steps)) if how.moves]


def only_gemm(steps: Sequence[Step]) -> Gemm:
    (step,) = steps
    assert isinstance(step, Gemm)
    return step


# ---- what every plan is


def pure_plan(data: st.DataObject, case: Case, target: Target) -> Plan:
    terms = case.letters.partition("->")[0].split(",")
    subscripts = parse(case.letters, case.ranks)
    sizes = bind_sizes(subscripts, case.shapes)
    operands = [operand(term, "".join(data.draw(st.permutations(term))), sizes) for term in terms]
    return make_plan(subscripts, operands, target, FLOAT, data.draw(st.sampled_from(["auto", False])))


@pytest.mark.parametrize("target", [STRIDED, UNSTRIDED], ids=["strided", "unstrided"])
@given(data=st.data())
def test_steps_form_a_program(target: Target, data: st.DataObject) -> None:
    """Steps read what is there already, say which axes they make, and the last one makes the output's."""
    case = data.draw(contractions(max_operands=4, max_size=40))
    made = pure_plan(data, case, target)
    slots = len(case.shapes)
    for step in made.steps:
        assert all(slot < slots for slot in step.reads)
        assert step.shape == tuple(made.sizes[label] for label in step.labels)
        slots += 1
    assert made.steps[-1].labels == made.subscripts.output
    read = list(chain.from_iterable(step.reads for step in made.steps))
    assert sorted(read) == list(range(slots - 1))  # each of them once: nothing is made in vain
    assert made.seconds >= 0


@given(data=st.data())
def test_plans_for_any_size_know_nothing_but_equations(data: st.DataObject) -> None:
    case = data.draw(contractions(max_operands=4, max_size=40))
    made = pure_plan(data, case, UNSTRIDED.replace(any_size=True))
    assert set(kinds(made.steps)) <= {Contraction, Cast}
    assert all(len(step.reads) <= 2 for step in made.steps)
    assert made.steps[-1].labels == made.subscripts.output


# ---- views


@pytest.mark.parametrize("equation", ["ij->ij", "ij->ji", "ii->i", "iji->ji"])
def test_views_stay_views(equation: str) -> None:
    assert set(kinds(steps(equation))) <= {Diagonal, View}
    assert not copies(steps(equation))
    assert copies(steps("ij->ji", target=UNSTRIDED))  # where there are no strides


# ---- before pairs are contracted


def test_each_operand_first_loses_what_it_has_alone() -> None:
    assert kinds(steps("ij,kl->ik")) == [Sum, Sum, Multiply]
    first, *_ = steps("iij,jk->ik")
    assert isinstance(first, Diagonal)
    assert first.groups == ((0, 1), (2,))


def test_expanded_axes_are_dropped() -> None:
    """A factor that is the same for every ``b`` is multiplied in once."""
    select, product = steps("bij,bjk->bik", "ij", "bjk")
    assert isinstance(select, Select)
    assert select.axes == (0,)
    assert isinstance(product, Gemm)
    # Not where nothing else has them, nor where their gradient is wanted.
    assert Select not in kinds(steps("bij,jk->bik", "ij", "jk"))
    assert kinds(steps("bij,bjk->bik", "ij", "bjk", target=STRIDED.replace(drops_expanded=False))) == [Gemm]


# ---- what is a GEMM


@pytest.mark.parametrize("left", ["ik", "ki"])
@pytest.mark.parametrize("right", ["kj", "jk"])
@pytest.mark.parametrize("batch", ["", "b"])
def test_strided_matrices_are_read_as_they_lie(batch: str, left: str, right: str) -> None:
    """Whether the axes are named in another order, or lie in another order, makes no difference."""
    by_name = only_gemm(steps(f"{batch}{left},{batch}{right}->{batch}ij"))
    in_memory = only_gemm(steps(f"{batch}ik,{batch}kj->{batch}ij", batch + left, batch + right))
    assert not copies([by_name, in_memory])
    assert by_name.batch == in_memory.batch == ((SIZE,) if batch else ())


@pytest.mark.parametrize("left", ["ik", "ki"])
@pytest.mark.parametrize("right", ["kj", "jk"])
def test_unstrided_matrices_are_transposed_by_the_gemm(left: str, right: str) -> None:
    step = only_gemm(steps(f"b{left},b{right}->bij", target=UNSTRIDED))
    assert (step.transpose_left, step.transpose_right) == (left == "ki", right == "jk")
    assert step.left.trivial
    assert step.right.trivial


@pytest.mark.parametrize(
    ("equation", "extents"),
    [
        ("aik,kj->aij", (1, SIZE**2, SIZE, SIZE)),
        ("iab,abj->ij", (1, SIZE, SIZE, SIZE**2)),
        ("ab,bcd->acd", (1, SIZE, SIZE**2, SIZE)),
        ("abik,abkj->abij", (SIZE**2, SIZE, SIZE, SIZE)),
        ("ijab,abkl->ijkl", (1, SIZE**2, SIZE**2, SIZE**2)),
    ],
)
@pytest.mark.parametrize("target", [STRIDED, UNSTRIDED], ids=["strided", "unstrided"])
def test_neighbours_become_one_axis(equation: str, extents: tuple[int, ...], target: Target) -> None:
    step = only_gemm(steps(equation, target=target))
    assert (prod(step.batch), step.m, step.n, step.k) == extents
    assert not copies([step])
