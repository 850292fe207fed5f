"""Small pairs of many operands: their steps are right, and found without pricing all ways to contract a pair."""

import random
from string import ascii_letters

import numpy as np
import opt_einsum
import pytest

from einops_fast import fast_einsum
from einops_fast.runtime import new_shapes


@pytest.fixture(autouse=True)
def _plans(monkeypatch):
    monkeypatch.setattr(new_shapes, "AT_SECOND_CALL", False)


def _network(seed, dtype):
    """Random tensors that share labels: in chains, in stars, with the result, with nobody, along diagonals."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    sizes = {label: chance.choice([1, 2, 2, 3]) for label in map(opt_einsum.get_symbol, range(18 + 50 * (seed % 2)))}
    terms = ["".join(chance.choices(list(sizes)[-18:], k=chance.randint(0, 4))) for _ in range(14)]
    every = sorted(set("".join(terms)))
    output = "".join(chance.sample(every, k=min(len(every), chance.randint(0, 3))))
    shapes = [[1 if chance.random() < 0.1 else sizes[label] for label in term] for term in terms]
    for term, shape in zip(terms, shapes, strict=True):  # axes of one label agree within an operand
        shape[:] = [shape[term.index(label)] for label in term]
    arrays = []
    for shape in shapes:
        array = numbers.standard_normal(shape)
        array = array + 1j * numbers.standard_normal(shape) if dtype.startswith("complex") else array
        array = np.asarray(array, dtype)
        lie = chance.choice(["C", "F", "expanded", "reversed"])
        if lie == "F" and array.ndim:
            array = np.asfortranarray(array)
        elif lie == "reversed" and array.ndim:
            array = array[::-1]
        elif lie == "expanded" and array.ndim and array.shape[0] > 1:
            array = np.broadcast_to(array[:1], array.shape)
        arrays.append(array)
    return f"{','.join(terms)}->{output}", arrays


@pytest.mark.parametrize("dtype", ["float64", "float32", "complex128"])
@pytest.mark.parametrize("seed", range(24))
def test_networks_are_contracted_right(seed, dtype):
    equation, arrays = _network(seed, dtype)
    letters = dict(zip(sorted(set(equation) - set(",->")), ascii_letters, strict=False))
    wide = [array.astype("complex128") for array in arrays]
    expected = np.einsum("".join([letters.get(each, each) for each in equation]), *wide, optimize="greedy")
    for _ in range(2):
        result = fast_einsum(equation, *arrays)
        assert result.dtype == dtype
        accuracy = 1e-3 if dtype == "float32" else 1e-9
        np.testing.assert_allclose(
            result, expected, rtol=accuracy, atol=accuracy * (1 + np.abs(expected).max(initial=0))
        )
