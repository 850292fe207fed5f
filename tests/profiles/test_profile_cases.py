"""The further cases are what they say they are, and their operands lie in memory as told."""

from math import prod

import numpy as np
import pytest

from einops_fast import fast_einsum
from einops_fast.profiles import frameworks, ways
from einops_fast.profiles.cases import BACKWARD, CONTRACTIONS, ITEM_SIZES, Case, scaled
from einops_fast.profiles.contraction.cases import EXTRA, FAMILIES, MODELS
from einops_fast.profiles.timing import accuracy
from einops_fast.profiles.timing.ceilings import Ceilings, Work
from einops_fast.profiles.ways import laid_out, stored_shapes


def ids(case):
    return case.name


def small(case):
    """The case with extents that differ, so that axes can't be mistaken."""
    return case.with_extents({letter: 2 + at for at, letter in enumerate(case.extents)})


# The family


def test_held_out_cases_are_held_out():
    known = {(case.equation, case.shapes) for case in CONTRACTIONS}
    assert all(case.name.startswith("x-") for case in EXTRA)
    assert not known & {(case.equation, case.shapes) for case in EXTRA}
    assert FAMILIES["public"] == CONTRACTIONS
    assert set(FAMILIES["all"]) == {*CONTRACTIONS, *EXTRA}


@pytest.mark.parametrize("case", EXTRA, ids=ids)
def test_held_out_case_fills_a_gpu_but_not_its_memory(case):
    stored = sum(map(prod, stored_shapes(case))) + prod(case.result_shape)
    assert sum(case.elements) * ITEM_SIZES["float16"] >= 10e6
    assert stored * ITEM_SIZES["float32"] <= 200e6


def test_held_out_cases_have_what_they_are_for():
    extents = {extent for case in EXTRA for extent in case.extents.values()}
    assert any(extent % 2 for extent in extents if extent > 100)
    assert any(extent % 8 == 4 for extent in extents)
    assert {1, 4, 8, 16} <= extents
    assert any(len(case.inputs) == 3 for case in EXTRA)
    assert any(len(set(term)) < len(term) for case in EXTRA for term in case.inputs)
    assert any("..." in case.called for case in EXTRA)
    orders = [(term, order) for case in EXTRA for term, order in zip(case.inputs, case.orders, strict=True)]
    assert any("_" in order for _, order in orders)
    assert any(set(term) > set(order) for term, order in orders)
    assert any(term != order and sorted(term) == sorted(order) for term, order in orders)


@pytest.mark.parametrize("case", EXTRA, ids=ids)
def test_scaling_keeps_odd_extents_odd(case):
    smaller = scaled(case, "cpu").extents
    assert all(smaller[letter] % 2 for letter, extent in case.extents.items() if extent % 2)
    assert scaled(case, "cpu").memory == case.memory


def test_backward_names_are_cases():
    assert set(BACKWARD) <= {case.name for case in CONTRACTIONS}


# What a case costs


def test_elements_are_those_that_have_to_be_read():
    diagonal = Case("", "bii,bij->bj", ((3, 5, 5), (3, 5, 7)))
    assert diagonal.elements == (3 * 5, 3 * 5 * 7, 3 * 7)
    expanded = Case("", "bij,bjk->bik", ((3, 4, 5), (3, 5, 6)), memory=("bij", "jk"))
    assert expanded.elements == (3 * 4 * 5, 5 * 6, 3 * 4 * 6)
    sliced = Case("", "bij,bjk->bik", ((3, 4, 5), (3, 5, 6)), memory=("bi_j", "bjk"))
    assert sliced.elements == (3 * 4 * 5, 3 * 5 * 6, 3 * 4 * 6)


@pytest.mark.parametrize(
    ("case", "flops"),
    [
        (Case("", "ij,jk->ik", ((3, 4), (4, 5))), 2 * 3 * 4 * 5),
        # a is summed before, and the trace taken.
        (Case("", "aij,jk->ik", ((7, 3, 4), (4, 5))), 2 * 3 * 4 * 5),
        (Case("", "iaa,ij->ij", ((3, 4, 4), (3, 5))), 3 * 5),
        # Each row of the result is the same.
        (Case("", "ij,jk->ik", ((3, 4), (4, 5)), memory=("j", "jk")), 2 * 4 * 5),
    ],
)
def test_flops_are_those_of_the_products_that_are_left(case, flops):
    assert case.flops == flops


def test_floor_counts_an_expanded_operand_once():
    [case] = [case for case in EXTRA if case.name == "x-batch-shared"]
    slow_memory = Ceilings(bandwidth=1.0, flops=1e30)
    assert Work.of(case.passes(), "float32", slow_memory).floor == 4 * (64 * 400 * 300 + 300 * 500 + 64 * 400 * 500)


# Operands


def test_layouts_have_the_strides_they_tell():
    framework = frameworks.load("numpy", "cpu", 1)
    case = Case("", "bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), memory=("j_bi", "kj"))
    assert stored_shapes(case) == [(4, 2, 2, 3), (5, 4, 1)]
    left, right = ways.inputs(case, framework, "float64", 0).operands
    assert (left.shape, right.shape) == case.shapes
    assert [stride // 8 for stride in left.strides] == [3, 1, 12]
    assert [stride // 8 for stride in right.strides] == [0, 1, 4]
    assert left.base is not None
    # A slice starts inside of its array.
    whole = accuracy.random_values(stored_shapes(case), 0)[0]
    np.testing.assert_array_equal(left, whole[:, 1].transpose(1, 2, 0))


@pytest.mark.parametrize("name", ["numpy", "torch"])
@pytest.mark.parametrize("case", [case for case in EXTRA if case.memory or case.spelled], ids=ids)
def test_every_layout_is_computed_right(name, case):
    if not frameworks.installed(name):
        pytest.skip(f"{name} isn't installed")
    framework = frameworks.load(name, "cpu", 1)
    case = small(case)
    given = ways.inputs(case, framework, "float64", 0)
    reference = accuracy.Reference(case, given.operands, framework.to_float64)
    assert reference.error(fast_einsum(case.called, *given.operands), framework.to_float64) < 1e-14


def test_model_cases_are_others():
    assert all(case.name.startswith("m-") for case in MODELS)
    assert len({case.equation for case in MODELS}) == len(MODELS)
    assert not {(case.equation, case.shapes) for case in (*CONTRACTIONS, *EXTRA)} & {
        (case.equation, case.shapes) for case in MODELS
    }
    held = [2 * sum(case.elements) for case in MODELS]
    assert min(held) > 8e6
    assert max(held) < 4e8


@pytest.mark.parametrize("case", MODELS, ids=ids)
def test_every_model_case_is_computed_right(case):
    framework = frameworks.load("numpy", "cpu", 1)
    many = len(case.extents) > 20
    case = case.with_extents({axis: 1 + at % 2 for at, axis in enumerate(case.extents)}) if many else small(case)
    given = ways.inputs(case, framework, "float64", 0)
    reference = accuracy.Reference(case, given.operands, framework.to_float64)
    assert reference.error(fast_einsum(case.called, *given.operands), framework.to_float64) < 1e-13


def test_frameworks_lay_operands_out_alike():
    pytest.importorskip("torch")
    numpy, torch = (frameworks.load(name, "cpu", 1) for name in ("numpy", "torch"))
    case = Case("", "bij,bjk->bik", ((2, 3, 4), (2, 4, 5)), memory=("i_jb", "bk"))
    for ours, theirs in zip(
        *(ways.inputs(case, framework, "float64", 0).operands for framework in (numpy, torch)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs.numpy())
        assert [stride // 8 for stride in ours.strides] == list(theirs.stride())


def test_contiguous_operands_are_left_alone():
    framework = frameworks.load("numpy", "cpu", 1)
    case = Case("", "ij,jk->ik", ((2, 3), (3, 4)), memory=("ij", "kj"))
    stored = [np.ones(shape) for shape in stored_shapes(case)]
    left, right = laid_out(case, framework, stored)
    assert left is stored[0]
    assert np.shares_memory(right, stored[1])


def test_frameworks_without_strides_say_so():
    if not frameworks.installed("mxnet"):
        pytest.skip("mxnet isn't installed")
    framework = frameworks.load("mxnet", "cpu", 1)
    case = Case("", "ij,jk->ik", ((2, 3), (3, 4)), memory=("ji", "jk"))
    with pytest.raises(frameworks.Unavailable, match="strides"):
        ways.inputs(case, framework, "float32", 0)
