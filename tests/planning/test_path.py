"""The order of contraction: memory limits, how far it is from opt_einsum's, and what planning takes."""

import sys
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import opt_einsum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import EinsumError, fast_einsum, patched
from einops_fast.einsum import plan_arguments
from einops_fast.planning.notation import bind_sizes, parse
from einops_fast.planning.path import MOST_TIMES, candidate_paths
from einops_fast.planning.steps import Gemm, Multiply

Network = tuple[str, list[tuple[int, ...]]]


def network(terms: list[list[int]], output: list[int], sizes: list[int]) -> Network:
    """An equation and shapes for terms of numbered labels."""
    spell = opt_einsum.get_symbol
    equation = ",".join("".join(map(spell, term)) for term in terms) + "->" + "".join(map(spell, output))
    return equation, [tuple(sizes[label] for label in term) for term in terms]


@st.composite
def networks(draw: Any) -> Network:
    """Rings, trees, stars, lattices, circuits, and operands that all share an axis."""
    kind = draw(st.sampled_from(["ring", "tree", "star", "lattice", "circuit", "shared"]))
    count = draw(st.integers(3, 18))
    if kind == "ring":
        edges = [(at, (at + 1) % count) for at in range(count)]
    elif kind == "tree":
        edges = [(at, draw(st.integers(0, at - 1))) for at in range(1, count)]
    elif kind == "lattice":
        width = draw(st.integers(2, 4))
        edges = [(at, at + 1) for at in range(count - 1) if (at + 1) % width]
        edges += [(at, at + width) for at in range(count - width)]
    elif kind == "circuit":
        wires = [[] for _ in range(draw(st.integers(2, 5)))]
        for at in range(count):
            for wire in draw(st.permutations(range(len(wires))))[:2]:
                wires[wire].append(at)
        edges = [pair for wire in wires for pair in pairwise(wire)]
    else:
        edges = [(at, count - 1) for at in range(count - 1)]
    terms: list[list[int]] = [[] for _ in range(count)]
    for label, (one, other) in enumerate(edges):
        terms[one].append(label)
        terms[other].append(label)
    sizes = [draw(st.integers(2, 5)) for _ in edges]
    output = []
    if kind == "shared":
        terms = [[*term, len(edges)] for term in terms]
        sizes.append(draw(st.integers(2, 50)))
    open_terms = draw(st.sets(st.sampled_from(range(count)), max_size=3))
    for at in sorted(open_terms):
        terms[at].append(len(sizes))
        output.append(len(sizes))
        sizes.append(draw(st.integers(2, 5)))
    if kind == "shared" and draw(st.booleans()):
        output.append(len(edges))
    return network([term for term in terms if term], output, sizes)


def steps_of(case: Network, path: Any) -> tuple[float, float, bool]:
    """FLOPs and the largest intermediate of a path, by opt_einsum, and whether all its steps are pairs."""
    _, info = opt_einsum.contract_path(case[0], *case[1], shapes=True, optimize=list(path))
    return float(info.opt_cost), float(max(info.size_list[:-1], default=0)), max(map(len, path)) <= 2


def found_by(case: Network, optimize: Any, room: int | None = None) -> list[Any]:
    subscripts = parse(case[0], tuple(map(len, case[1])))
    return candidate_paths(subscripts, bind_sizes(subscripts, case[1]), optimize, room)


@given(networks())
def test_paths_are_near_those_of_opt_einsum(case: Network) -> None:
    theirs, _ = opt_einsum.contract_path(case[0], *case[1], shapes=True)
    flops, largest, _ = steps_of(case, theirs)
    for path in found_by(case, "auto"):
        ours = steps_of(case, path)
        assert ours[0] <= 2 * MOST_TIMES * flops  # opt_einsum counts a sum as another operation
        assert ours[1] <= MOST_TIMES * max(largest, 1)
        assert ours[2]


@given(networks(), st.data())
def test_no_path_is_over_a_limit_that_another_keeps(case: Network, data: Any) -> None:
    free, _ = opt_einsum.contract_path(case[0], *case[1], shapes=True)
    largest = steps_of(case, free)[1]
    limit = max(1, int(largest * data.draw(st.floats(0.01, 1.5))))
    name = data.draw(st.sampled_from(["auto", "greedy"]))
    theirs, _ = opt_einsum.contract_path(case[0], *case[1], shapes=True, optimize=name, memory_limit=limit)
    _, needs, by_pairs = steps_of(case, theirs)
    for optimize, room in (((name, limit), None), (name, limit)):
        for path in found_by(case, optimize, room):
            _, ours, paired = steps_of(case, path)
            assert paired
            assert ours <= (limit if by_pairs and needs <= limit else largest)


CORE = [[at, 13] for at in range(12)] + [[*range(12), 12]]
LARGE = network(CORE, [13, 12], [2] * 12 + [4, 800])


@pytest.mark.parametrize(
    "name", ["greedy", "auto", "branch-1", opt_einsum.paths.greedy], ids=lambda each: getattr(each, "__name__", each)
)
@pytest.mark.parametrize("limit", [10**6, 1e6, np.int64(10**6), 204800])
def test_operands_that_share_an_axis_with_a_core(name: Any, limit: Any) -> None:
    (path,) = found_by(LARGE, (name, limit))
    assert steps_of(LARGE, path)[1] <= 204800


def test_limit_by_the_largest_operand() -> None:
    case = network([[0, 1], [1, 2], [2, 3], [3, 0, 4]], [4], [9, 2, 9, 2, 1])
    (path,) = found_by(case, ("greedy", "max_input"))
    assert steps_of(case, path)[1] <= 18


@pytest.mark.parametrize("limit", [0, -2, "much", float("nan"), [3], 0.5])
def test_what_is_no_limit(limit: Any) -> None:
    with pytest.raises(EinsumError, match="memory limit is a number of elements"):
        found_by(LARGE, ("greedy", limit))


def test_optimizers_of_opt_einsum_as_objects() -> None:
    case = network([[0, 1], [1, 2], [2, 3], [3, 0]], [], [4, 5, 6, 7])
    objects = opt_einsum.RandomGreedy(max_repeats=4), opt_einsum.BranchBound(), opt_einsum.DynamicProgramming()
    for optimizer in objects:
        assert steps_of(case, found_by(case, optimizer)[0])[2]
        assert steps_of(case, found_by(case, (optimizer, 1000))[0])[1] <= 1000


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_steps_keep_to_a_limit_and_the_value_is_right(framework: str) -> None:
    random = np.random.default_rng(0)
    case = network([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5, 0]], [5], [3, 40, 5, 30, 6, 2])
    arrays = [random.standard_normal(shape) for shape in case[1]]
    expected = np.einsum(case[0], *arrays, optimize=False)
    for limit in (1, 10, 20, 40, 1000):
        operands = arrays
        if framework == "torch":
            torch = pytest.importorskip("torch")
            operands = [torch.from_numpy(array) for array in arrays]
        plan = plan_arguments([case[0], *operands], None, "safe", ("optimal", limit))
        most = max(prod(step.shape) for step in plan.steps[:-1]) if len(plan.steps) > 1 else 0
        assert most <= max(limit, 30 if framework == "torch" else 0)
        np.testing.assert_allclose(fast_einsum(case[0], *operands, optimize=("optimal", limit)), expected)


@pytest.mark.parametrize("path", [[], [(0, 1)], [(1,), (1, 2)], ["einsum_path", (0, 2)]], ids=str)
def test_a_path_that_leaves_terms_is_refused_as_by_numpy(path: Any) -> None:
    arrays = [np.ones((3, 3))] * 3
    with pytest.raises(RuntimeError, match="more operands has to be contracted"):
        np.einsum("ij,jk,kl->il", *arrays, optimize=["einsum_path", *path[path[:1] == ["einsum_path"] :]])
    with pytest.raises(EinsumError, match=r"leaves \d of 3 terms: the steps of a path leave one"):
        fast_einsum("ij,jk,kl->il", *arrays, optimize=path)


@pytest.mark.parametrize("optimize", [("greedy", 6), ("optimal", 1000.0), ["greedy", 1]], ids=str)
def test_limits_under_the_patch(optimize: Any) -> None:
    arrays = [np.random.default_rng(at).standard_normal(shape) for at, shape in enumerate([(3, 20), (20, 5), (5, 2)])]
    expected = np.einsum("ij,jk,kl->il", *arrays)
    with patched("numpy"):
        np.testing.assert_allclose(np.einsum("ij,jk,kl->il", *arrays, optimize=optimize), expected)


def calls_for(count: int, kind: str) -> int:
    """Python functions that are called to plan a network of so many operands."""
    if kind == "chain":
        terms, output = [[at, at + 1] for at in range(count)], [0, count]
    else:
        terms, output = [[at, count] for at in range(count - 1)] + [[count]], [count]
    case = network(terms, output, [2] * (count + 1))
    arrays = [np.ones(shape) for shape in case[1]]
    calls = 0

    def called(frame: Any, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    plan_arguments([case[0], *arrays], None, "safe", "auto")
    sys.setprofile(called)
    try:
        plan_arguments([case[0], *arrays], None, "safe", "auto")
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["chain", "star"])
def test_planning_grows_with_the_number_of_operands(kind: str) -> None:
    assert calls_for(400, kind) <= 2.3 * calls_for(200, kind)


# ---- many short axes


@pytest.mark.parametrize(("size", "rank"), [(2, 18), (3, 11), (4, 9)])
@pytest.mark.parametrize("at", [(0,), (-2,), (-1,), (0, 1), (0, -1), (4, -2), (-1, -2)])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_gates_on_many_short_axes_are_matrix_products(
    framework: str, dtype: str, at: tuple[int, ...], size: int, rank: int
) -> None:
    labels = list(range(rank))
    contracted = [labels[axis] for axis in at]
    new = [rank + place for place in range(len(at))]
    for axis, label in zip(at, new, strict=True):
        labels[axis] = label
    equation, shapes = network([list(range(rank)), new + contracted], labels, [size] * (rank + len(at)))
    make = np.zeros if framework == "numpy" else pytest.importorskip("torch").zeros
    operands = [
        make(shape, dtype=getattr(np if framework == "numpy" else sys.modules["torch"], dtype)) for shape in shapes
    ]
    steps = plan_arguments([equation, *operands], None, "safe", "auto").steps
    assert Gemm in map(type, steps)
    assert Multiply not in map(type, steps)


def test_an_optimizer_that_finds_no_path_within_the_limit_is_told() -> None:
    """opt_einsum's dynamic programming makes no outer products, without which nothing here fits."""
    inputs = "bcdefgh"
    equation = f"{','.join(f'z{label}' for label in inputs)},{inputs}y->zy"
    arrays = [*[np.ones((800, 2))] * len(inputs), np.ones((2,) * len(inputs) + (4,))]
    with pytest.raises(EinsumError, match=r"^optimize='dp' finds no path .* within 20000 elements"):
        fast_einsum(equation, *arrays, optimize=("dp", 20000))
