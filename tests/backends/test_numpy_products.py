"""Products of two NumPy matrices, or stacks of them, that hold for all sizes: nothing is planned for new ones."""

import numpy as np
import pytest

from einops_fast import EinsumError, fast_einsum
from einops_fast.runtime import new_shapes
from einops_fast.runtime.plan_cache import clear_plans, compiled

EQUATIONS = [
    "ij,jk->ik", "ij,jk->ki", "ji,jk->ik", "ij,kj->ik", "ji,kj->ki", "kj,ji->ik", "bij,bjk->bik", "bij,bkj->bki",
    "bji,bjk->bik", "abij,abjk->abik", "abji,abkj->abki",
]  # fmt: skip
OTHERS = ["ij,jk->i", "ij,ij->ij", "ij,kl->ik", "bij,bjk->ibk", "bij,bjk->bk", "bij,jk->bik", "ii,ij->ij", "ij,j->i",
          "abij,bajk->abik", "ab,ab->ab", "bij,bij->bi"]  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_planned(planned_at_the_first_call):
    clear_plans()
    new_shapes.AT_SECOND_CALL = True


def _operands(equation, sizes, dtype="float64"):
    numbers = np.random.default_rng(0)
    terms = equation.split("->")[0].split(",")
    return [numbers.standard_normal([sizes[label] for label in term]).astype(dtype) for term in terms]


def _sizes(equation, seed):
    numbers = np.random.default_rng(seed)
    return {label: int(numbers.integers(1, 4) if label in "ab" else numbers.integers(17, 30)) for label in equation}


def _is_right(equation, operands):
    expected = np.einsum(equation, *[each.astype("complex128") for each in operands])
    found = fast_einsum(equation, *operands)
    assert found.dtype == np.result_type(*operands)
    np.testing.assert_allclose(found, expected, rtol=1e-3 if found.dtype.char in "fF" else 1e-9, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_new_sizes_are_not_planned(equation, dtype):
    planned = []
    for seed in range(4):
        for _ in range(3):
            _is_right(equation, _operands(equation, _sizes(equation, seed), dtype))
            planned.append(len(compiled))
    assert planned == [planned[0]] * 12
    assert planned[0] <= 1


@pytest.mark.parametrize("equation", EQUATIONS + OTHERS)
def test_operands_of_all_kinds(equation):
    for seed in range(3):
        operands = _operands(equation, _sizes(equation, 0 if "ii" in equation else seed))
        for change in (
            lambda array: array, np.asfortranarray, lambda array: array[..., ::-1], lambda array: array.astype(">f8"),
            lambda array: np.repeat(array, 2, -1)[..., ::2], lambda array: array.astype("float32"),
        ):  # fmt: skip
            _is_right(equation, [change(operands[0]), operands[1]])
            _is_right(equation, [operands[0], change(operands[1])])


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("size", [0, 1])
def test_short_axes(equation, size):
    _is_right(equation, _operands(equation, _sizes(equation, 0)))
    for label in set(equation) - set(",->"):
        _is_right(equation, _operands(equation, {**_sizes(equation, 1), label: size}))
    for label in "bj":  # where one operand has it only
        if equation.partition("->")[0].count(label) == 2 and size == 1:
            one, other = _operands(equation, _sizes(equation, 2))
            at = equation.index(label)
            _is_right(equation, [one.take([0], at), other])


@pytest.mark.parametrize("equation", EQUATIONS)
def test_what_does_not_fit_is_refused(equation):
    one, other = _operands(equation, _sizes(equation, 0))
    for _ in range(2):
        fast_einsum(equation, one, other)
    for wrong in ([one, other[..., :-1, :-1]], [one[None], other], [one], [one, other, other], [one[0], other[0]]):
        with pytest.raises(EinsumError):
            fast_einsum(equation, *wrong)
