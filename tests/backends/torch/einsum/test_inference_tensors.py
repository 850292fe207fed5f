"""Tensors of inference mode beside ones with gradients: recorded where torch records copies of them, else refused."""

import random
from typing import Any

import pytest
import torch

from einops_fast import fast_einsum


def _outcome(einsum: Any, equation: str, *operands: Any) -> Any:
    leaves = [each for each in operands if each.requires_grad]
    try:
        result = einsum(equation, *operands)
        return result, *torch.autograd.grad(result.sum(), leaves)
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        return None


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("count", [2, 3])
def test_what_torch_records_is_recorded(seed: int, count: int) -> None:
    chance = random.Random(seed)
    sizes = {label: chance.choice([1, 2, 3]) for label in "abcde"}
    terms = ["".join(chance.sample("abcde", chance.randint(1, 4))) for _ in range(count)]
    every = sorted(set("".join(terms)))
    equation = f"{','.join(terms)}->{''.join(chance.sample(every, chance.randint(0, 3) % len(every)))}"
    shapes = [[sizes[label] for label in term] for term in terms]
    operands = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    at = chance.randrange(count)
    with torch.inference_mode():
        operands[at] = torch.randn(shapes[at], dtype=torch.float64)
    expected = _outcome(torch.einsum, equation, *operands)
    for _ in range(3):
        found = _outcome(fast_einsum, equation, *operands)
        if expected is not None:
            assert found is not None
            torch.testing.assert_close(found, expected)
