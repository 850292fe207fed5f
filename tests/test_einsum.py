"""`fast_einsum` computes what ``numpy.einsum`` computes, on every framework that runs on a CPU, and torch on a GPU.

On a GPU these problems are the library's, as they are small; what our own kernels make of any is in `test_engine`.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any
from unittest import mock

import numpy as np
import opt_einsum
import pytest
from equations import WAYS, Case, cases, contractions, expected, operands, preferring, relayout
from frameworks import Array, framework, on_cuda
from hypothesis import given, settings
from hypothesis import strategies as st

from einops_fast import fast_einsum
from einops_fast.backends import get_backend
from einops_fast.einsum import plan_arguments
from einops_fast.planning.notation import parse
from einops_fast.planning.plan import compile_plan, make_plan
from einops_fast.planning.steps import Gemm, Multiply, Native, Step

EXACT = [  # sums of small whole numbers are: no rounding, however they are ordered
    *(("numpy", dtype) for dtype in ["float32", "float64", "complex128", "int64", "int8", "bool"]),
    *(("torch", dtype) for dtype in ["float32", "float64", "complex64", "int64"]),
    *(("mxnet", dtype) for dtype in ["float32", "float64"]),
    *(on_cuda(dtype) for dtype in ["float32", "float64", "complex64", "int64"]),
]
ROUNDED = [
    *(("numpy", dtype) for dtype in ["float16", "float32", "complex64"]),
    *(("torch", dtype) for dtype in ["float16", "bfloat16", "float32", "complex64"]),
    ("mxnet", "float32"),
    *(on_cuda(dtype) for dtype in ["float16", "bfloat16", "float32", "complex64"]),
]
EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}


def exact(case: Case, arrays: Sequence[Array], dtype: str) -> Array:
    """The oracle, computed without rounding (wide enough for small whole numbers), in ``dtype``."""
    kind = np.dtype(dtype).kind
    wide = {"c": np.complex128, "f": np.float64}.get(kind, np.int64)
    return expected(case, [array.astype(wide) for array in arrays]).astype(dtype)


# ---- values


@pytest.mark.parametrize(("name", "dtype"), EXACT)
@given(data=st.data())
def test_any_equation_on_any_layout(name: str, dtype: str, data: st.DataObject) -> None:
    of = framework(name)
    case = data.draw(cases())
    arrays = data.draw(operands(case.shapes, dtype=dtype, negative=of.negative))
    got = of.read(fast_einsum(case.equation, *[of.make(array, dtype) for array in arrays]))
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, exact(case, arrays, dtype), strict=True)


@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet", on_cuda()])
@given(data=st.data())
def test_lists_of_labels(name: str, data: st.DataObject) -> None:
    of = framework(name)
    case = data.draw(cases().filter(lambda case: case.output is not None))
    arrays = data.draw(operands(case.shapes, negative=of.negative))
    pairs = [(of.make(array, "float64"), labels) for array, labels in zip(arrays, case.terms, strict=True)]
    got = of.read(fast_einsum(*chain(*pairs), case.output))
    np.testing.assert_array_equal(got, exact(case, arrays, "float64"), strict=True)


@pytest.mark.parametrize(("name", "dtype"), ROUNDED)
@given(data=st.data())
def test_rounding_is_no_worse_than_native(name: str, dtype: str, data: st.DataObject) -> None:
    of = framework(name)
    case = data.draw(contractions(max_size=7))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    wide = "complex128" if dtype.startswith("complex") else "float64"
    arrays = [of.make(random.standard_normal(shape).astype(wide), dtype) for shape in case.shapes]
    arrays = [array.astype(dtype) if name == "numpy" else array for array in arrays]
    rounded = [of.read(array).astype(wide) for array in arrays]
    wanted = expected(case, rounded)
    magnitude = expected(case, [np.abs(array) for array in rounded])
    error = np.abs(of.read(fast_einsum(case.equation, *arrays)) - wanted).max()
    native = np.abs(of.read(of.einsum(case.letters, *arrays)) - wanted).max()
    assert error <= 2 * native + 2 * EPSILON[dtype] * magnitude.max()


# ---- every way to compute it


def plan_runner(
    case: Case, arrays: Sequence[Any], name: str, way: str, optimize: Any = "auto", **abilities: Any
) -> Callable[..., Any]:
    """What runs the plan that is made for a target with other abilities and prices than the real one."""
    backend = get_backend(framework(name).backend)
    with preferring(way):
        plan = make_plan(
            parse(case.equation, case.ranks),
            [backend.inspect(array) for array in arrays],
            backend.target(arrays).replace(**abilities),
            backend.numerics(arrays, None, "safe"),
            optimize,
        )
    return compile_plan(plan, backend)


@pytest.mark.parametrize(
    ("way", "kind"), [("GEMMs", Gemm), ("GEMMs without copies", Gemm), ("products", Multiply), ("loops", Native)]
)
def test_preferred_way_is_taken(way: str, kind: type[Step]) -> None:
    """Or else the tests below would try less than they seem to."""
    with preferring(way):
        plan = plan_arguments(["bk,bk->b", np.ones((2, 2)), np.ones((2, 2))], None, "safe", "auto")
    assert [type(step) for step in plan.steps] == [kind]


@st.composite
def abilities(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """What a target can do: NumPy can play any, the others their own and less."""
    if name == "mxnet":
        return {}
    can: dict[str, Any] = {"writes": draw(st.booleans()), "drops_expanded": draw(st.booleans())}
    if name == "torch-cuda" and draw(st.booleans()):
        can["kernels"] = frozenset()  # then the ways to compute it are steps of their own
    if name.startswith("torch"):
        return can
    strided = draw(st.booleans())
    return {
        "writes": can["writes"] and strided,
        "drops_expanded": can["drops_expanded"] and strided,
        "strided": strided,
        "broadcasts": draw(st.booleans()),
        "batch_axes": draw(st.sampled_from([1, 2, 32])),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet", on_cuda()])
@given(data=st.data())
def test_every_plan_gives_the_same_values(name: str, way: str, data: st.DataObject) -> None:
    of = framework(name)
    case = data.draw(contractions())
    arrays = data.draw(operands(case.shapes, negative=of.negative))
    optimize = data.draw(st.sampled_from(["auto", False]))
    values = [of.make(array, "float64") for array in arrays]
    run = plan_runner(case, values, name, way, optimize, **data.draw(abilities(name)))
    np.testing.assert_array_equal(of.read(run(*values)), exact(case, arrays, "float64"))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Fill memory that is handed out uninitialised with NaN."""
    torch = sys.modules.get("torch")
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(np, "empty", lambda shape, dtype: np.full(shape, np.nan, dtype)))
        if torch is not None:
            stack.callback(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled())
            torch.use_deterministic_algorithms(True, warn_only=True)  # cuBLAS isn't set up for that
        yield


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["numpy", "torch", on_cuda()])
@given(data=st.data())
def test_sums_over_nothing_are_zero(name: str, way: str, data: st.DataObject) -> None:
    of = framework(name)
    case = data.draw(contractions(empty=True))
    values = [of.make(np.ones(shape), "float64") for shape in case.shapes]
    run = plan_runner(case, values, name, way, **data.draw(abilities(name)))
    with poisoned_memory():
        got = of.read(run(*values))
    np.testing.assert_array_equal(got, expected(case, list(map(np.ones, case.shapes))))


# ---- layout

SIZES = dict(zip("abcdhijkln", (3, 2, 5, 16, 4, 12, 20, 8, 7, 6), strict=True))


@pytest.mark.parametrize("name", ["numpy", "torch", on_cuda()])
@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ij,jk->ki",
        "ij,j->i",
        "bij,bkj->bik",
        "bihd,bjhd->bhij",
        "bhij,bjhd->bihd",
        "bin,bjnd->bnijd",
        "abij,bajk->kab",
        "aij,aij->",
        "ijk,lkj->il",
        "aij,ijk,kl->al",
        "ii,ij->j",
        "abcij->cja",
    ],
)
@settings(max_examples=20)
@given(data=st.data())
def test_layout_changes_no_value(name: str, equation: str, data: st.DataObject) -> None:
    """At sizes where the predicted costs tell the ways apart."""
    of = framework(name)
    random = np.random.default_rng(0)
    values, moved = [], []
    for term in equation.partition("->")[0].split(","):
        values.append(random.integers(-4, 5, [SIZES[label] for label in term]).astype("float64"))
        order = data.draw(st.permutations(range(len(term))))
        steps = data.draw(st.lists(st.sampled_from([1, 1, 1, 2]), min_size=len(term), max_size=len(term)))
        moved.append(of.make(relayout(values[-1], order, steps), "float64"))
    wanted = np.einsum(equation, *values, optimize=True)
    np.testing.assert_array_equal(of.read(fast_einsum(equation, *moved)), wanted)


# ---- the order of contraction

CHAIN = "ij,jk,kl,lm,mi->k"


def chain_operands() -> list[Array]:
    """Operands for `CHAIN`; integers, so that every order gives the same result."""
    random = np.random.default_rng(0)
    shapes = [(3, 4), (4, 5), (5, 2), (2, 6), (6, 3)]
    return [random.integers(-4, 5, shape).astype("float64") for shape in shapes]


@pytest.mark.parametrize(
    "optimize",
    [
        *(False, True, "auto", "auto-hq", "optimal", "dp", "dynamic-programming", "eager", "greedy"),
        *("opportunistic", "branch-all", "branch-2", "branch-1", "random-greedy", "random-greedy-128"),
        ("greedy", 40),
        ("optimal", 1),  # which no order keeps to
        [(0, 1), (0, 1), (0, 1), (0, 1)],
        ((3, 4), (2, 3), (1, 2), (0, 1)),
        ["einsum_path", (1, 2), (0, 3), (0, 2), (0, 1)],
        [(0, 1, 2), (0, 1, 2)],
        [(0, 1, 2, 3, 4)],
        [(1, 3), (0, 1, 2, 3)],
        pytest.param(opt_einsum.DynamicProgramming(minimize="size"), id="DynamicProgramming"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["numpy", "torch", on_cuda()])
def test_optimize_changes_no_value(name: str, optimize: Any) -> None:
    of, arrays = framework(name), chain_operands()
    got = fast_einsum(CHAIN, *[of.make(array, "float64") for array in arrays], optimize=optimize)
    np.testing.assert_array_equal(of.read(got), np.einsum(CHAIN, *arrays))


# ---- ways to call it


@pytest.mark.parametrize("name", ["numpy", "torch", "mxnet", on_cuda()])
@pytest.mark.parametrize("kind", [list, tuple])
def test_operands_in_one_sequence(name: str, kind: type) -> None:
    of = framework(name)
    a, b = (of.make(np.ones(shape), "float64") for shape in [(2, 3), (3, 4)])
    assert (of.read(fast_einsum("ij,jk->ik", kind([a, b]))) == 3).all()
