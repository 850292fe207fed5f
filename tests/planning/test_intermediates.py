"""Which operands are multiplied together, and in which order the axes of an intermediate are."""

from string import ascii_letters

import numpy as np
import pytest
from gpu_plans import plan

from einops_fast import fast_einsum
from einops_fast.planning.layout import contiguous_strides
from einops_fast.planning.steps import Fused, Step


def first(equation: str, **sizes: int) -> Step:
    return plan(equation, **sizes).steps[0]


def test_contracted_axes_go_last_where_neighbours_are_written_together() -> None:
    step = first("bsd,dr,rf->bsf", b=4, s=2048, d=2048, r=16, f=2048)
    assert (step.reads, step.labels) == ((0, 1), "bsr")


def test_contracted_axes_go_first_where_too_few_neighbours_would_be_written_together() -> None:
    """The last of them, ``i``, has two positions, and ``b`` before it comes from the other operand."""
    sizes = {"a": 1024, "b": 1024, "c": 1024, "d": 1024, "i": 2}
    assert first("ab,aic,bid->cd", **sizes).labels == "bic"
    assert first("ab,aic,bid->cd", **sizes | {"i": 8}).labels == "cbi"


@pytest.mark.parametrize("equation", ["ab,ac,ab->abc", "a,b,c->abc", "a,b,c,bc->cab"])
def test_products_without_a_sum_are_one_step(equation: str) -> None:
    (step,) = plan(equation, a=64, b=64, c=64).steps
    assert isinstance(step, Fused)
    assert len(step.reads) == equation.count(",") + 1


@pytest.mark.parametrize(
    ("equation", "reads"),
    [
        ("bi,oij,bj->bo", (2, 1, 0)),  # contiguous along the right operand's fastest axis
        ("ijk,jr,kr->ir", (2, 0, 1)),  # it has that axis
        ("ki,k,kj->ij", (2, 0, 1)),  # the larger one
        ("kj,k,ki->ij", (0, 2, 1)),
    ],
)
def test_left_operand_of_a_product_of_factors(equation: str, reads: tuple[int, ...]) -> None:
    sizes = {"b": 4096, "o": 128, "i": 128, "j": 256, "k": 256, "r": 32}
    (step,) = plan(equation, **sizes).steps
    assert step.reads == reads


@pytest.mark.parametrize(
    ("equation", "sizes", "strides"),
    [
        ("ij,jk,kl->il", {"i": 512, "j": 300, "k": 1023, "l": 700}, (1024, 1)),
        ("ij,jk,kl->il", {"i": 512, "j": 300, "k": 1024, "l": 700}, None),  # aligned as they are
        ("ij,jk,kl->il", {"i": 512, "j": 300, "k": 3, "l": 700}, None),  # more gaps than elements
        ("ij,jkm,kml->il", {"i": 512, "j": 300, "k": 31, "m": 33, "l": 700}, (1024, 33, 1)),  # both axes are a row
    ],
)
def test_rows_of_an_intermediate_begin_where_a_thread_loads_at_once(
    equation: str, sizes: dict[str, int], strides: tuple[int, ...] | None
) -> None:
    steps = plan(equation, optimize=[(0, 1), (0, 1)], **sizes).steps
    before, after = steps
    assert isinstance(before, Fused)
    assert isinstance(after, Fused)
    assert before.strides == strides
    assert after.strides is None
    at = after.reads.index(3)
    read = {loop.label: loop.strides[at] for loop in after.loops if loop.strides[at]}
    assert read == dict(zip(before.labels, strides or contiguous_strides(before.shape), strict=True))


def test_what_an_elementwise_product_or_a_sum_reads_has_no_gaps() -> None:
    steps = plan("ij,jk,ik->ik", optimize=[(0, 1), (0, 1)], i=512, j=300, k=1023).steps
    assert [step.strides for step in steps if isinstance(step, Fused)] == [None, None]


@pytest.mark.parametrize("name", ["ring", "ladder"])
def test_networks_of_equal_shapes(name: str) -> None:
    letters, generator = ascii_letters[:24], np.random.default_rng(0)
    sides = [letters[at] + letters[(at + 1) % 12] for at in range(12)]
    terms = sides if name == "ring" else [side + letters[at + 12] for at, side in enumerate(sides)] + [*letters[12:]]
    output = "" if name == "ring" else letters[12]
    equation = ",".join(terms) + "->" + output
    arrays = [generator.standard_normal((3,) * len(term)) for term in terms]
    expected = np.einsum(equation, *arrays, optimize="greedy")
    np.testing.assert_allclose(fast_einsum(equation, *arrays), expected, rtol=1e-9)
    np.testing.assert_allclose(
        fast_einsum(equation, *[each.T for each in arrays]),
        np.einsum(equation, *[each.T for each in arrays], optimize="greedy"),
        rtol=1e-9,
    )
