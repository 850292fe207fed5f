"""Gradients of queries, keys and values that are parts of one tensor: they are parts of one, too."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from attention_problems import DEVICE, randn, whole_calls

from einops_fast import attention, attention_backend, ops
from einops_fast.attention.packed import apart
from einops_fast.backends.torch.attention.layouts import layout_of, neighbouring

ENDS = (0, 4, 9)

PACKED: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "bs3hd": ((2, 9, 3, 2, 16), {"causal": True}),
    "sb3hd": ((9, 2, 3, 2, 16), {}),
    "t3hd": ((9, 3, 2, 16), {"cu_seqlens_q": torch.tensor(ENDS, device=DEVICE, dtype=torch.int32)}),
    "3bhsd": ((3, 2, 2, 9, 16), {"softcap": 2.0}),
    "bs3hd, one head": ((2, 9, 3, 1, 16), {}),
}


@pytest.fixture(autouse=True)
def by_kernels() -> Iterator[None]:
    with whole_calls():
        yield


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of torch's functions that were asked to put tensors together."""
    called: list[str] = []
    for name in ("stack", "cat"):
        original = getattr(torch, name)

        def recorded(*arguments: Any, name: str = name, original: Any = original) -> Any:
            called.append(name)
            return original(*arguments)

        monkeypatch.setattr(torch, name, recorded)
    return called


def close(found: Any, expected: Any) -> bool:
    error = float((found.detach() - expected.detach()).abs().max())
    return error <= 3e-5 * max(1.0, float(expected.detach().abs().max()))


def gradients(way: str, call: Callable[[], Any], *leaves: Any, **options: Any) -> tuple[Any, ...]:
    """Gradients of the leaves, by one implementation of attention."""
    with attention_backend(way):
        found = call()
    return torch.autograd.grad(found, leaves, randn(*found.shape, seed=1), **options)


def check_gradients(call: Callable[[], Any], *leaves: Any, joined: list[str] | None = None, first: Any = ()) -> None:
    """They are those of the reference; of the kernels, nothing is put together but what comes ``first``."""
    found = gradients("triton", call, *leaves)
    assert joined is None or joined == [*first]
    assert all(close(*pair) for pair in zip(found, gradients("math", call, *leaves), strict=True))


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("turned", [False, True])
def test_the_gradient_of_a_packed_array_is_not_put_together(name: str, turned: bool, joined: list[str]) -> None:
    shape, options = PACKED[name]
    packed = randn(*shape)
    if turned:  # features slowest: then it's the general kernels' in any case
        packed = packed.movedim(-1, 0).contiguous().movedim(0, -1)
    packed.requires_grad_()

    def call() -> Any:
        return attention(packed, layout=name.split(",")[0], **options)

    check_gradients(call, packed, joined=joined)
    assert "stack" in joined
    assert gradients("triton", call, packed)[0].stride() == packed.stride()


def test_heads_that_share(joined: list[str]) -> None:
    x, weight = randn(2, 7, 32).requires_grad_(), randn(4 * 16 + 2 * 2 * 16, 32, seed=1).requires_grad_()
    check_gradients(
        lambda: ops.qkv_self_attention(x, 4, weight, num_kv_heads=2, is_causal=True), x, weight, joined=joined
    )
    assert "cat" in joined


def test_one_is_wanted_in_other_ways_too(joined: list[str]) -> None:
    packed = randn(2, 9, 3, 2, 16).requires_grad_()

    def call() -> Any:
        q, k, v = apart(packed, 2)
        return attention("bihd,bjhd,bjhe->bihe", q, k, v) * k

    # The gradient of k is a sum now, and lies elsewhere.
    check_gradients(call, packed, joined=joined, first=["stack"])


def test_some_have_no_gradient() -> None:
    packed = randn(2, 9, 3, 2, 16).requires_grad_()

    def call() -> Any:
        q, k, v = apart(packed, 2)
        return attention("bihd,bjhd,bjhe->bihe", q, k.detach(), v)

    check_gradients(call, packed)


def test_gradients_of_gradients_go_through_the_joint() -> None:
    packed = randn(2, 9, 3, 2, 16).requires_grad_()

    def twice(way: str) -> Any:
        (first,) = gradients(way, lambda: attention(packed, layout="bs3hd"), packed, create_graph=True)
        return torch.autograd.grad(first.square().sum(), packed)[0]

    assert close(twice("triton"), twice("math"))


def test_forward_mode() -> None:
    packed, direction = randn(2, 9, 3, 2, 16).requires_grad_(), randn(2, 9, 3, 2, 16, seed=1)

    def tangent(split: Any) -> Any:
        with torch.autograd.forward_ad.dual_level():
            q, k, v = split(torch.autograd.forward_ad.make_dual(packed, direction))
            return torch.autograd.forward_ad.unpack_dual(q * k + v).tangent

    assert close(tangent(lambda dual: apart(dual, 2)), tangent(lambda dual: dual.unbind(2)))


def test_parts_are_views() -> None:
    packed = randn(2, 3, 4).requires_grad_()
    for axis, sizes, shapes in ((1, None, [(2, 4)] * 3), (-1, (3, 1), [(2, 3, 3), (2, 3, 1)])):
        parts = apart(packed, axis, sizes)
        assert [part.shape for part in parts] == shapes
        assert all(part.untyped_storage().data_ptr() == packed.data_ptr() for part in parts)
        assert all(part.requires_grad for part in parts)


def test_which_layouts_are_neighbours() -> None:
    def steps(*parts: Any) -> dict[tuple[int, ...], int]:
        return neighbouring([layout_of(part) for part in parts])

    packed = torch.empty(2, 9, 3, 4, 16)
    assert steps(*packed.unbind(2)) == {(64, 64): packed.numel()}
    heads = torch.empty(2, 9, 8, 16).split((4, 2, 2), 2)
    assert steps(*heads) == {(64, 32): 2 * 9 * 8 * 16}
    whole = torch.empty(3, 5, 7)
    assert steps(*whole.unbind(0)) == {(35, 35): 105}
    # With gaps, expanded, or of other shapes.
    assert not steps(*torch.empty(2, 9, 4, 4, 16)[:, :, :3].unbind(2))
    assert not steps(*torch.empty(1, 1, 3).expand(4, 5, 3).unbind(2))
    assert not steps(whole[0], whole[1], whole[2, :, :6])
    assert not steps(whole[0], whole[1], whole[2].mT)
