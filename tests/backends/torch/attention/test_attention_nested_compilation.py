"""Nested tensors under torch.compile, by this package's kernels."""

from typing import Any

import pytest
import torch
from attention_problems import DEVICE, randn, whole_calls
from torch_operands import whole

from einops_fast import attention, attention_backend, scaled_dot_product_attention


def nested(*shape: int) -> Any:
    parts = [randn(length, *shape, seed=length) for length in (3, 6)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, device=DEVICE, requires_grad=True)


CASES: dict[str, Any] = {
    "layout": lambda x: attention(x, x, x, layout="bshd", causal=True),
    "packed": lambda x: attention(x.unsqueeze(2).expand(-1, -1, 3, -1, -1).contiguous(), layout="bs3hd"),
    "mask": lambda x: attention(x, x, x, layout="bshd", mask=("b h", torch.eye(2, device=DEVICE) > 0)),
    "drop-in": lambda x: scaled_dot_product_attention(*[x.transpose(1, 2)] * 3, is_causal=True).transpose(1, 2),
}


def test_keys_and_values_that_have_lengths_of_their_own() -> None:
    """Which are compared when the graph runs: nobody knows them before."""
    x = nested(2, 8)
    ends = x.offsets()

    def like_x(ends: Any) -> Any:
        return torch.nested.nested_tensor_from_jagged(x.values().detach(), ends, min_seqlen=3, max_seqlen=6)

    compiled = whole(lambda q, k, v: attention(q, k, v, layout="bshd"))
    with whole_calls(), attention_backend("triton"):
        found = compiled(x.detach(), like_x(ends.clone()), like_x(ends.clone()))
        torch.testing.assert_close(found.values(), attention(*[x.detach()] * 3, layout="bshd").values())
        if DEVICE == "cpu":  # on a GPU, the device would be lost
            with pytest.raises(RuntimeError, match="k and of v have different lengths"):
                compiled(x.detach(), like_x(ends.clone()), like_x(ends + torch.tensor([0, 1, 0])))


@pytest.mark.parametrize("name", CASES)
def test_compiles_whole(name: str) -> None:
    x = nested(2, 8)
    with whole_calls(), attention_backend("triton"):
        found, expected = whole(CASES[name])(x), CASES[name](x)
        assert found.is_nested
        gradients = [torch.autograd.grad(each.values().square().sum(), x)[0] for each in (found, expected)]
    torch.testing.assert_close(found.values(), expected.values())
    torch.testing.assert_close(gradients[0].values(), gradients[1].values())
