"""Numbers of segments: they are compared with all their bits, whatever integers they are."""

import numpy as np
import pytest
import torch
from attention_problems import DEVICE, whole_calls

from einops_fast import attention, attention_backend

P = "b i h d, b j h d, b j h e -> b i h e"
FAR = 1 << 32
IDS: dict[str, tuple[list[int], str, str]] = {
    "alike in 32 bits": ([0, 0, FAR, FAR, 2 * FAR, 0, FAR + 7, 7], "int64", "int64"),
    "all far": ([FAR, FAR, FAR + 1, FAR + 1, FAR + 1, FAR, 3 * FAR, FAR], "int64", "int64"),
    "all far below": ([-FAR, -FAR, -FAR - 1, -FAR, -5 * FAR, -FAR, -FAR, -FAR - 1], "int64", "int64"),
    "of two kinds": ([3, 3, 1, 1, 1, 2, 2, 2], "int64", "int32"),
    "small": ([3, 3, 1, 1, 1, -2, -2, -2], "int8", "int16"),
}


@pytest.mark.parametrize("way", ["triton", "math", "cpu"])
@pytest.mark.parametrize("name", IDS)
def test_numbers_of_any_size(name: str, way: str) -> None:
    ids, q_dtype, kv_dtype = IDS[name]
    device = "cpu" if way == "cpu" else DEVICE
    q = torch.randn((1, 8, 2, 16), generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    numbers = torch.tensor([ids], device=device)
    same = numbers[0, :, None] == numbers[0]
    segments = tuple(numbers.to(getattr(torch, dtype)) for dtype in (q_dtype, kv_dtype))
    with whole_calls(), attention_backend(way):
        found, expected = (
            attention(P, q, q, q, causal=True, **options) for options in ({"segment_ids": segments}, {"mask": same})
        )
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad(found.square().sum(), q), torch.autograd.grad(expected.square().sum(), q), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_numbers_of_numpy_arrays() -> None:
    ids, q = np.array([0, FAR, FAR, 0]), np.random.default_rng(0).normal(size=(4, 8))
    arguments = "i d, j d, j e -> i e", q, q, q
    found = attention(*arguments, segment_ids=(("i", ids), ("j", ids)))
    np.testing.assert_allclose(found, attention(*arguments, mask=ids[:, None] == ids))
