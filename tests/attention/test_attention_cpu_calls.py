"""Calls on a CPU that are asked in the same words: looked up without being read again, and never the wrong one."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as native

from einops_fast import OperandError, attention, attention_backend, scaled_dot_product_attention
from einops_fast.attention import attend, drop_in
from einops_fast.backends.torch.attention.implementations import cpu
from einops_fast.runtime.plan_cache import clear_plans

P = "b h i d, b g j d, b g j e -> b h i e"
Q_MASK = torch.arange(12).reshape(3, 4) % 3 > 0


def randn(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def operands(dtype: Any = torch.float32, heads: int = 4) -> list[Any]:
    shapes = (2, heads, 3, 8), (2, heads, 4, 8), (2, heads, 4, 8)
    return [randn(*shape, seed=at, dtype=dtype) for at, shape in enumerate(shapes)]


def turned(*arrays: Any) -> list[Any]:
    return [each.transpose(1, 2).contiguous() for each in arrays]


# name -> ours and torch's own of the same arrays
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "pattern": (lambda q, k, v: attention(P, q, k, v), native),
    "causal": (
        lambda q, k, v: attention(P, q, k, v, causal=True, scale=0.3),
        lambda q, k, v: native(q, k, v, is_causal=True, scale=0.3),
    ),
    "layout": (lambda q, k, v: attention(q, k, v, layout="bhsd"), native),
    "other layout": (
        lambda q, k, v: attention(*turned(q, k, v), layout="bshd").transpose(1, 2),
        lambda q, k, v: native(*[each.transpose(1, 2) for each in turned(q, k, v)]),
    ),
    "no batch": (
        lambda q, k, v: attention("h i d, h j d, h j e -> i h e", q[0], k[0], v[0]),
        lambda q, k, v: native(q[:1], k[:1], v[:1])[0].transpose(0, 1),
    ),
    "shared heads": (
        lambda q, k, v: attention(P, q, k[:, :2], v[:, :2]),
        lambda q, k, v: native(q, k[:, :2], v[:, :2], enable_gqa=True),
    ),
    "drop-in, shared heads": (
        lambda q, k, v: scaled_dot_product_attention(q, k[:, :2], v[:, :2], enable_gqa=True),
        lambda q, k, v: native(q, k[:, :2], v[:, :2], enable_gqa=True),
    ),
    "mask": (
        lambda q, k, v: attention(P, q, k, v, mask=Q_MASK),
        lambda q, k, v: native(q, k, v, Q_MASK),
    ),
    "mask of keys": (
        lambda q, k, v: attention(P, q, k, v, mask=Q_MASK[:1]),
        lambda q, k, v: native(q, k, v, Q_MASK[:1]),
    ),
    "bias": (
        lambda q, k, v: attention(P, q, k, v, bias=randn(4, 3, 4, dtype=q.dtype)),
        lambda q, k, v: native(q, k, v, randn(4, 3, 4, dtype=q.dtype)[None]),
    ),
    "drop-in": (scaled_dot_product_attention, native),
    "drop-in, causal": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: native(q, k, v, is_causal=True),
    ),
    "drop-in, mask": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, Q_MASK),
        lambda q, k, v: native(q, k, v, Q_MASK),
    ),
    "drop-in, bias": (
        lambda q, k, v: scaled_dot_product_attention(q, k, v, randn(3, 4, dtype=q.dtype)),
        lambda q, k, v: native(q, k, v, randn(3, 4, dtype=q.dtype)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_second_call_is_not_read_and_is_torch_s_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = CALLS[name]
    clear_plans()
    arrays = operands()
    assert torch.equal(ours(*arrays), theirs(*arrays))
    for module in (attend, drop_in):
        monkeypatch.setattr(module, "attend", None)
    arrays = [each + 1 for each in arrays]
    assert torch.equal(ours(*arrays), theirs(*arrays))


@pytest.mark.parametrize("name", CALLS)
def test_arrays_of_another_kind_are_another_call(name: str) -> None:
    ours, theirs = CALLS[name]
    clear_plans()
    variants = [operands(), operands(torch.float64), operands(torch.bfloat16), operands(heads=2)]
    if name == "bias":
        variants.pop()
    variants.append([each.transpose(2, 3).contiguous().transpose(2, 3) for each in variants[0]])
    variants.append([each.clone().requires_grad_() for each in variants[0]])
    for arrays in (*variants, *variants):
        torch.testing.assert_close(ours(*arrays), theirs(*arrays))
    recorded = variants[-1]
    assert ours(*recorded).requires_grad
    with torch.no_grad():
        assert not ours(*recorded).requires_grad
    gradients = [torch.autograd.grad(call(*recorded).square().sum(), recorded) for call in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", ["pattern", "mask", "drop-in"])
def test_circumstances_take_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = CALLS[name]
    arrays = operands()
    clear_plans()
    ours(*arrays)
    read = []
    kept = attend.attend
    for module in (attend, drop_in):
        monkeypatch.setattr(module, "attend", lambda *given: read.append(given) or kept(*given))
    ours(*arrays)
    assert not read
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(*arrays).dtype == torch.bfloat16
        assert ours(*arrays).dtype == torch.bfloat16
    assert ours(*arrays).dtype == torch.float32
    assert len(read) == 2
    with attention_backend("math"):
        torch.testing.assert_close(ours(*arrays), theirs(*arrays))
    assert len(read) == 3
    with pytest.raises(Exception, match="no implementation"), attention_backend("flash"):
        ours(*arrays)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(ours(*arrays), theirs(*arrays))
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(read) == 5
    ours(*arrays)
    assert len(read) == 5


def as_numpy(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: as_numpy(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(as_numpy, value))
    return value.numpy() if isinstance(value, torch.Tensor) else value


SQUARE, SLOPES = randn(4, 4, 4)[:, :3], torch.tensor([0.5, 2.0, 1.0, 0.1])
ALIKE: list[dict[str, Any]] = [
    {"window": (1, 0)}, {"window": 1}, {"mask": Q_MASK}, {"mask": ("j i", Q_MASK.T)}, {"mask": Q_MASK, "bias": SQUARE},
    {"bias": SQUARE}, {"bias": ("h i j", SQUARE)}, {"bias": ("j i h", SQUARE.permute(2, 1, 0).contiguous())},
    {"alibi_slopes": SLOPES}, {"sinks": SLOPES}, {"return_lse": True},
]  # fmt: skip


def test_words_that_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = operands()
    clear_plans()
    number, side = torch.tensor(0.5), torch.tensor(1)

    expected = [attention(P, *as_numpy((q, k, v)), **as_numpy(options)) for options in ALIKE]

    def check() -> None:
        found = [as_numpy(attention(P, q, k, v, **options)) for options in ALIKE]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    check()
    read = mock.Mock(side_effect=attend.read_call)
    monkeypatch.setattr(attend, "read_call", read)
    check()
    assert not read.call_count
    # What is in an array may change, so nothing of it is kept.
    for numbers in ((0.5, 1), (0.25, 5)):
        number.fill_(numbers[0])
        side.fill_(numbers[1])
        found = attention(P, q, k, v, scale=number, window=(side, 0))
        torch.testing.assert_close(found, attention(P, q, k, v, scale=numbers[0], window=(numbers[1], 0)))


def test_a_mask_whose_axes_are_copied_to_become_one() -> None:
    """Its copy may have the sizes and strides that it has itself, in another order of axes."""
    arrays = [randn(2, 2, 2, 3, 8, seed=at) for at in range(3)]
    mask = torch.tensor([[True, False], [True, True]]).reshape(1, 2, 2, 1, 1) & torch.ones(1, 1, 1, 3, 3, dtype=bool)
    pattern = "a b c i d, a b c j d, a b c j e -> a b c i e"
    expected = native(*[each.flatten(0, 1) for each in arrays], mask.expand(2, 2, 2, 3, 3).flatten(0, 1))
    for _ in range(2):
        torch.testing.assert_close(attention(pattern, *arrays, mask=mask), expected.unflatten(0, (2, 2)))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """The arrays of each call that torch's function gets."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(cpu, "native", lambda *arrays, **options: found.append(arrays) or native(*arrays, **options))
    monkeypatch.setattr(attend, "_calls", {})
    clear_plans()
    yield found
    clear_plans()


def axes_of(calls: list[tuple[Any, ...]]) -> list[list[int]]:
    return [[array.dim() for array in arrays] for arrays in calls]


@pytest.mark.parametrize("kind", ["bias", "mask"])
@pytest.mark.parametrize(("term", "axes"), [("h i j", 4), ("i j", 2), ("b i j", 4), ("b h i j", 4), ("b j", 4)])
def test_biases_and_masks_have_the_axes_that_torch_is_fast_with(
    kind: str, term: str, axes: int, seen: list[tuple[Any, ...]]
) -> None:
    """With three it would make all scores: five times as long."""
    sizes = {"b": 2, "h": 4, "i": 3, "j": 5}
    q, k = randn(2, 4, 3, 8), randn(2, 4, 5, 8, seed=1)
    extra = randn(*(sizes[letter] for letter in term.split()), seed=2)
    extra = extra if kind == "bias" else extra > -1
    whole = extra[tuple(slice(None) if letter in term else None for letter in "bhij")]
    expected = native(q, k, k, whole.expand(2, 4, 3, 5))
    for _ in range(2):
        found = attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, **{kind: (term, extra)})
        torch.testing.assert_close(found, expected)
    assert axes_of(seen) == [[4, 4, 4, axes]] * 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", [{"mask": ("i j", None)}, {"window": (9, 3)}, {"causal": "bottom_right"}])
def test_many_elements_of_a_mask_become_numbers_here(
    options: dict[str, Any], dtype: Any, monkeypatch: pytest.MonkeyPatch, seen: list[tuple[Any, ...]]
) -> None:
    """Rows without keys among them."""
    q, k = randn(1, 2, 60, 8, dtype=dtype), randn(1, 2, 90, 8, dtype=dtype, seed=1)
    allowed = randn(60, 90, seed=2) > 0
    allowed[7] = False
    distance = torch.arange(90) - torch.arange(60)[:, None]
    if "window" in options:
        allowed = (distance >= -9) & (distance <= 3)
    elif "causal" in options:
        allowed = distance <= 30
    else:
        options = {"mask": ("i j", allowed)}
    expected = native(q, k, k, allowed)
    monkeypatch.setattr(cpu, "_MANY", 60 * 90)
    for _ in range(2):
        torch.testing.assert_close(attention("b h i d, b h j d, b h j e -> b h i e", q, k, k, **options), expected)
    assert [arrays[3].dtype for arrays in seen] == [dtype] * 2


@pytest.mark.parametrize("lead", [(4,), (2, 1, 2), (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_in_low_precision_are_as_exact_as_torchs_for_any_number_of_axes(dtype: Any, lead: Any) -> None:
    """Where one key has nearly all the weight, errors of a rounded result don't cancel."""
    torch.manual_seed(0)
    operands = [torch.randn(*lead, 33, 64).to(dtype) for _ in range(4)]
    bias = torch.randn(33, 33) * 20

    def gradients(call: Any, to: Any) -> Any:
        q, k, v, seed = [each.to(to) for each in operands]
        leaves = [each.requires_grad_() for each in (q, k, v)]
        result = call(*leaves, attn_mask=bias.to(to if to == torch.float64 else torch.float32))
        return torch.autograd.grad(result, leaves, seed)

    exact = gradients(native, torch.float64)
    pairs = zip(gradients(scaled_dot_product_attention, dtype), gradients(native, dtype), exact, strict=True)
    for found, theirs, wanted in pairs:
        assert (found - wanted).abs().mean() <= 2 * (theirs - wanted).abs().mean()


@pytest.mark.parametrize("transform", ["call", "compiled", "recorded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 1, 0), (0, 2, 1, 4, 3), (3, 1, 0, 2, 4)])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "bias", "gradients"])
def test_of_three_and_five_axes_the_result_is_contiguous(
    kind: str, order: tuple[int, ...], dtype: Any, transform: str
) -> None:
    """As torch's own is, however q lies: it can be viewed as anything."""

    def given(length: int) -> Any:
        shape = (*(2, 3, 2)[: len(order) - 2], length, 8)
        lying = randn(*[shape[axis] for axis in order], seed=length, dtype=dtype)
        return lying.permute([order.index(axis) for axis in range(len(order))]).requires_grad_(kind == "gradients")

    options: dict[str, Any] = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.arange(30).reshape(5, 6) % 4 > 0},
        "bias": {"attn_mask": randn(5, 6, dtype=dtype)},
    }.get(kind, {})

    def flat(q: Any, k: Any, v: Any) -> Any:
        return scaled_dot_product_attention(q, k, v, **options).view(-1)

    operands = given(5), given(6), given(6)
    run: Callable[..., Any] = flat
    if transform == "compiled":
        torch.compiler.reset()
        run = torch.compile(flat, backend="eager")
    elif transform == "recorded":
        run = torch.jit.trace(flat, operands, check_trace=False)
    for _ in range(2):
        expected = native(*operands, **options).view(-1)
        torch.testing.assert_close(run(*operands), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("bad", [None, [1.0], "k", 3])
def test_what_is_no_tensor_is_told_after_many_lengths(bad: Any) -> None:
    def call(q: Any, k: Any, v: Any) -> Any:
        return attention(q, k, v, layout="bhsd")

    for length in (3, 4, 5, 6):
        q, k = randn(2, 4, length, 8), randn(2, 4, length + 1, 8)
        call(q, k, k)
    with pytest.raises(OperandError, match=f"^v is of type {type(bad).__name__}, not an array of torch"):
        call(q, k, bad)
