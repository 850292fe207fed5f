"""Steps kept for pairs that differ in labels and slots alone are the steps that these pairs get by themselves."""

import random

import numpy as np
import opt_einsum
import pytest

from einops_fast import fast_einsum
from einops_fast.backends import get_backend
from einops_fast.einsum import plan_arguments
from einops_fast.planning.alike import Alike
from einops_fast.planning.layout import Term, contiguous_in_order, contiguous_strides
from einops_fast.planning.pairs import contract_pair
from einops_fast.planning.steps import Gemm, Multiply, Native
from einops_fast.runtime import new_shapes


def _pair(seed):
    """Two terms with axes of few sizes in any order of memory, and which of their labels are wanted."""
    chance = random.Random(seed)
    letters = chance.sample("abcdefghijklmnopqrstuvwxyz", 5)
    sizes = {letter: chance.choice([1, 2, 2, 300]) for letter in letters}
    inputs = [chance.sample(letters, chance.randint(1, 3)) for _ in range(2)]
    alone = set(inputs[0]) ^ set(inputs[1])
    wanted = [label for label in chance.sample(letters, 5) if label in alone]
    wanted += [label for label in inputs[0] if label in inputs[1] and chance.random() < 0.4]
    terms = []
    for slot, labels in zip(chance.sample(range(9), 2), inputs, strict=True):
        shape = tuple([sizes[label] for label in labels])
        strides = contiguous_in_order(shape, chance.sample(range(len(shape)), len(shape)))
        if chance.random() < 0.2:
            strides = tuple([3 * stride for stride in strides])
        broadcast = ["" if sizes[label] == 1 and chance.random() < 0.3 else label for label in labels]
        terms.append(Term(slot, broadcast, shape, None if strides == contiguous_strides(shape) else strides))
    held = terms[0].labels + terms[1].labels
    return *terms, "".join([label for label in wanted if label in held]), sizes


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "int64"])
def test_steps_are_those_of_each_pair_by_itself(framework, dtype):
    if framework == "torch":
        pytest.importorskip("torch")
    backend = get_backend(framework)
    arrays = [backend.example((2, 2), dtype)] * 2
    target, numerics = backend.target(arrays), backend.numerics(arrays, None, "safe")
    steps, kinds = Alike(target, numerics), set()
    for seed in range(600):
        left, right, wanted, sizes = _pair(seed)
        expected = contract_pair(left, right, wanted, sizes, target, numerics)
        kinds.add(type(expected))
        assert steps.step(left, right, wanted, sizes) == expected
        assert steps.step(left, right, wanted, sizes) == expected
        names = str.maketrans("abcdefghijklmnopqrstuvwxyz", "zyxwvutsrqponmlkjihgfedcba")
        renamed = []
        for slot, term in ((30, left), (20, right)):
            named = [""] * len(term.shape)
            for label, at in term.places.items():
                named[at] = label.translate(names)
            renamed.append(Term(slot, named, term.shape, term._strides))
        sizes = {label.translate(names): size for label, size in sizes.items()}
        expected = contract_pair(*renamed, wanted.translate(names), sizes, target, numerics)
        assert steps.step(*renamed, wanted.translate(names), sizes) == expected
    assert kinds >= ({Multiply, Native} if dtype == "int64" else {Multiply, Gemm})


def test_pairs_are_priced_once_for_all_labels(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "einops_fast.planning.alike.contract_pair", lambda *pair: asked.append(pair) or contract_pair(*pair)
    )
    backend = get_backend("numpy")
    arrays = [np.zeros((70, 80))] * 2
    steps = Alike(backend.target(arrays), backend.numerics(arrays, None, "safe"))
    for at, labels in enumerate(["abc", "xyz", "cba", "éðñ"]):
        one, two, three = labels
        sizes = {one: 70, two: 80, three: 90}
        pair = Term(at, one + two, (70, 80)), Term(at + 1, two + three, (80, 90))
        step = steps.step(*pair, one + three, sizes)
        assert (step.reads, step.labels) == ((at, at + 1), one + three)
    assert len(asked) == 1
    steps.step(Term(0, "ab", (70, 80), (1, 70)), Term(1, "bc", (80, 90)), "ac", {"a": 70, "b": 80, "c": 90})
    steps.step(Term(0, "ab", (70, 81)), Term(1, "bc", (81, 90)), "ac", {"a": 70, "b": 81, "c": 90})
    assert len(asked) == 3


def test_a_network_of_alike_pairs_follows_its_path_and_is_right(monkeypatch):
    monkeypatch.setattr(new_shapes, "AT_SECOND_CALL", False)
    numbers = np.random.default_rng(0)
    letters = list(map(opt_einsum.get_symbol, range(80)))
    sites = [letters[at] + letters[40 + at] + letters[at + 1] for at in range(20)]
    terms = [*sites, *[letters[40 + at] for at in range(20)]]
    equation = ",".join(terms) + "->" + letters[0] + letters[20]
    shapes = [(16, 2, 16)] * 20 + [(2,)] * 20
    arrays = [numbers.standard_normal(shape) / 4 for shape in shapes]
    path = opt_einsum.contract_path(equation, *arrays, optimize="greedy")[0]
    expected = opt_einsum.contract(equation, *arrays, optimize=path)
    for _ in range(2):
        assert plan_arguments([equation, *arrays], None, "safe", "greedy").path == tuple(path)
    np.testing.assert_allclose(fast_einsum(equation, *arrays, optimize="greedy"), expected, rtol=1e-9)
