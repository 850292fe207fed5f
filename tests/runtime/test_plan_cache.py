"""Plans that are kept: calls that come back, with however many shapes, are found without being read again."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any
from unittest import mock

import pytest
import torch

from einops_fast import attention, fast_einsum
from einops_fast.attention import attend
from einops_fast.backends.numpy import NumpyBackend
from einops_fast.backends.torch.backend import TorchBackend
from einops_fast.runtime.plan_cache import clear_plans

PATTERN = "b h i d, b h j d, b h j e -> b h i e"

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def nothing_planned() -> None:
    clear_plans()


def product(x: Any, y: Any) -> Any:
    return fast_einsum("bij,bkj->bik", x, y)


def attended(q: Any, k: Any, v: Any) -> Any:
    return attention(PATTERN, q, k, v)


def of_numpy(x: Any, y: Any) -> Any:
    """Reversed, and so many elements that no loops take them."""
    return torch.from_numpy(fast_einsum("bij,bkj->bik", *[each.detach().numpy()[..., ::-1] for each in (x, y)]))


def operands(count: int, length: int, **options: Any) -> list[Any]:
    shape = (2, length, 128) if count == 2 else (2, 3, length, 8)
    return [torch.randn(shape, dtype=torch.float64, **options) for _ in range(count)]


def expected(given: Sequence[Any]) -> Any:
    q, k, *v = [each.detach() for each in given]
    return torch.softmax(q @ k.mT / 8**0.5, -1) @ v[0] if v else q @ k.mT


def careful_ways() -> Any:
    """What a call goes through that isn't found."""
    return mock.patch.multiple(
        attend, read_call=mock.Mock(side_effect=AssertionError), attend=mock.Mock(side_effect=AssertionError)
    )


def no_look_up(backend: type) -> Any:
    return mock.patch.object(backend, "signature", side_effect=AssertionError)


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("shapes", [1, 12])
@pytest.mark.parametrize(("call", "count"), [(product, 2), (of_numpy, 2), (attended, 3)])
def test_many_shapes_and_one_tensor_twice_are_found(call: Call, count: int, shapes: int, gradients: bool) -> None:
    every = [operands(count, length, requires_grad=gradients) for length in range(3, 3 + shapes)]
    every += [[*given[:-1], given[-2]] for given in every]
    for _ in range(3):
        for given in every:
            torch.testing.assert_close(call(*given).detach(), expected(given))
    with careful_ways(), no_look_up(TorchBackend), no_look_up(NumpyBackend):
        for given in every:
            torch.testing.assert_close(call(*given).detach(), expected(given))


@pytest.mark.parametrize("shapes", [1, 6])
def test_more_layouts_than_are_kept(shapes: int) -> None:
    """Of six layouts of one shape, four are kept; all are right."""
    for _ in range(3):
        for size in range(2, 2 + shapes):
            for order in permutations(range(3)):
                x = torch.randn(size, size, size).permute(order)
                torch.testing.assert_close(product(x, x), expected((x, x)))
                torch.testing.assert_close(product(x, x.clone()), expected((x, x)))


def test_nested_tensors_after_many_shapes() -> None:
    pattern = "b i h d, b j h d, b j h e -> b i h e"
    for length in range(3, 15):
        attention(pattern, *[torch.randn(2, length, 3, 8) for _ in range(3)])
    rows = [torch.randn(length, 3, 8) for length in (3, 5)]
    found = attention(pattern, *[torch.nested.nested_tensor(rows, layout=torch.jagged) for _ in range(3)])
    for own, row in zip(found.unbind(), rows, strict=True):
        heads = row.movedim(1, 0)
        torch.testing.assert_close(own.movedim(1, 0), torch.softmax(heads @ heads.mT / 8**0.5, -1) @ heads)
