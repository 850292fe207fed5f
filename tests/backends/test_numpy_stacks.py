"""What is planned for stacks of small matrices of NumPy's: the loops of its einsum where BLAS takes longer."""

from typing import Any

import numpy as np
import pytest

from einops_fast import explain, fast_einsum
from einops_fast.backends import get_backend

SIZES = {"n": 1000, "a": 10, "b": 100}
STEPS = {
    # matrices: BLAS, unless neighbours belong to neighbouring products
    ("nij,njk->nik", "f8", 2): "Gemm",
    ("nij,njk->nik", "f4", 3): "Gemm",
    ("nij,njk->nik", "D", 4): "Gemm",
    ("inj,jnk->ink", "f8", 4): "Gemm",
    ("abij,abjk->abik", "f8", 4): "Gemm",
    ("ijn,jkn->ikn", "f8", 2): "Native",
    ("ijn,jkn->ikn", "f4", 4): "Native",
    ("ijn,jkn->ikn", "f8", 8): "Native",
    ("ijab,jkab->ikab", "f8", 4): "Native",
    ("ijn,jkn->ikn", "D", 4): "Multiply",
    ("ijn,jkn->ikn", "f8", 64): "Gemm",
    # matrices times vectors
    ("nij,nj->ni", "f8", 4): "Native",
    ("nij,nj->ni", "D", 2): "Native",
    ("nij,nj->ni", "F", 4): "Native",
    ("nji,nj->ni", "D", 4): "Native",
    ("nij,nj->ni", "D", 8): "Gemm",
    ("nij,j->ni", "f8", 4): "Gemm",
    # dot products
    ("ni,ni->n", "f4", 4): "Native",
    ("ni,ni->n", "D", 4): "Native",
    ("nij,nij->n", "f4", 4): "Native",
    ("nij,nij->n", "D", 4): "Native",
    ("nij,nij->n", "D", 8): "Gemm",
    # outer products
    ("ni,nj->nij", "f8", 8): "Native",
    ("ni,nj->nij", "D", 2): "Native",
    ("ni,nj->nij", "D", 8): "Multiply",
}


def operands(equation: str, dtype: str, side: int) -> list[Any]:
    generator = np.random.default_rng(0)
    shapes = [[SIZES.get(label, side) for label in term] for term in equation.partition("->")[0].split(",")]
    arrays = [generator.normal(size=shape) for shape in shapes]
    if np.dtype(dtype).kind == "c":
        arrays = [array + 1j * generator.normal(size=array.shape) for array in arrays]
    return [array.astype(dtype) for array in arrays]


@pytest.mark.parametrize(("call", "step"), STEPS.items(), ids=lambda value: "-".join(map(str, value)))
def test_step_and_values(call: Any, step: str) -> None:
    equation, arrays = call[0], operands(*call)
    first, *rest = [type(each).__name__ for each in explain(equation, *arrays).plan.steps]
    assert first == step
    assert set(rest) <= {"View"}
    np.testing.assert_allclose(fast_einsum(equation, *arrays), np.einsum(equation, *arrays), rtol=1e-4, atol=1e-4)


def test_arrays_are_alike() -> None:
    backend = get_backend("numpy")
    a, b = np.ones((2, 3)), np.ones((3, 4))
    for given in ((a, b), (a, b, a)):
        like = backend.likeness(given)
        assert like is not None
        assert like([array.copy() for array in given])
        for other in (np.ones((5, 5)), a.T, a.T.copy().T, a.astype("f4"), a.view(np.recarray), a.tolist(), None):
            assert not like([other, *given[1:]])
            assert not like([*given[:-1], other])
        assert not like(given[1:])
        assert not like((*given, a))
    assert backend.likeness((a, b.view(np.recarray))) is None
