"""Contractions within a memory limit are cut into few pieces."""

import numpy as np
import pytest

from einops_fast import explain


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
