"""Trees and optimizers of cotengra's, which slice a contraction, are taken with their slices."""

from typing import Any

import numpy as np
import pytest

from einops_fast import contract_expression, explain, fast_einsum
from einops_fast.errors import EinsumError


class Tree:
    """What of cotengra's trees and optimizers is used."""

    def __init__(self, inputs: Any, path: Any, sliced: str) -> None:
        self.inputs, self.path, self.sliced_inds = inputs, path, dict.fromkeys(sliced)

    def get_path(self) -> Any:
        return self.path


class Optimizer:
    def __init__(self, slicing: bool) -> None:
        self.slicing_opts = {"target_slices": 4} if slicing else None

    def search(self, inputs: Any, output: Any, sizes: Any) -> Tree:
        return Tree(inputs, ((1, 2), (0, 1)), inputs[1][0] if self.slicing_opts else "")


@pytest.mark.parametrize(
    ("equation", "optimize", "extents"),
    [
        ("ij,jk,kl->il", Tree([("a", "b"), ("b", "c"), ("c", "d")], ((1, 2), (0, 1)), "c"), {"k": 1}),
        ("row j,j k,k l->row l", Tree([{"row", "j"}, {"j", "k"}, {"k", "l"}], ((0, 1), (0, 1)), "j"), {"j": 1}),
        ("ij,jk,kl->il", Tree([("i", "j"), ("j", "k"), ("k", "l")], ((1, 2), (0, 1)), "il"), {"i": 1, "l": 1}),
        ("ij,jk,kl->il", Tree([], ((1, 2), (0, 1)), ""), None),
        ("ij,jk,kl->il", Optimizer(False), None),
        ("ij,jk,kl->il", Optimizer(True), {"j": 1}),
    ],
)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_trees_of_cotengra_are_taken_with_their_slices(
    framework: str, equation: str, optimize: Any, extents: dict[str, int] | None
) -> None:
    arrays = [np.random.default_rng(8).standard_normal(shape) for shape in ((4, 5), (5, 6), (6, 7))]
    exact = arrays[0] @ arrays[1] @ arrays[2]
    if framework == "torch":
        arrays = [pytest.importorskip("torch").from_numpy(each).requires_grad_() for each in arrays]
    for _ in range(2):
        for call in (
            fast_einsum,
            lambda equation, *given, **options: contract_expression(equation, *given, **options)(*given),
        ):
            found = call(equation, *arrays, optimize=optimize)
            np.testing.assert_allclose(found if framework == "numpy" else found.detach(), exact)
    memory = explain(equation, *arrays, optimize=optimize).to_dict().get("memory")
    assert (memory and memory["extents"]) == extents
    found = fast_einsum(equation, *arrays, optimize=optimize, memory_limit=10_000)
    np.testing.assert_allclose(found if framework == "numpy" else found.detach(), exact)


def test_a_tree_of_another_equation_is_refused() -> None:
    arrays = [np.ones((3, 3))] * 3
    with pytest.raises(EinsumError, match="slices \\['x'\\], which 'ij,jk,kl->il' hasn't"):
        fast_einsum("ij,jk,kl->il", *arrays, optimize=Tree([{"x"}], ((1, 2), (0, 1)), "x"))
    with pytest.raises(EinsumError, match="doesn't name distinct terms"):
        fast_einsum("ij,jk,kl->il", *arrays, optimize=Tree([], ((1, 5), (0, 1)), ""))
