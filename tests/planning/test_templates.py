"""Steps of pairs that are filled in are those that lowering would make for the same sizes and strides."""

from typing import Any

import pytest
from gpu_plans import TARGET as GPU
from hypothesis import given
from hypothesis import strategies as st

from einops_fast.backends import get_backend
from einops_fast.planning import templates
from einops_fast.planning.cost import Ceilings
from einops_fast.planning.layout import contiguous_in_order
from einops_fast.planning.lowering import Lowering
from einops_fast.planning.notation import Subscripts, bind_sizes, parse
from einops_fast.planning.steps import Step
from einops_fast.planning.target import Numerics, Operand, Target

FLOAT = Numerics("float32", "float32")
ON = Ceilings(
    bandwidth=1e10, runs=5e9, gather=2e9, flops={"float32": 1e11}, call=1e-6, again=1e-6, item=1e-8, broadcast=5e9
)
ONE_BATCH_AXIS = Target("pure", "cpu", ON)
TARGETS = {
    "numpy": get_backend("numpy").target([]),
    "one batch axis": ONE_BATCH_AXIS,
    "folded": ONE_BATCH_AXIS.replace(folds_batch=True, writes_strided=False),
    "recorded": ONE_BATCH_AXIS.replace(writes=False, drops_expanded=False),
    "kernels": GPU,
}


def steps(equation: str, shapes: list[tuple[int, ...]], orders: list[Any], target: Target) -> tuple[Any, Any]:
    """The steps that are filled in, and those that lowering makes."""
    subscripts: Subscripts = parse(equation, tuple(map(len, shapes)), words=False)
    sizes = bind_sizes(subscripts, shapes)
    operands = [
        Operand(shape, contiguous_in_order(shape, order), "float32")
        for shape, order in zip(shapes, orders, strict=True)
    ]
    lowered: tuple[Step, ...] = Lowering(subscripts, sizes, target, FLOAT).run(operands, ((0, 1),))
    # The first pair of a kind is lowered.
    _, filled_in = [templates.filled_in(subscripts, sizes, operands, target, FLOAT) for _ in range(2)]
    return filled_in, lowered


@st.composite
def products(draw: Any) -> tuple[str, dict[str, int], list[Any]]:
    """Two operands with axes of any roles in any order, some alone or twice in one, and how they lie in memory."""
    labels = iter("abcdefghij")
    least = draw(st.sampled_from([0, 1]))
    batch, rows, columns, contracted = (
        [next(labels) for _ in range(draw(st.integers(least if at else 0, 2)))] for at in range(4)
    )
    extra = draw(st.sampled_from([[], [], [], [next(labels)]])), draw(st.sampled_from([[], [], [], [next(labels)]]))
    twice = draw(st.sampled_from([[], [], [], (batch + rows + contracted)[:1]]))
    left = draw(st.permutations(batch + rows + contracted + extra[0] + twice))
    right = draw(st.permutations(batch + contracted + columns + extra[1]))
    groups = [draw(st.permutations(group)) for group in (batch, rows, columns)]
    output = draw(st.sampled_from([[0, 1, 2], [0, 2, 1], [0, 1, 2], [1, 0, 2]]))
    equation = f"{''.join(left)},{''.join(right)}->{''.join(''.join(groups[at]) for at in output)}"
    sizes = {
        label: 1 if draw(st.integers(0, 7)) == 5 else draw(st.sampled_from([2, 3, 8, 40])) for label in "abcdefghij"
    }
    lies = [
        draw(st.one_of(st.just(list(range(len(term)))), st.permutations(range(len(term))))) for term in (left, right)
    ]
    return equation, sizes, lies


@pytest.mark.parametrize("target", TARGETS.values(), ids=list(TARGETS))
@given(product=products())
def test_steps_are_those_of_lowering(target: Target, product: tuple[str, dict[str, int], list[Any]]) -> None:
    equation, sizes, lies = product
    shapes = [tuple([sizes[label] for label in term]) for term in equation.partition("->")[0].split(",")]
    filled_in, lowered = steps(equation, shapes, lies, target)
    assert filled_in is None or (filled_in == lowered and repr(filled_in) == repr(lowered))


@pytest.mark.parametrize(
    "equation",
    ["ij,ij->", "i,j->ij", "ij,kl->", "ijk,jk->i", "ij,j->i", "ij,jk->i", "ij,kj->k", "bi,bj->jbi", "bij,bij->bi"],
)
def test_products_without_rows_or_columns_are_filled_in(equation: str) -> None:
    terms = equation.partition("->")[0].split(",")
    sizes = dict(zip("bijkl", (9, 20, 30, 25, 14), strict=True))
    shapes = [tuple([sizes[label] for label in term]) for term in terms]
    filled_in, lowered = steps(equation, shapes, [range(len(term)) for term in terms], TARGETS["folded"])
    assert filled_in == lowered
