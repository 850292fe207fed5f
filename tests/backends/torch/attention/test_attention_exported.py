"""torch.export of attention for lengths that are symbols: the graph holds for all, whatever their relation is."""

from typing import Any

import pytest
import torch
from torch.export import Dim, export

from einops_fast import attention

CALLS: dict[str, Any] = {
    "bottom_right": lambda q, k: attention(q, k, k, layout="bhsd", causal="bottom_right"),
    "shared keys": lambda q, k: attention(q, k[:, :1], k[:, :1], layout="bhsd", causal="bottom_right"),
    "bias": lambda q, k: attention(q, k, k, layout="bhsd", causal="bottom_right", bias=q @ k.mT),
    "window": lambda q, k: attention(q, k, k, layout="bhsd", window=(2, 1), alignment="bottom_right"),
    "top_left": lambda q, k: attention(q, k, k, layout="bhsd", causal=True, softcap=3.0),
}


def operands(queries: int, keys: int) -> tuple[Any, Any]:
    return torch.randn(2, 3, queries, 8), torch.randn(2, 3, keys, 8)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_lengths_need_not_differ_as_when_exported(name: str, strict: bool) -> None:
    call = CALLS[name]

    class Module(torch.nn.Module):  # type: ignore[misc]
        def forward(self, q: Any, k: Any) -> Any:
            return call(q, k)

    sizes = {"q": {2: Dim("n", min=2, max=99)}, "k": {2: Dim("m", min=2, max=99)}}
    exported = export(Module(), operands(5, 7), dynamic_shapes=sizes, strict=strict).module()
    for lengths in ((6, 6), (5, 7), (9, 4), (2, 30)):
        q, k = operands(*lengths)
        torch.testing.assert_close(exported(q, k), call(q, k))
