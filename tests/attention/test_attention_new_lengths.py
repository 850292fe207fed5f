"""Attention whose lengths change from call to call, on a CPU: right for any, and planned where lengths come back."""

from typing import Any

import pytest
import torch

from einops_fast import attention, scaled_dot_product_attention
from einops_fast.attention import attend
from einops_fast.runtime.plan_cache import clear_plans


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    clear_plans()


def plain(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1) @ v


CALLS = {
    "bhsd": (lambda q, k, v: attention(q, k, v, layout="bhsd"), (0, 1, 2, 3)),
    "bshd": (lambda q, k, v: attention(q, k, v, layout="bshd"), (0, 2, 1, 3)),
    "words": (lambda q, k, v: attention("b h d i, b h d j, b h e j -> b h e i", q, k, v), (0, 1, 3, 2)),
    "torch's name": (scaled_dot_product_attention, (0, 1, 2, 3)),
}


def plans(name: str, sizes: list[tuple[int, ...]]) -> list[int]:
    """How many calls are planned after each of these calls, which are right."""
    (call, order), found = CALLS[name], []
    for batch, heads, q_len, kv_len, head_dim in sizes:
        q = torch.randn(batch, heads, q_len, head_dim, dtype=torch.float64)
        k, v = torch.randn(2, batch, heads, kv_len, head_dim, dtype=torch.float64)
        result = call(*[each.permute(order).contiguous() for each in (q, k, v)])
        torch.testing.assert_close(result.permute(order), plain(q, k, v))
        found.append(len(attend._calls))
    return found


@pytest.mark.parametrize("name", CALLS)
def test_every_length_is_right_and_planned_when_it_comes_back(name: str) -> None:
    sizes = [(2, 4, 5, 7, 8), (2, 4, 6, 6, 8), (2, 4, 1, 9, 8), (3, 2, 9, 1, 4), (1, 1, 3, 2, 8), (2, 4, 5, 7, 8)]
    planned = plans(name, sizes * 2)
    assert planned[:5] == [1, 2, 2, 2, 2]
    assert planned[-1] == 5


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("single", [(1, 4), (3, 1)])
def test_one_sequence_or_one_head_is_not_planned_for_each_length(name: str, single: tuple[int, int]) -> None:
    kinds = [each for each in (single, single, single, (3, 2), (1, 1)) for _ in range(2)]
    planned = plans(
        name, [(*kind, 1 if at % 2 else 5 + at, 4 + at if at % 2 else 7, 8) for at, kind in enumerate(kinds)]
    )
    assert planned[2:] == [planned[2]] * 8
    assert planned[2] <= 3


OTHERS = {
    "gradients": lambda q, k: (q.requires_grad_(), k, k),
    "dtype": lambda q, k: (q.float(), k.float(), k.float()),
    "shared heads": lambda q, k: (q, k[:, :2], k[:, :2]),
    "width of v": lambda q, k: (q, k, k[..., :4]),
    "strides": lambda q, k: (q.mT.contiguous().mT, k, k),
    "no keys": lambda q, k: (q, k[:, :, :0], k[:, :, :0]),
}


@pytest.mark.parametrize("other", OTHERS)
def test_operands_of_another_kind(other: str) -> None:
    for length in (3, 4, 5):
        q = torch.randn(2, 4, length, 8, dtype=torch.float64)
        attention(q, q, q, layout="bhsd")
    q, k, v = OTHERS[other](torch.randn(2, 4, 6, 8).double(), torch.randn(2, 4, 7, 8).double())
    found = attention(q, k, v, layout="bhsd")
    heads = q.shape[1] // k.shape[1]
    wide = k.repeat_interleave(heads, 1), v.repeat_interleave(heads, 1)
    torch.testing.assert_close(found, plain(q, *wide))


def test_a_scale_holds_for_all_widths() -> None:
    for width in (16, 16, 16, 4):
        q = torch.randn(2, 3, 5 + width, width)
        for _ in range(2):
            q = q[:, :, 1:].contiguous()
            expected = torch.nn.functional.scaled_dot_product_attention(q, q, q, scale=0.25)
            torch.testing.assert_close(attention(q, q, q, layout="bhsd", scale=0.25), expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_call_that_comes_back_is_not_read_again(monkeypatch: pytest.MonkeyPatch, autocast: bool) -> None:
    """Nor under autocast, where it has nothing to convert."""
    q, k, v = torch.randn(3, 2, 4, 5, 8, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        wanted = [attention(q, k, v, layout="bhsd") for _ in range(2)]
        with monkeypatch.context() as patch:
            patch.setattr(attend, "read_call", None)
            torch.testing.assert_close(attention(q, k, v, layout="bhsd"), wanted[0])
        wide = attention(q.float(), k, v, layout="bhsd") if autocast else q
        assert wide.dtype == torch.bfloat16
