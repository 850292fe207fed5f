"""Masks that a program makes of sizes become a causal option or a window; others stay masks, with the same values."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fused_programs import Graphs, check, random_operands

import einops_fast
from einops_fast import fusions

Made = Callable[[int, int], Any]


def positions(m: int, n: int) -> tuple[Any, Any]:
    return torch.arange(m)[:, None], torch.arange(n)[None, :]


def band(m: int, n: int, before: int, after: int) -> Any:
    i, j = positions(m, n)
    return (j - i <= after) & (i - j <= before)


def written(m: int, n: int) -> Any:
    mask = torch.ones(m, n).tril()
    mask[0, 2] = 1
    return mask == 1


def view_written(m: int, n: int) -> Any:
    mask = torch.ones(m, n).tril()
    mask[0].fill_(1)
    return mask == 1


def added_before_it_is_written(m: int, n: int) -> Any:
    base = torch.zeros(m, n)
    before = base + 1
    written = base.fill_(2).tril()
    return (written * before) == 2


BANDS: dict[str, tuple[Made, Any, Any]] = {
    "causal": (lambda m, n: torch.ones(m, n, dtype=torch.bool).tril(), "top_left", None),
    "causal_by_numbers": (lambda m, n: positions(m, n)[0] - positions(m, n)[1] >= 0, "top_left", None),
    "causal_at_the_end": (lambda m, n: torch.ones(m, n).tril(n - m).bool(), "bottom_right", None),
    "window": (lambda m, n: band(m, n, 4, 0), "top_left", (4, None)),
    "both_sides": (lambda m, n: band(m, n, 3, 2), False, (3, 2)),
    "ahead": (lambda m, n: positions(m, n)[1] - positions(m, n)[0] < 5, False, (None, 4)),
    "combined": (lambda m, n: torch.ones(m, n).tril().triu(-6) != 0, "top_left", (6, None)),
    "added_before_it_is_written": (added_before_it_is_written, "top_left", None),
    "hides_nothing": (lambda m, n: torch.ones(m, n, dtype=torch.bool), False, None),
}
"""With the options of attention that they become."""

OTHERS: dict[str, Made] = {
    "written": written,
    "view_written": view_written,
    "first_key_always": lambda m, n: band(m, n, 3, 0) | (positions(m, n)[1] == 0),
    "every_other_key": lambda m, n: positions(m, n)[0] >= positions(m, n)[1] * 2,
    "anything_but_itself": lambda m, n: (positions(m, n)[0] != positions(m, n)[1]) | (positions(m, n)[1] == 0),
    "dilated": lambda m, n: torch.ones(m, n).tril().bool() & ((positions(m, n)[0] - positions(m, n)[1]).abs() != 2),
}

CHANGING: dict[str, Made] = {
    "remainder": lambda m, n: torch.ones(m, n).tril(n % 4 - 1).bool() | (positions(m, n)[1] == 0),
    "part": lambda m, n: torch.ones(m, n).tril(n // 30).bool(),
    "at_most": lambda m, n: torch.ones(m, n).tril(max(n - 30, 0)).bool(),
    "half": lambda m, n: band(m, n, n // 2, 0),
    "in_few_bits": lambda m, n: (
        (positions(m, n)[0].to(torch.int8) >= positions(m, n)[1].to(torch.int8)) | (positions(m, n)[1] == 0)
    ),
    "rounded": lambda m, n: positions(m, n)[0].bfloat16() * 1.0 >= positions(m, n)[1],
    "scaled": lambda m, n: (positions(m, n)[0] - positions(m, n)[1]) * 0.01 < 0.305,
}
"""Which are bands for some sizes, or another one for each."""


def calls_of(make: Made, dynamic: bool, lengths: list[tuple[int, int]], how: str) -> list[Any]:
    """Check values and gradients, and return what attention was called with."""
    graphs = Graphs()

    def program(q: Any, k: Any, v: Any) -> Any:
        mask = make(q.shape[1], k.shape[1])
        scores = q @ k.mT
        if how == "added":
            scores = scores + torch.zeros(mask.shape).masked_fill(~mask, float("-inf"))
        elif how == "gate":
            gate = mask.to(q.dtype)
            scores = scores * gate - 1e10 * (1 - gate)
        else:
            scores = torch.where(mask, scores, -1e9)
        return scores.softmax(-1) @ v

    operands = [random_operands(*[(2, size, 3) for size in (m, n, n)]) for m, n in lengths]
    check(program, *operands, then=graphs, dynamic=dynamic)
    return [node.kwargs for node in graphs.calls("call_attention")]


SQUARE = [(33, 33), (40, 40), (7, 7)]
WIDE = [(9, 33), (21, 40), (5, 70)]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", BANDS)
def test_a_band_is_an_option(name: str, dynamic: bool) -> None:
    make, causal, window = BANDS[name]
    lengths = [*(SQUARE if name != "causal_at_the_end" else []), *WIDE]
    (call, *_) = calls_of(make, dynamic, lengths if dynamic else lengths[:1], "where")
    assert (call["causal"], call["window"]) == (causal, window)


@pytest.mark.parametrize("how", ["added", "gate"])
@pytest.mark.parametrize("name", ["causal", "both_sides"])
def test_a_band_is_an_option_however_it_is_used(name: str, how: str) -> None:
    make, causal, window = BANDS[name]
    (call,) = calls_of(make, False, SQUARE[:1], how)
    assert (call["causal"], call["window"]) == (causal, window)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_another_mask_stays_one(name: str, dynamic: bool) -> None:
    (call, *_) = calls_of(OTHERS[name], dynamic, SQUARE if dynamic else SQUARE[:1], "where")
    assert (call["causal"], call["window"]) == (False, None)


@pytest.mark.parametrize("name", CHANGING)
def test_what_is_a_band_for_some_sizes_stays_a_mask(name: str) -> None:
    (call, *_) = calls_of(CHANGING[name], True, [*SQUARE, (50, 50), (300, 300)], "where")
    assert (call["causal"], call["window"]) == (False, None)


def is_as_written(program: Any, *given: Any, **options: Any) -> None:
    """Check values, and gradients of the attention's values, beside the program's own in float32, where sums round."""
    torch._dynamo.reset()
    with fusions() as log:
        found = einops_fast.compile(program, then="eager", **options)(*given)
    assert len(log.fused) == 1, str(log)
    expected = program(*given)
    torch.testing.assert_close(found, expected)
    weights = torch.linspace(-1, 2, found.numel()).view(found.shape)
    own, native = [torch.autograd.grad((each * weights).sum(), given[2]) for each in (found, expected)]
    torch.testing.assert_close(own, native)


HIDDEN_BY_NUMBERS: dict[str, tuple[int, ...]] = {
    "every axis": (2, 3, 6, 7),
    "one for all heads": (2, 1, 6, 7),
    "one for all queries": (2, 1, 1, 7),
    "no batch": (6, 7),
}


@pytest.mark.parametrize("shape", HIDDEN_BY_NUMBERS.values(), ids=HIDDEN_BY_NUMBERS)
@pytest.mark.parametrize("least", [-1e12, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_values_in_rows_that_numbers_of_a_tensor_hide(
    shape: tuple[int, ...], least: float, dynamic: bool
) -> None:
    """Beside such a number, the log-sum-exp that weights of the backward pass are made of is rounded."""
    q, k, v = random_operands((2, 3, 6, 4), (2, 3, 7, 4), (2, 3, 7, 4))
    bias = torch.zeros(shape)
    bias[..., 2:] = least  # of all rows, some keys
    bias[0] = least  # of some rows, all keys

    def program(q: Any, k: Any, v: Any, bias: Any) -> Any:
        return ((q @ k.mT) / 2 + bias).softmax(-1) @ v

    is_as_written(program, q, k, v, bias, dynamic=dynamic)


LEAST = torch.finfo(torch.float32).min


def hidden_twice(q: Any, k: Any, v: Any, padding: Any, causal: Any) -> Any:
    return (q @ k.mT + causal + padding).softmax(-1) @ v


def hidden_by_infinity(q: Any, k: Any, v: Any, padding: Any, causal: Any) -> Any:
    scores = q @ k.mT + padding.expand(2, 1, 6, 6)
    return scores.masked_fill(~torch.ones(6, 6, dtype=torch.bool).tril(), float("-inf")).softmax(-1) @ v


def hidden_by_the_same(q: Any, k: Any, v: Any, padding: Any, causal: Any) -> Any:  # as GPT-Neo does
    scores = torch.where(torch.ones(6, 6, dtype=torch.bool).tril(), q @ k.mT, LEAST)
    return (scores + torch.minimum(padding, causal)).softmax(-1) @ v


def hidden_for_shared_queries(q: Any, k: Any, v: Any, padding: Any, causal: Any) -> Any:
    return (torch.matmul(q[0].expand(2, 3, 6, 4), k.mT) + causal + padding).softmax(-1) @ v


def hidden_with_logarithms(q: Any, k: Any, v: Any, padding: Any, causal: Any) -> Any:
    scores = q @ k.mT + (causal + padding)
    return torch.cat([scores.softmax(-1) @ v, scores.logsumexp(-1, keepdim=True) / LEAST], -1)


@pytest.mark.parametrize("most", [1, 6])
@pytest.mark.parametrize("least", [-1e9, LEAST])
@pytest.mark.parametrize(
    "program",
    [hidden_twice, hidden_by_infinity, hidden_by_the_same, hidden_for_shared_queries, hidden_with_logarithms],
)
def test_rows_whose_keys_are_hidden_for_several_reasons(program: Any, least: float, most: int) -> None:
    """As in sequences that are padded at their beginning: the keys that are hidden the least share the weight."""
    q, k, v = random_operands(*[(2, 3, 6, 4)] * 3)
    padding = torch.zeros(2, 1, 1, 6)
    padding[1, ..., :most] = least
    padding.requires_grad_(program is hidden_with_logarithms)
    causal = torch.full((6, 6), least).triu(1)
    is_as_written(program, q, k, v, padding, causal)
