"""What attention on a CPU has beyond torch's function: the log of the denominator, and gradients of all of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.utils.checkpoint import checkpoint

from einops_fast import attention, attention_backend, explain_attention
from einops_fast.attention import attend
from einops_fast.attention.memory import score_memory
from einops_fast.backends.torch.attention.implementations import cpu
from einops_fast.backends.torch.attention.implementations.cpu_gradients import TRIED
from einops_fast.runtime.plan_cache import clear_plans

if not TRIED:
    pytest.skip("an older torch than its operator was tried with", allow_module_level=True)

P = "b i h d, b j g d, b j g e -> b i h e"
MASK = torch.tensor([[True, False, True, True], [False, False, False, False], [False, True, False, False]])
BIAS = torch.tensor([[0.5, -1.0, 0.0, 2.0], [1.0, -float("inf"), 0.25, 0.0], [-float("inf")] * 4], dtype=torch.float64)
# name -> options, and the sizes of heads, keys' heads, and features of q and k and of v
CASES: dict[str, tuple[dict[str, Any], tuple[int, int, int, int]]] = {
    "plain": ({}, (2, 2, 3, 3)),
    "causal, shared heads": ({"causal": True}, (4, 2, 3, 3)),
    "bottom right, one head of keys": ({"causal": "bottom_right"}, (2, 1, 3, 3)),
    "mask, more features of q": ({"mask": MASK}, (2, 2, 4, 2)),
    "mask and bias, more features of v": ({"mask": MASK, "bias": BIAS}, (2, 1, 2, 3)),
    "causal, scale": ({"causal": True, "scale": -0.7}, (2, 2, 3, 3)),
    "causal, no scale": ({"causal": True, "scale": 0.0}, (4, 2, 3, 2)),
    "bias, scale": ({"bias": BIAS, "scale": -0.7}, (2, 2, 3, 3)),
    "window": ({"window": (1, 0)}, (2, 2, 3, 3)),
}


def leaves(
    heads: int, kv_heads: int, features: int, of_values: int, dtype: Any = torch.float64, lengths: Any = (3, 4)
) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = (1, lengths[0], heads, features), (1, lengths[1], kv_heads, features), (1, lengths[1], kv_heads, of_values)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def doubled(operands: list[Any]) -> list[Any]:
    return [each.detach().double().requires_grad_() for each in operands]


def for_operands(options: dict[str, Any], operands: list[Any]) -> dict[str, Any]:
    """The options with a bias in the dtype of the operands."""
    return {name: value.to(operands[0].dtype) if name == "bias" else value for name, value in options.items()}


TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-12}


def check(found: Any, exact: Any, tolerance: float) -> None:
    for ours, theirs in zip(found, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance * theirs.abs().max().item())


def finite(lse: Any) -> Any:
    """Without what rows without keys have: there are no differences of it."""
    return lse.masked_fill(lse == -float("inf"), 0.0)


@pytest.mark.parametrize("logs", [False, True], ids=["result", "log"])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_by_the_default_choice(case: str, logs: bool) -> None:
    options, sizes = CASES[case]

    def call(*arrays: Any) -> Any:
        if not logs:
            return attention(P, *arrays, **options)
        out, lse = attention(P, *arrays, **options, return_lse=True)
        return out, finite(lse)

    operands = leaves(*sizes)
    assert explain_attention(P, *operands, **options, return_lse=logs).implementation == "cpu"
    assert gradcheck(call, operands)
    assert gradgradcheck(call, operands, fast_mode=True)
    if not logs:
        with score_memory(1):
            assert gradgradcheck(call, operands, fast_mode=True)


@pytest.fixture
def evened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether torch's functions got as many features of v as of q and k; gradients go that way at all sizes."""
    even: list[bool] = []

    def noted(run: Any) -> Any:
        def call(q: Any, k: Any, v: Any, *others: Any, **options: Any) -> Any:
            even.append(q.shape[-1] == k.shape[-1] == v.shape[-1])
            return run(q, k, v, *others, **options)

        return call

    for name in ("native", "differentiable_twice", "with_wide_gradients"):
        monkeypatch.setattr(cpu, name, noted(getattr(cpu, name)))
    monkeypatch.setattr(cpu, "_evens_out", lambda spec: True)
    monkeypatch.setattr(attend, "_calls", {})
    clear_plans()
    yield even
    clear_plans()


@pytest.mark.parametrize("case", CASES)
def test_derivatives_where_features_are_made_even(case: str, evened: list[bool]) -> None:
    options, sizes = CASES[case]
    operands = leaves(*sizes)
    assert gradcheck(lambda *arrays: attention(P, *arrays, **options), operands)
    assert gradgradcheck(lambda *arrays: attention(P, *arrays, **options), operands, fast_mode=True)
    assert evened
    assert all(evened)


@pytest.mark.parametrize("of", ["result", "log", "both"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("length", [7, 600])  # few and many, for low precision
def test_gradients_in_every_dtype(dtype: str, of: str, length: int) -> None:
    low = leaves(4, 2, 32, 32, getattr(torch, dtype), (5, length))
    found = []
    for name, operands in (("cpu", low), ("math", doubled(low))):
        with attention_backend(name):
            out, lse = attention(P, *operands, causal="bottom_right", return_lse=True)
        out, lse = (out[..., 1:], lse[:, 1:]) if of == "both" else (out, lse)
        kept = {"result": out.double().sum(), "log": (lse * lse).sum(), "both": (out.double() ** 3).sum() + lse.sum()}
        gradients = torch.autograd.grad(kept[of], operands, allow_unused=True)
        if of == "log":
            assert gradients[2] is None or not gradients[2].any()
        found.append([out, lse, *gradients[:2], *([] if of == "log" else gradients[2:])])
    if dtype in ("float16", "bfloat16"):
        assert found[0][1].dtype == torch.float32
        assert found[0][2].dtype == getattr(torch, dtype)
    check(*found, TOLERANCES[dtype])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("options", [{}, {"mask": MASK}, {"bias": BIAS, "scale": 0.3}], ids=["plain", "mask", "bias"])
def test_gradients_in_low_precision_without_the_log(dtype: str, options: dict[str, Any]) -> None:
    low = leaves(2, 1, 16, 16, getattr(torch, dtype))
    gradients = []
    for operands in (low, doubled(low)):
        out = attention(P, *operands, **for_operands(options, operands))
        first = torch.autograd.grad((out.double() ** 3).sum(), operands, create_graph=True)
        second = torch.autograd.grad(sum((each.double() ** 2).sum() for each in first), operands)
        gradients.append((*first, *second))
    check(*gradients, 2e-2 if dtype == "bfloat16" else 3e-3)


def test_rows_without_keys() -> None:
    operands = leaves(2, 2, 3, 3)
    out, lse = attention(P, *operands, mask=MASK, return_lse=True)
    assert not out[:, 1].any()
    assert (lse[:, 1] == -float("inf")).all()
    assert lse[:, [0, 2]].isfinite().all()
    # Whatever comes back through these rows' logs, even none of a number, has no effect.
    seed = torch.ones_like(lse)
    seed[:, 1] = float("nan")
    gradients = torch.autograd.grad((out, lse), operands, (torch.ones_like(out), seed))
    assert all(each.isfinite().all() for each in gradients)
    assert not gradients[0][:, 1].any()
    again = attention(P, *operands, mask=MASK, return_lse=True)
    first = torch.autograd.grad(again, operands, (torch.ones_like(out), seed), create_graph=True)
    torch.testing.assert_close(first, gradients)


def test_a_bias_has_its_gradient_beside_the_log() -> None:
    operands = leaves(2, 2, 3, 3)
    bias = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)

    def call(bias: Any) -> Any:
        return attention(P, *operands, bias=bias, return_lse=True)

    assert gradcheck(call, bias)
    with torch.no_grad():
        assert explain_attention(P, *operands, bias=bias, return_lse=True).implementation == "cpu"


def test_operands_made_of_each_other() -> None:
    (x, *_) = leaves(2, 2, 3, 3)
    calls = [
        lambda x: attention(P, x, x, x),
        lambda x: attention(P, x, 2 * x, x * x),
        lambda x: attention(P, x, 2 * x, x * x, return_lse=True),
        lambda x: attention(P, attention(P, x, x, x), 2 * x, x),
    ]
    for call in calls:
        assert gradgradcheck(call, x, fast_mode=True)
    still = x.detach().clone()
    assert gradgradcheck(lambda x: attention(P, still, x, still), x, fast_mode=True)
    assert gradgradcheck(lambda x: attention(P, still, x, still, return_lse=True), x, fast_mode=True)


def test_features_that_are_not_side_by_side() -> None:
    q, k, v = leaves(2, 1, 4, 4)
    turned = [each.detach().transpose(1, 3).contiguous().transpose(1, 3).requires_grad_() for each in (q, k, v)]
    for seeds in (False, True):
        found = []
        for operands in ((q, k, v), turned):
            out, lse = attention(P, *operands, return_lse=True)
            loss = (out**2).sum() + lse.sum() if seeds else out.sum()  # sum: a gradient of one number for all
            found.append((out, lse, *torch.autograd.grad(loss, operands)))
        torch.testing.assert_close(*found)


def test_in_a_checkpoint() -> None:
    """A checkpoint hands out what it computed again once: there are first derivatives, and no wrong second ones."""
    operands = leaves(2, 2, 3, 3)
    expected = torch.autograd.grad(attention(P, *operands).sum(), operands)
    out = checkpoint(lambda *arrays: attention(P, *arrays), *operands, use_reentrant=False)
    first = torch.autograd.grad(out.sum(), operands, create_graph=True)
    torch.testing.assert_close(first, expected)
    with pytest.raises(RuntimeError, match="not implemented"):
        torch.autograd.grad(first[0].sum(), operands)


def test_the_log_is_not_for_everybody() -> None:
    operands = leaves(2, 2, 3, 3)
    empty = leaves(2, 2, 3, 3, lengths=(3, 0))
    for arrays, options in ((operands, {"dropout_p": 0.5}), (operands, {"softcap": 1.0}), (empty, {})):
        assert explain_attention(P, *arrays, **options, return_lse=True).implementation == "math"
    out, lse = attention(P, *empty, return_lse=True)
    assert not out.any()
    assert (lse == -float("inf")).all()
    compiled = torch.compile(
        lambda *arrays: attention(P, *arrays, causal=True, return_lse=True), fullgraph=True, backend="eager"
    )
    torch.testing.assert_close(compiled(*operands), attention(P, *operands, causal=True, return_lse=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_a_wider_bias_is_not_rounded(dtype: str, return_lse: bool, gradients: bool) -> None:
    """Scores get all digits of a float32 bias, and any low number in it is a number."""
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(1, 2, 40, 16, dtype=torch.float64, generator=generator) for _ in range(3)]
    bias = 30 * torch.randn(2, 40, 40, generator=generator)
    if not gradients:  # torch's own take the weights from the log, which is as low
        bias[:, 1] = -1e9
    errors: dict[str, float] = {}
    halves = [each.to(getattr(torch, dtype)) for each in exact]
    expected: list[Any] = []
    for way in ("exact", "math", "cpu"):
        inputs = [each.double() if way == "exact" else each.clone() for each in halves]
        inputs = [each.requires_grad_(gradients) for each in inputs]
        with attention_backend("math" if way == "exact" else way):
            given = bias.double() if way == "exact" else bias
            found = attention(*inputs, layout="bhsd", bias=given, return_lse=return_lse)
        results = list(found) if return_lse else [found]
        if gradients:
            results += torch.autograd.grad(results[0].double().square().sum(), inputs)
        results = [each.detach().double() for each in results]
        expected = expected or results
        errors[way] = float(sum((one - other).square().mean() for one, other in zip(results, expected, strict=True)))
    assert errors["cpu"] ** 0.5 <= 3 * errors["math"] ** 0.5 + 1e-6
    assert expected[0][0, :, 1].abs().max() > 0
