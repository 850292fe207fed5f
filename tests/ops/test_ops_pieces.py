"""Operators on a CPU, piece by piece: as by whole tensors, whatever the sizes, strides, dtypes and derivatives."""

from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from ops_problems import LAYOUTS, gradients, laid_out, leaf, randn

from einops_fast import ops
from einops_fast.backends.torch.ops import pieces as torch_pieces
from einops_fast.backends.torch.ops import row_losses as torch_row_losses
from einops_fast.backends.torch.ops import softmax as torch_softmax
from einops_fast.backends.torch.ops.cross_entropy import RowLoss
from einops_fast.backends.torch.ops.row_losses import losses_over_logits
from einops_fast.backends.torch.ops.softmax_pieces import gains_by_pieces, softmax_in_pieces

FUNCTIONS: list[Any] = [ops.softmax, ops.log_softmax]
SHAPE = (3, 4, 5)


@pytest.fixture(autouse=True)
def pieces() -> Iterator[Any]:
    """Of few elements, wherever they are possible; what they are given is counted."""
    gains = torch_softmax.gains_by_pieces
    with (
        # As if causality, which torch's functions don't have, hid something.
        mock.patch.object(torch_softmax, "gains_by_pieces", lambda x, mask, queries, wanted: gains(x, mask, 0, wanted)),
        mock.patch.object(torch_pieces, "_ELEMENTS", 7),
        mock.patch.object(torch_pieces, "_FEW_ROWS", 1),
        mock.patch("einops_fast.backends.torch.ops.softmax_pieces._LARGE", 0),
        mock.patch.object(torch_softmax, "softmax_in_pieces", wraps=softmax_in_pieces) as called,
    ):
        yield called


def whole() -> Any:
    return mock.patch.object(torch_softmax, "gains_by_pieces", return_value=False)


def numbers(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return randn(*shape, dtype=dtype, seed=seed).cpu()


def shown(*shape: int, emptied: bool = True) -> Any:
    found = numbers(*shape, seed=3) > -0.5
    if emptied:
        found[..., :1, :] = False
    return found


def added(*shape: int, dtype: str = "float32") -> Any:
    return numbers(*shape, dtype=dtype, seed=4).masked_fill(~shown(*shape), -torch.inf)


OPTIONS: dict[str, dict[str, Any]] = {
    "boolean": {"mask": shown(*SHAPE, emptied=False)},
    "a row emptied": {"mask": shown(*SHAPE), "temperature": 0.7},
    "of columns": {"mask": shown(1, 5, emptied=False)},
    "of rows": {"mask": shown(3, 4, 1)},
    "added": {"mask": added(*SHAPE)},
    "added, broadcast": {"mask": added(4, 5, dtype="bfloat16"), "temperature": 2.0},
    "added in more digits": {"mask": added(*SHAPE, dtype="float64")},
    "temperature": {"temperature": 0.3},
    "causal": {"causal": True},
    "causal, added": {"causal": "bottom_right", "mask": added(*SHAPE)},
    "causal, boolean": {"causal": True, "mask": shown(*SHAPE), "temperature": 3.0},
    "other dtype": {"dtype": torch.float32, "mask": shown(*SHAPE)},
}


def compare(function: Any, tensors: list[Any], pieces: Any) -> None:
    """Results, gradients and results without those."""
    found = gradients(function, tensors)
    with torch.no_grad():
        plain = function(*tensors)
    assert pieces.call_count == 2
    with whole():
        expected = gradients(function, tensors)
    for got, wanted in zip([found[0], plain], [expected[0]] * 2, strict=True):
        torch.testing.assert_close(got, wanted, equal_nan=True)
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        # Pieces keep the result as it is rounded for the gradients.
        few = found[0].dtype in (torch.float16, torch.bfloat16)
        most = {"rtol": 0.0, "atol": 8 * torch.finfo(found[0].dtype).eps} if few else {}
        torch.testing.assert_close(got, wanted, equal_nan=True, **most)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str, dtype: str, function: Any, pieces: Any) -> None:
    compare(partial(function, **OPTIONS[option]), [leaf(numbers(*SHAPE, dtype=dtype))], pieces)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_layouts(dtype: str, layout: str, dim: int, function: Any, pieces: Any) -> None:
    x, mask = leaf(laid_out(numbers(*SHAPE, dtype=dtype), layout)), leaf(laid_out(numbers(4, 5, seed=1), layout))
    compare(lambda x, mask: function(x, dim, mask=mask), [x, mask], pieces)
    found = function(x, dim, mask=mask)
    assert found.stride() == torch.empty_like(x.contiguous() if layout in ("sliced", "padded") else x).stride()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 2, 1, 9), (30, 1)])
def test_shapes(shape: tuple[int, ...], function: Any, pieces: Any) -> None:
    mask = numbers(*shape[-2:], seed=1) > -0.5
    compare(partial(function, mask=mask), [leaf(numbers(*shape))], pieces)
    expanded = numbers(*shape[:-1], 1).expand(shape)
    torch.testing.assert_close(function(expanded, mask=mask), function(expanded.contiguous(), mask=mask))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("options", [{"mask": shown(*SHAPE)}, {"causal": True}, {"mask": added(*SHAPE)}])
def test_what_is_not_finite(options: dict[str, Any], function: Any) -> None:
    """NaN and infinities in rows, hidden or not, and in gradients, also of hidden elements and empty rows."""
    x, back = numbers(*SHAPE), numbers(*SHAPE, seed=1)
    x[0, 1, 1], x[0, 2, 2], x[1, 3], x[2, 1, 4] = torch.nan, torch.inf, -torch.inf, torch.nan
    back[0, 0, 0], back[0, 3, 2], back[1, 1, 4], back[2, 2, 3] = torch.inf, torch.nan, torch.nan, torch.inf
    x = leaf(x)

    def run() -> list[Any]:
        found = function(x, **options)
        return [found, torch.autograd.grad(found, x, back)[0]]

    found, dx = run()
    with whole():
        expected, wanted = run()
    torch.testing.assert_close(found, expected, equal_nan=True)
    # Where the whole tensors leave 0 times infinity of what is hidden, there may be 0.
    hidden = found == (-torch.inf if function is ops.log_softmax else 0)
    torch.testing.assert_close(dx[~hidden], wanted[~hidden], equal_nan=True)
    assert bool((dx[hidden] == 0).all())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_derivatives(function: Any) -> None:
    x, mask, seen = leaf(numbers(3, 5, dtype="float64")), leaf(numbers(5, dtype="float64", seed=1)), shown(3, 5)

    def finite(x: Any, mask: Any) -> Any:
        by_numbers = function(x, mask=mask, temperature=2.0)
        return by_numbers + function(x, mask=seen, causal=True).nan_to_num(neginf=0.0)

    assert torch.autograd.gradcheck(finite, (x, mask))
    assert torch.autograd.gradgradcheck(finite, (x, mask))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_derivatives_of_few_digits(function: Any) -> None:
    """They go by way of what is kept before it is rounded."""
    mask = numbers(3, 5, seed=1)

    def second(x: Any) -> Any:
        (first,) = torch.autograd.grad((function(x, mask=mask).float() ** 2).sum(), x, create_graph=True)
        return torch.autograd.grad((first.float() ** 2).sum(), x)[0]

    x = numbers(3, 5, dtype="bfloat16")
    found, expected = second(leaf(x)), second(leaf(x.double()))
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_errors_of_few_digits(temperature: float, kind: str, dtype: str, function: Any) -> None:
    """Against float64, those of torch's functions in the same dtype are no smaller, whatever the mask's dtype."""
    native = getattr(torch, function.__name__)
    x, mask = leaf(3 * numbers(40, 50, dtype=dtype)), leaf(numbers(40, 50, dtype=kind, seed=1))
    back = numbers(40, 50, dtype=dtype, seed=2)

    def by_torch(x: Any, mask: Any) -> Any:
        return native(x / temperature + mask, -1).to(x.dtype)

    def run(function: Any, x: Any, mask: Any) -> list[Any]:
        found = function(x, mask)
        return [found, *torch.autograd.grad(found, (x, mask), back.to(found.dtype))]

    exact = run(by_torch, leaf(x.double()), leaf(mask.double()))
    ours, theirs = run(lambda x, mask: function(x, mask=mask, temperature=temperature), x, mask), run(by_torch, x, mask)
    for got, native_one, wanted in zip(ours, theirs, exact, strict=True):
        assert got.dtype == native_one.dtype
        error, allowed = ((each - wanted).detach().norm() for each in (got, native_one))
        assert error <= 1.05 * allowed


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(4, 5), (5,)])
def test_an_added_mask_may_hide_nothing(shape: tuple[int, ...], dtype: str, function: Any, pieces: Any) -> None:
    """Or something in some pieces only."""
    mask = numbers(*shape, dtype=dtype, seed=1)
    compare(partial(function, mask=mask), [leaf(numbers(*SHAPE, dtype=dtype))], pieces)
    x = numbers(*SHAPE, dtype=dtype)
    x[1, 2, 3] = -torch.inf
    found = leaf(x)
    back = torch.autograd.grad(function(found, mask=mask).exp().sum(), found)[0]
    assert back.isfinite().all()
    assert back[1, 2, 3] == 0


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_in_a_batch(function: Any) -> None:
    x, back = leaf(numbers(3, 5)), numbers(2, 3, 5, seed=1)
    result = function(x, mask=added(3, 5))
    found = torch.autograd.grad(result, x, back, is_grads_batched=True, retain_graph=True)[0]
    for got, each in zip(found, back, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(result, x, each, retain_graph=True)[0])


def test_memory_from_inference_mode() -> None:
    """What is kept is written to elsewhere, later."""
    x, mask = leaf(numbers(*SHAPE, dtype="bfloat16")), added(*SHAPE)
    torch_pieces._kept.rooms.clear()
    with torch.inference_mode():
        found = ops.softmax(x, mask=mask)
    torch.testing.assert_close(gradients(partial(ops.softmax, mask=mask), [x])[0], found.clone())


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("gradient", [False, True])
def test_losses_of_rows(gradient: bool, dtype: str) -> None:
    logits, target = numbers(9, 5, dtype=dtype), torch.arange(9) % 5
    target[2] = -100
    loss = RowLoss(numbers(5, seed=1).abs(), -100, 0.1, 0.2)
    back = numbers(9, seed=2) if gradient else None
    here, there = logits.clone(), logits.clone()
    found = losses_over_logits(loss, here, target, back)
    with mock.patch.object(torch_row_losses, "rows_of_piece", return_value=9):
        torch.testing.assert_close(found, losses_over_logits(loss, there, target, back))
    torch.testing.assert_close(here, there)
    assert torch.equal(here, logits) == (not gradient)


@pytest.mark.parametrize(
    ("options", "calls"),
    [
        ({"temperature": 2.0}, (0, 0)),
        ({"mask": numbers(*SHAPE)}, (0, 1)),
        ({"mask": numbers(5).double()}, (1, 2)),
        ({"mask": numbers(*SHAPE), "dtype": torch.float64}, (1, 2)),
        ({"mask": numbers(*SHAPE), "causal": True}, (1, 2)),
        ({"mask": added(*SHAPE)}, (1, 2)),
        ({"mask": shown(*SHAPE)}, (1, 2)),
    ],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_torch_does_as_fast_it_does(function: Any, options: dict[str, Any], calls: tuple[int, int]) -> None:
    """Nothing is hidden; beside numbers that are added, a gradient is needed."""
    x = numbers(*SHAPE)
    with (
        mock.patch.object(torch_softmax, "gains_by_pieces", gains_by_pieces),
        mock.patch.object(torch_softmax, "softmax_in_pieces", wraps=softmax_in_pieces) as called,
    ):
        recorded = function(leaf(x), **options)
        assert called.call_count == calls[0]
        assert torch.equal(function(x, **options), recorded)
        assert called.call_count == calls[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_gradients_beside_added_masks_that_hide_nothing_or_something(dtype: str) -> None:
    """Of hidden elements, logarithms have no gradient; of sums that overflow, they have one."""
    for mask in (added(*SHAPE, dtype=dtype), 1e4 * numbers(*SHAPE, dtype=dtype)):
        x = leaf(numbers(*SHAPE, dtype=dtype))
        with whole():
            found = ops.log_softmax(x, mask=mask)
        back = numbers(*SHAPE, dtype=dtype, seed=5)
        (got,) = torch.autograd.grad(found, x, back)
        score = leaf((x + mask).detach().double())
        (wanted,) = torch.autograd.grad(score.log_softmax(-1), score, back.double())
        hidden = mask == -torch.inf
        empty = hidden.all(-1, keepdim=True).expand(SHAPE)
        assert not got[hidden].any()
        wanted = (wanted + score.detach().softmax(-1) * back.double().masked_fill(~hidden, 0).sum(-1, True))[~hidden]
        torch.testing.assert_close(got[~hidden].double(), wanted, rtol=2e-2, atol=4e-2)
        assert bool(found[empty].isneginf().all())
