"""Trees that are annealed contract what they did, in pieces that hold no more than there is room for."""

from math import prod
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einops_fast import explain, fast_einsum
from einops_fast.planning.path import Network
from einops_fast.planning.trees import Tree, annealed_trees


def lattice(rows: int, columns: int, size: int) -> tuple[list[str], dict[str, int]]:
    """The terms of a lattice with closed ends, and the sizes of its labels."""
    terms: dict[tuple[int, int], str] = {(row, column): "" for row in range(rows) for column in range(columns)}
    pairs = [(at, (at[0] + down, at[1] + 1 - down)) for at in terms for down in (0, 1)]
    for number, pair in enumerate([pair for pair in pairs if pair[1] in terms]):
        for at in pair:
            terms[at] += chr(256 + number)
    return [*terms.values()], dict.fromkeys(sorted({*"".join(terms.values())}), size)


NETWORKS = st.lists(st.text("abcdefgh", min_size=1, max_size=4), min_size=3, max_size=9)


@given(NETWORKS, st.lists(st.sampled_from([1, 2, 3, 4]), min_size=8, max_size=8), st.booleans(), st.data())
def test_a_tree_stays_that_of_its_network(
    terms: list[str], sizes: list[int], trained: bool, data: st.DataObject
) -> None:
    terms = ["".join(dict.fromkeys(term)) for term in terms]
    labels = sorted({*"".join(terms)})
    output = "".join(data.draw(st.lists(st.sampled_from(labels), unique=True, max_size=2)))
    of = {label: size for label, size in zip("abcdefgh", sizes, strict=True) if label in labels}
    network = Network(terms, output, of)
    tree = Tree(network, network.left_to_right().path, trained)
    tree.sweeps = 5
    tree.anneal(Random(0), 5, 2.0)
    room = data.draw(st.sampled_from([20, 60, 1000]))
    found = tree.within(room)
    small = {label: 1 if label in found.cut_labels() else size for label, size in of.items()}
    assert all(held <= room for held, _ in found.held())
    # What it says of its path is what the path is.
    priced, written = Network(terms, output, small).candidate(found.path()), prod([small[each] for each in output])
    assert found.pieces == prod([of[label] for label in found.cut_labels()])
    assert found.total() == pytest.approx(found.pieces * (priced.flops + 2 * (priced.written + written)))


def test_annealing_finds_cheaper_trees() -> None:
    terms, sizes = lattice(5, 6, 4)
    network = Network(terms, "", sizes)
    first, room = network.search("greedy"), network.search("greedy").largest // 16
    best = annealed_trees(network, [first.path], False, room, 1e9)[0]
    assert best.total() <= 1.01 * first.flops
    assert best.within(room).total() < 0.5 * Tree(network, first.path, False).within(room).total()


@pytest.mark.parametrize("part", [2, 6, 20, 60])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_many_operands_are_contracted_within_a_limit(framework: str, part: int) -> None:
    terms, sizes = lattice(4, 5, 3)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal([sizes[each] for each in term]) for term in terms]
    equation = f"{','.join(terms)}->"
    exact = fast_einsum(equation, *arrays)
    limit = explain(equation, *arrays, memory_limit=1 << 40).to_dict()["memory"]["peak_bytes"] // part
    if framework == "torch":  # gradients within the same limit, but for what takes as much as the operands
        torch = pytest.importorskip("torch")
        limit += 4 * sum([array.nbytes for array in arrays])
        arrays = [torch.from_numpy(array).requires_grad_() for array in arrays]
    memory = explain(equation, *arrays, memory_limit=limit).to_dict()["memory"]
    assert memory["peak_bytes"] <= limit
    found = fast_einsum(equation, *arrays, memory_limit=limit)
    np.testing.assert_allclose(found if framework == "numpy" else found.detach(), exact, rtol=1e-9)
    if framework == "torch":
        gradients = torch.autograd.grad(found, arrays)
        others = torch.autograd.grad(fast_einsum(equation, *arrays), arrays)
        for one, other in zip(gradients, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9 * float(other.abs().max()))
