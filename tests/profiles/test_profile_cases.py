"""The cases are what they say they are, cost what they say, and their operands lie in memory as told."""

import numpy as np
import pytest

from einops_fast import fast_einsum
from einops_fast.profiles import ways
from einops_fast.profiles.cases import BACKWARD, CONTRACTIONS, Case
from einops_fast.profiles.contraction.cases import EXTRA, FAMILIES, MODELS
from einops_fast.profiles.timing import accuracy
from einops_fast.profiles.ways import stored_shapes


def ids(case):
    return case.name


def small(case):
    """The case with extents that differ, so that axes can't be mistaken; few where there are many axes."""
    many = len(case.extents) > 20
    return case.with_extents({letter: 1 + at % 2 if many else 2 + at for at, letter in enumerate(case.extents)})


# The families


@pytest.mark.parametrize("case", [*FAMILIES["all"], *MODELS], ids=ids)
def test_case_is_right_and_fits_a_cpu_when_scaled(numpy, case):
    tiny = small(case)
    given = ways.inputs(tiny, numpy, "float64", 0)
    reference = accuracy.Reference(tiny, given.operands, numpy.to_float64)
    assert reference.error(fast_einsum(tiny.called, *given.operands), numpy.to_float64) < 1e-13
    assert case.flops > 0
    assert all(count > 0 for count in case.elements)
    assert case.scaled("gpu", "float32") is case
    scaled = case.scaled("cpu", "float32")
    assert (scaled.name, scaled.equation, scaled.memory) == (case.name, case.equation, case.memory)
    assert scaled.flops <= 4e9
    assert max(scaled.elements) <= 7e6
    odd = [letter for letter, extent in case.extents.items() if extent % 2]
    assert case.uniform or all(scaled.extents[letter] % 2 for letter in odd)


def test_families_are_apart_and_have_every_kind_of_layout():
    cases = [*FAMILIES["all"], *MODELS]
    assert len({case.name for case in cases}) == len({(case.equation, case.shapes) for case in cases}) == len(cases)
    assert set(BACKWARD) <= {case.name for case in CONTRACTIONS}
    orders = [(term, order) for case in EXTRA for term, order in zip(case.inputs, case.orders, strict=True)]
    assert any("_" in order for _, order in orders)
    assert any(set(term) > set(order) for term, order in orders)
    assert any(term != order and sorted(term) == sorted(order) for term, order in orders)


# What a case costs


@pytest.mark.parametrize(
    ("case", "elements", "flops"),
    [
        (Case("", "ij,jk->ik", ((3, 4), (4, 5))), (12, 20, 15), 2 * 3 * 4 * 5),
        # a is summed before, and the trace taken.
        (Case("", "aij,jk->ik", ((7, 3, 4), (4, 5))), (84, 20, 15), 2 * 3 * 4 * 5),
        (Case("", "iaa,ij->ij", ((3, 4, 4), (3, 5))), (12, 15, 15), 3 * 5),
        # Each row of the result is the same.
        (Case("", "ij,jk->ik", ((3, 4), (4, 5)), memory=("j", "jk")), (4, 20, 15), 2 * 4 * 5),
        (Case("", "bij,bjk->bik", ((3, 4, 5), (3, 5, 6)), memory=("bi_j", "bjk")), (60, 90, 72), 2 * 3 * 4 * 5 * 6),
    ],
)
def test_elements_and_flops_are_those_that_are_left(case, elements, flops):
    assert (case.elements, case.flops) == (elements, flops)


# Operands


def test_layouts_have_the_strides_they_tell_in_every_framework(numpy, torch):
    case = Case("", "bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), memory=("j_bi", "kj"))
    assert stored_shapes(case) == [(4, 2, 2, 3), (5, 4, 1)]
    left, right = ways.inputs(case, numpy, "float64", 0).operands
    assert (left.shape, right.shape) == case.shapes
    assert [stride // 8 for stride in left.strides] == [3, 1, 12]
    assert [stride // 8 for stride in right.strides] == [0, 1, 4]
    # A slice starts inside of its array.
    whole = accuracy.random_values(stored_shapes(case), 0)[0]
    np.testing.assert_array_equal(left, whole[:, 1].transpose(1, 2, 0))
    for ours, theirs in zip((left, right), ways.inputs(case, torch, "float64", 0).operands, strict=True):
        np.testing.assert_array_equal(ours, theirs.numpy())
        assert [stride // 8 for stride in ours.strides] == list(theirs.stride())
