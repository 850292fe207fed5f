"""Libraries' implementations on a GPU against the reference in float64, over the features that each says it has."""

from typing import Any

import pytest
import torch

from einops_fast import attention, attention_backend, patched, profile
from einops_fast.errors import OperandError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

P = "b i h d, b j g d, b j g e -> b i h e"
WAYS = ("triton", "cudnn", "flash", "efficient")
SIZES = {"q_len": 128, "kv_len": 128, "heads": 4, "kv_heads": 4, "features": 64, "v_features": 64}

# Sizes that differ, and what is asked for; of arrays, a function of a generator.
CASES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "plain": ({}, {}),
    "causal": ({}, {"causal": True}),
    "causal, top left": ({"q_len": 64}, {"causal": True}),
    "causal, bottom right": ({"q_len": 64}, {"causal": "bottom_right"}),
    "rows without keys": ({"q_len": 192}, {"causal": "bottom_right"}),
    "rows that a mask hides": ({}, {"mask": ("b i j", lambda: _mask(2, 128, 128, hidden=9))}),
    "mask": ({}, {"mask": ("h i j", lambda: _mask(4, 128, 128))}),
    "mask of keys": ({}, {"mask": ("b j", lambda: _mask(2, 128))}),
    "bias": ({}, {"bias": ("h i j", lambda: _random(4, 128, 128))}),
    "bias, causal": ({}, {"bias": ("h i j", lambda: _random(4, 128, 128)), "causal": True}),
    "window": ({}, {"window": (20, 10)}),
    "alibi": ({}, {"alibi_slopes": ("h", lambda: _random(4).abs().float()), "causal": True}),
    "softcap": ({}, {"softcap": 5.0}),
    "segments": ({}, {"segment_ids": lambda: (torch.arange(128, device="cuda") // 50)[None].expand(2, -1)}),
    "segments, causal": (
        {},
        {"segment_ids": lambda: (torch.arange(128, device="cuda") // 50)[None].expand(2, -1), "causal": True},
    ),
    "shared keys": ({"kv_heads": 2}, {"causal": True}),
    "one head of keys": ({"kv_heads": 1}, {}),
    "values of another size": ({"v_features": 32}, {"causal": True}),
    "logarithms": ({}, {"return_lse": True, "causal": True}),
}


def _random(*shape: int, seed: int = 7) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).cuda()


def _mask(*shape: int, hidden: int = 0) -> Any:
    found = _random(*shape) > -0.5
    if hidden:
        found[:, hidden : 2 * hidden] = False
    return found


def _options(given: dict[str, Any], dtype: Any) -> tuple[dict[str, Any], list[Any]]:
    """The options with arrays, and those of them that have gradients."""
    found, leaves = {}, []
    for name, value in given.items():
        if name == "segment_ids":
            value = value()
        elif isinstance(value, tuple) and callable(value[1]):
            array = value[1]()
            if name == "bias":
                array = array.to(dtype).requires_grad_()
                leaves.append(array)
            value = value[0], array
        found[name] = value
    return found, leaves


def _operands(sizes: dict[str, int]) -> list[Any]:
    s = SIZES | sizes
    shapes = (
        (2, s["q_len"], s["heads"], s["features"]),
        (2, s["kv_len"], s["kv_heads"], s["features"]),
        (2, s["kv_len"], s["kv_heads"], s["v_features"]),
    )
    return [_random(*shape, seed=seed) for seed, shape in enumerate(shapes)]


def _all(way: str, operands: list[Any], given: dict[str, Any], dtype: Any, gradients: bool) -> list[Any]:
    """Results, and gradients of everything through all of them."""
    leaves = [each.to(torch.bfloat16).to(dtype).requires_grad_(gradients) for each in operands]
    options, further = _options(given, torch.bfloat16 if dtype == torch.bfloat16 else dtype)
    if not gradients:
        further = [each.requires_grad_(False) for each in further]
    with attention_backend(way):
        found = attention(P, *leaves, **options)
    results = [*found] if isinstance(found, tuple) else [found]
    if not gradients:
        return results
    finite = [torch.where(each == -torch.inf, 0.0, each) for each in results]
    seeds = [_random(*each.shape, seed=11 + at).to(each.dtype) for at, each in enumerate(results)]
    return [*results, *torch.autograd.grad(finite, [*leaves, *further], seeds)]


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", WAYS)
def test_errors_are_those_of_the_precision(way: str, case: str, gradients: bool) -> None:
    sizes, given = CASES[case]
    operands = _operands(sizes)
    try:
        found = _all(way, operands, given, torch.bfloat16, gradients)
    except OperandError as error:  # it says that it can't
        pytest.skip(str(error).splitlines()[1].strip())
    expected = _all("math", operands, given, torch.float64, gradients)
    for one, exact in zip(found, expected, strict=True):
        assert torch.equal(one == -torch.inf, exact == -torch.inf)
        one, exact = (each.detach().double().nan_to_num(neginf=0) for each in (one, exact))
        assert not one.isnan().any()
        error = float((one - exact).square().mean().sqrt())
        assert error <= 2e-2 * max(1e-2, float(exact.square().mean().sqrt())), error


@pytest.mark.parametrize("way", ["triton", "cudnn", "flash", "efficient"])
def test_dropout_drops_as_many_weights_as_it_says_and_the_same_for_gradients(way: str) -> None:
    q = torch.zeros(2, 256, 4, 64, device="cuda", dtype=torch.float16)
    v = torch.eye(64, device="cuda", dtype=torch.float16).repeat(4, 1)[None, :, None].expand(2, -1, 4, -1).contiguous()
    v.requires_grad_()
    torch.manual_seed(0)
    with attention_backend(way):
        found = attention(P, q, q, v, dropout_p=0.25)
        again = attention(P, q, q, v, dropout_p=0.25)
    # Each element is the sum of four weights, of 1 / 256 each, that are dropped with a probability of 1 / 4.
    counts = (found.float() * 256 * 0.75).round()
    assert abs(float(counts.mean()) - 3) < 0.02
    assert abs(float((counts == 4).float().mean()) - 0.75**4) < 0.01
    assert not torch.equal(found, again)
    (gradient,) = torch.autograd.grad(found.sum(), v)
    torch.testing.assert_close((gradient * v).float().sum(), found.float().sum(), rtol=1e-2, atol=0)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}], ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_patched_function_of_torch(dtype: str, options: dict[str, Any]) -> None:
    kv_heads = 2 if options.get("enable_gqa") else 4
    q, k, v = (
        _random(2, heads, 128, 64, seed=seed).to(getattr(torch, dtype)).requires_grad_()
        for seed, heads in enumerate((4, kv_heads, kv_heads))
    )
    function = torch.nn.functional.scaled_dot_product_attention
    with patched("torch.sdpa"), profile() as seen:
        found = function(q, k, v, **options)
    assert not seen.native
    expected = function(*(each.double() for each in (q, k, v)), **options)
    tolerance = 2e-2 if dtype == "bfloat16" else 2e-3
    for one, other in zip(
        [found, *torch.autograd.grad(found.square().sum(), [q, k, v])],
        [expected, *torch.autograd.grad(expected.square().sum(), [q, k, v])],
        strict=True,
    ):
        error = float((one.double() - other.double()).square().mean().sqrt())
        assert error <= tolerance * float(other.double().square().mean().sqrt())


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_nested_tensors(causal: bool, packed: bool) -> None:
    parts = [_random(length, 3, 4, 64, seed=length).bfloat16() for length in (100, 1, 77)]
    whole = torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)
    if packed:
        found = attention(whole, layout="bs3hd", causal=causal)
    else:
        q, k, v = (torch.nested.nested_tensor([part[:, at] for part in parts], layout=torch.jagged) for at in range(3))
        k, v = (torch.nested.nested_tensor_from_jagged(each.values(), q.offsets(), jagged_dim=1) for each in (k, v))
        found = attention(q, k, v, layout="bshd", causal=causal)
    for own, part in zip(found.unbind(), parts, strict=True):
        with attention_backend("math"):
            expected = attention(part[None].double(), layout="bs3hd", causal=causal)[0]
        torch.testing.assert_close(own.detach().double(), expected, rtol=2e-2, atol=2e-2)
    if packed:
        found.values().square().sum().backward()
        assert whole.grad.values().isfinite().all()


LAYOUTS = {
    "as it is": lambda full: full,
    "transposed": lambda full: full.mT.contiguous().mT,
    "expanded": lambda full: full[:1].expand_as(full),
    "rows expanded": lambda full: full[:, :1].expand_as(full),
    "sliced": lambda full: torch.nn.functional.pad(full, (3, 0))[..., 3:],
}


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
@pytest.mark.parametrize("name", ["mask", "bias"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_whatever_the_layout_of_a_mask(layout: str, name: str, gradients: bool) -> None:
    """While a compiler traces, nobody can ask a library whether it takes these tensors, and some are refused."""
    q, k, v = (_random(4, 32, 8, 64, seed=seed).bfloat16().cuda().requires_grad_(gradients) for seed in range(3))
    full = _random(4, 32, 32, seed=3).cuda()
    full = (full > -1) | torch.eye(32, dtype=torch.bool, device="cuda") if name == "mask" else full.bfloat16()
    given = LAYOUTS[layout](full)
    hidden = torch.where(given, 0.0, -torch.inf) if name == "mask" else given
    scores = torch.einsum("bihd,bjhd->bhij", q.double(), k.double()) / 8 + hidden[:, None].double()
    expected = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v.double())
    torch._dynamo.reset()
    found = torch.compile(lambda q, k, v, given: attention(P, q, k, v, **{name: ("b i j", given)}))(q, k, v, given)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=3e-2)
    if gradients:
        seed = torch.ones_like(found)
        ours = torch.autograd.grad(found, (q, k, v), seed)
        for one, exact in zip(ours, torch.autograd.grad(expected, (q, k, v), seed.double()), strict=True):
            torch.testing.assert_close(one.double(), exact.double(), rtol=3e-2, atol=6e-2)
