"""Numbers, equations and gradients that tests of MXNet compare with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from optional_mxnet import mxnet_or_skip

Array = npt.NDArray[Any]

mxnet = mxnet_or_skip()
autograd, mnp = mxnet.autograd, mxnet.np

RTOL = {"float16": 5e-3, "float32": 1e-5, "float64": 1e-12, "int32": 0, "int64": 0, "uint8": 0, "bool": 0}


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def shapes_of(equation: str, **sizes: int) -> list[tuple[int, ...]]:
    """Shapes for an equation in letters, without ellipsis."""
    sizes = {"b": 3, "n": 2, "i": 4, "j": 5, "d": 6, "e": 3, "h": 2, "k": 7} | sizes
    return [tuple(sizes[label] for label in term) for term in equation.split("->")[0].split(",")]


def check(got: Any, wanted: Array, dtype: str) -> None:
    assert type(got) is mnp.ndarray
    assert got.dtype == np.dtype(dtype)
    # MXNet computes later: asnumpy() waits for it.
    np.testing.assert_allclose(got.asnumpy(), wanted.astype(dtype), rtol=RTOL[dtype], atol=RTOL[dtype] * 10)
    assert got.shape == wanted.shape


EQUATIONS = [
    "bnid,bnjd->bnij",
    "bind,bjnd->bnij",
    "bind,jnd->bnij",
    "bnij,bjnd->bind",
    "bnih,nhd->bid",
    "bij,bjk->bik",
    "bij,kj->ikb",
    "bi,bj->bij",
    "bi,bj->bji",
    "bij,bj->bij",
    "bij,bij->b",
    "bij,bij->",
    "bik,bjk->ij",
    "b,j->jb",
    "bij->jb",
    "bij->bij",
    "bij->i",
    "bij->",
    "bid,bjd,bd->bij",
    "bi,ij,jk,kd->bd",
    "bnhi,ekj->benhikj",
    "bnd,ihe->bindhe",
]


def gradients(equation: str, values: Sequence[Array], weight: Array) -> list[Array]:
    """Gradients of the sum of ``weight`` times the result, which einsum computes as well."""
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    found = []
    for at, term in enumerate(terms):
        others = [other for index, other in enumerate(terms) if index != at]
        rest = [value for index, value in enumerate(values) if index != at]
        # The operand's own place is taken by ones, for axes that nothing else has.
        whole = ",".join([output, *others, term]) + "->" + term
        found.append(np.einsum(whole, weight, *rest, np.ones_like(values[at])))
    return found
