"""Contractions within a memory limit are cut into few pieces, and circuits at little cost."""

from itertools import count
from typing import Any

import numpy as np
import pytest
from held_memory import PYTHON, peak_of

from einops_fast import explain, fast_einsum
from einops_fast.errors import EinsumError


@pytest.mark.parametrize(("limit", "most"), [(7300, 2000), (8000, 100), (9000, 10)])
def test_pieces_are_no_shorter_than_they_need_be(limit: int, most: int) -> None:
    """Cuts that the search begins with may be of no use beside those that it ends with."""
    shapes = (30, 40), (40, 50), (50, 60)
    explanation = explain("ij,jk,kl->il", *[np.ones(shape, "float32") for shape in shapes], memory_limit=limit)
    assert explanation.to_dict()["memory"]["pieces"] <= most


@pytest.mark.parametrize("part", [4, 20, 64])
def test_no_step_of_few_operands_is_made_anew(part: int) -> None:
    """Integrals of three axes each, whose product is many times the limit, as in second-order perturbation theory."""
    shapes = [(15, 3, 10), (15, 3, 10), (15, 3, 10), (15, 3, 10)]
    operands = [np.ones([8 * size for size in shape], "float32") for shape in shapes]
    limit = 4 * (8 * 3 * 8 * 10) ** 2 // part
    memory = explain("xia,xjb,yib,yja->", *operands, memory_limit=limit).to_dict()["memory"]
    assert memory["peak_bytes"] <= limit
    assert memory["flops_ratio"] == 1
    assert memory["pieces"] <= 8 * part


# ---- circuits, by trees that are searched for with their cuts


def circuit(qubits: int, depth: int) -> tuple[str, list[Any]]:
    """A circuit of gates of two qubits each, with all its ends closed."""
    generator, label = np.random.default_rng(6), count()
    ends = [chr(256 + next(label)) for _ in range(qubits)]
    terms, shapes = list(ends), [(2,)] * qubits
    for layer in range(depth):
        for at in range(layer % 2, qubits - 1, 2):
            new = [chr(256 + next(label)) for _ in range(2)]
            terms.append("".join([*new, *ends[at : at + 2]]))
            shapes.append((2,) * 4)
            ends[at : at + 2] = new
    terms += ends
    arrays = [generator.standard_normal(shape) / 2 for shape in [*shapes, *[(2,)] * qubits]]
    return f"{','.join(terms)}->", arrays


def test_a_circuit_is_cut_at_little_cost() -> None:
    equation, arrays = circuit(20, 20)
    plain = explain(equation, *arrays)
    limit = plain.largest_intermediate // 8
    memory = explain(equation, *arrays, memory_limit=limit).to_dict()["memory"]
    assert memory["peak_bytes"] <= limit
    assert memory["flops_ratio"] < 1.5
    assert memory["pieces"] <= 512
    np.testing.assert_allclose(
        fast_einsum(equation, *arrays, memory_limit=limit), fast_einsum(equation, *arrays), rtol=1e-9
    )


def test_pieces_that_nobody_waits_for_are_refused() -> None:
    equation, arrays = circuit(26, 16)
    with pytest.raises(EinsumError, match=r"times the FLOPs of all at once; allow more memory"):
        explain(equation, *arrays, optimize="greedy", memory_limit=explain(equation, *arrays).largest_intermediate // 2)


@pytest.mark.parametrize(("qubits", "depth", "part"), [(22, 16, 4), (22, 20, 4), (24, 20, 16)])
def test_trees_of_circuits_are_searched_for_with_their_cuts(qubits: int, depth: int, part: int) -> None:
    equation, arrays = circuit(qubits, depth)
    limit = explain(equation, *arrays, memory_limit=1 << 40).to_dict()["memory"]["peak_bytes"] // part
    memory = explain(equation, *arrays, memory_limit=limit).to_dict()["memory"]
    assert memory["peak_bytes"] <= limit
    assert memory["flops_ratio"] < 4
    assert memory["pieces"] <= 512
    result, peak = peak_of(lambda: fast_einsum(equation, *arrays, memory_limit=limit))
    assert peak <= limit + PYTHON + 512 * len(arrays)
    np.testing.assert_allclose(result, fast_einsum(equation, *arrays), rtol=1e-9)
