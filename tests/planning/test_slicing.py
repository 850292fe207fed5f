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
